package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/redis"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// area is the area of the records in tests.
var area = record.Area{Name: "store", MaxGrantMS: time.Hour.Milliseconds()}

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
	records := redis.New(client, area)
	return onRedis{sequence.OnRecords(records), records, client}, nil
}

func mustOpenRedis(t testing.TB, cfg redisconn.Config) onRedis {
	t.Helper()
	s, err := openRedis(cfg)
	must.Succeed(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func mustInit(t testing.TB, s onRedis) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must.Succeed(t, s.records.Init(ctx))
}

func TestRedisConformance(t *testing.T) {
	server := redistest.New(t)
	// Seeds 003-2-3, 003-5-11, 003-6.1-3, 003-8.1-1, 003-8.1-2, 003-8.1-5, 003-8.3-1 and 003-8.4-1.
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
// when it becomes the primary. TestDoubt has the rules.
func TestFailoverHandsOutNothingTwice(t *testing.T) {
	primary, replica := redistest.Pair(t)
	request := func(key, id string) sequence.Request {
		return sequence.Request{Tenant: "t", Key: key, Count: 1, RequestID: id, Options: sequence.DefaultOptions()}
	}
	take := func(s onRedis, r sequence.Request, want int64) { // 0: it is fenced
		t.Helper()
		got, err := s.Next(t.Context(), r)
		var e *sequence.FencedError
		if fenced := errors.As(err, &e) && strings.Contains(e.Error(), "another one has taken its place"); fenced != (want == 0) || got.First != want {
			t.Errorf("%s: %v (%v), want %d", r.Key, got, err, want)
		}
	}
	cfg := primary.Config()
	old := mustOpenRedis(t, cfg)
	mustInit(t, old)
	take(old, request("a", "known"), 1)
	redistest.InStep(t, primary)
	replica.Promote() // from now on it hears of nothing
	take(old, request("a", ""), 2)
	take(old, request("lost", ""), 1)
	primary.Kill()

	cfg.Addrs = []string{replica.Sock}
	s := mustOpenRedis(t, cfg)
	for _, key := range []string{"a", "lost", "new"} {
		take(s, request(key, ""), 0)
	}
	// Seed 003-8.3-1.
	take(s, request("a", "known"), 1) // a remembered call may be repeated
	must.Succeed(t, s.Declare(t.Context(), sequence.Declaration{Tenant: "t", Key: "a", Options: sequence.DefaultOptions(), Last: 2}))
	take(s, request("a", ""), 3)
	take(s, request("lost", ""), 0)
	mustInit(t, s)
	take(s, request("lost", ""), 1) // as the operator said
	take(s, request("a", ""), 4)
}

// A sequence takes little room on the server where no request IDs are used, and at most 4 KB
// with as many as are remembered.
func TestRedisMemory(t *testing.T) {
	server := redistest.New(t)
	cfg := server.Config()
	cfg.Prefix = redisconn.DefaultPrefix
	s := mustOpenRedis(t, cfg)
	mustInit(t, s)
	used := func(key string, calls, count int, requestID func(int) string) int {
		t.Helper()
		r := sequence.Request{Tenant: "default", Key: key, Count: count, Options: sequence.DefaultOptions()}
		for i := range calls {
			r.RequestID = requestID(i)
			_, err := s.Next(t.Context(), r)
			must.Succeed(t, err)
		}
		n, err := strconv.Atoi(server.Do(t, "MEMORY", "USAGE", "{kazahana}:@store/seq/default/"+key)) // seed 003-8.4-1
		must.Succeed(t, err)
		return n
	}
	plain := used("orders", 16, sequence.MaxCount, func(int) string { return "" })
	// Seed 003-8.5-3.
	if plain > 112 { // 104 where the allocator has steps of 16 bytes
		t.Errorf("a sequence takes %d bytes", plain)
	}
	long := func(i int) string { return fmt.Sprintf("%0128d", i) }
	one, usual := used("one", 1, 1, long), used("usual", 200, 1, long)
	full := used("full", 200, sequence.MaxCount, long)
	if one > 136 || usual > 3200 || full > 4096 {
		t.Errorf("with request IDs, one call takes %d bytes, and all of them %d, of batches %d", one, usual, full)
	}
	t.Logf("%d bytes without request IDs, %d with one call, %d with %d, of batches %d", plain, one, usual, sequence.MaxReceipts, full)
}
