package sequence_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/record/redis"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// onRedis closes the client with the store.
type onRedis struct {
	*sequence.Records
	records *redis.Store
	client  *redisconn.Client
}

func (o onRedis) Close() error { return errors.Join(o.records.Close(), o.client.Close()) }

func openRedis(cfg redisconn.Config) (onRedis, error) {
	client, err := redisconn.Open(cfg)
	if err != nil {
		return onRedis{}, err
	}
	records := redis.New(client, redis.Options{MaxTerm: time.Hour})
	return onRedis{sequence.OnRecords(records), records, client}, nil
}

func mustOpenRedis(t testing.TB, cfg redisconn.Config) onRedis {
	t.Helper()
	s, err := openRedis(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustInit(t testing.TB, s onRedis) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.records.Init(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestRedisConformance(t *testing.T) {
	server := redistest.New(t)
	sequencetest.Run(t, func(t *testing.T) sequencetest.Target {
		cfg := server.Config()
		var clock atomic.Int64
		clock.Store(time.Now().UnixMilli())
		cfg.NowMS = clock.Load
		mustInit(t, mustOpenRedis(t, cfg))
		return sequencetest.Target{
			Open:    func() (sequence.Store, error) { return openRedis(cfg) },
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
		}
	})
}

// TestFailoverHandsOutNothingTwice: the replica lacks the last values and a whole key
// when it becomes the primary.
func TestFailoverHandsOutNothingTwice(t *testing.T) {
	primary, replica := redistest.NewWithPort(t), redistest.NewWithPort(t)
	replica.Follow(primary)
	cfg := primary.Config()
	var clock atomic.Int64
	clock.Store(1_800_000_000_000)
	cfg.NowMS = clock.Load
	request := func(key string, ttl time.Duration) sequence.Request {
		r := sequence.Request{Tenant: "t", Key: key, Count: 1, Options: sequence.DefaultOptions()}
		r.Options.TTL = ttl
		return r
	}
	take := func(s onRedis, r sequence.Request, want int64) {
		t.Helper()
		if got, err := s.Next(t.Context(), r); err != nil || got.First != want {
			t.Errorf("%s: %v (%v), want %d", r.Key, got, err, want)
		}
	}
	fenced := func(s onRedis, r sequence.Request, until int64) {
		t.Helper()
		got, err := s.Next(t.Context(), r)
		var e *sequence.FencedError
		if !errors.As(err, &e) || e.UntilMS != until || e.Key != r.Key || !strings.Contains(e.Error(), "another one has taken its place") {
			t.Errorf("%s: %v and the error %v, want a FencedError until %d", r.Key, got, err, until)
		}
	}
	old := mustOpenRedis(t, cfg)
	mustInit(t, old)
	plain, idling, named := request("a", 0), request("b", time.Hour), request("named", 0)
	named.RequestID = "known"
	for _, r := range []sequence.Request{plain, idling, named} {
		take(old, r, 1)
	}
	redistest.InStep(t, primary)
	replica.Promote() // from now on it hears of nothing
	take(old, plain, 2)
	take(old, request("lost", 0), 1)
	take(old, idling, 2)
	primary.Kill()

	cfg.Addrs = []string{replica.Sock}
	s := mustOpenRedis(t, cfg)
	over := clock.Load() + time.Hour.Milliseconds()
	for _, key := range []string{"a", "lost", "new"} {
		fenced(s, request(key, 0), 0)
	}
	fenced(s, idling, over)
	take(s, named, 1) // what it does remember, it may repeat
	fenced(s, request("named", 0), 0)

	// The operator knows of a, and not of lost.
	if err := s.Declare(t.Context(), sequence.Declaration{Tenant: "t", Key: "a", Options: sequence.DefaultOptions(), Last: 2}); err != nil {
		t.Fatal(err)
	}
	take(s, plain, 3)
	fenced(s, request("lost", 0), 0)
	clock.Add(time.Hour.Milliseconds() - 1)
	fenced(s, idling, over)
	clock.Add(1)
	take(s, idling, 1)
	take(s, idling, 2)

	mustInit(t, s)
	take(s, request("lost", 0), 1) // as the operator said
	take(s, plain, 4)
}

// A sequence takes little room on the server, where no request IDs are used.
func TestRedisMemory(t *testing.T) {
	server := redistest.New(t)
	cfg := server.Config()
	cfg.Prefix = redisconn.DefaultPrefix
	s := mustOpenRedis(t, cfg)
	mustInit(t, s)
	r := sequence.Request{Tenant: "default", Key: "orders", Count: 65_536, Options: sequence.DefaultOptions()}
	for range 16 {
		if _, err := s.Next(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	used, err := strconv.Atoi(server.Do(t, "MEMORY", "USAGE", "{kazahana}:/seq/default/orders"))
	if err != nil || used > 96 { // 88 where the allocator has steps of 16 bytes
		t.Errorf("a sequence takes %d bytes (%v)", used, err)
	}
}
