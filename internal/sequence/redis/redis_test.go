package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Run(m)) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// owned closes the client with the store.
type owned struct {
	*Store
	client *redisconn.Client
}

func (o owned) Close() error { return o.client.Close() }

func open(t *testing.T, cfg redisconn.Config) (owned, error) {
	client, err := redisconn.Open(cfg)
	if err != nil {
		return owned{}, err
	}
	s, err := Open(testContext(t), client)
	if err != nil {
		return owned{}, errors.Join(err, client.Close())
	}
	return owned{s, client}, nil
}

func mustOpen(t *testing.T, cfg redisconn.Config) owned {
	t.Helper()
	s, err := open(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustInit(t *testing.T, s owned) {
	t.Helper()
	if err := s.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	for name, settable := range map[string]bool{"a set clock": true, "the server's clock": false} {
		t.Run(name, func(t *testing.T) {
			sequencetest.Run(t, func(t *testing.T) sequencetest.Target {
				server := redistest.Shared(t)
				cfg := server.Config()
				target := sequencetest.Target{
					Open: func() (sequence.Store, error) { return open(t, cfg) },
					// Redis removes an expired key by itself, some time after.
					Expire: func(tenant, key string) { server.Do(t, "DEL", cfg.Prefix+"@seq:"+tenant+":"+key) },
				}
				if settable {
					var clock atomic.Int64
					clock.Store(time.Now().UnixMilli())
					cfg.NowMS = clock.Load
					target.Advance = func(d time.Duration) { clock.Add(d.Milliseconds()) }
				}
				s := mustOpen(t, cfg)
				mustInit(t, s)
				return target
			})
		})
	}
}

func plain(key string) sequence.Request {
	return sequence.Request{Tenant: "t", Key: key, Count: 1, Options: sequence.DefaultOptions()}
}

func idling(key string) sequence.Request {
	r := plain(key)
	r.Options.TTL = time.Hour
	return r
}

// take expects one value.
func take(t *testing.T, s owned, r sequence.Request, want int64) {
	t.Helper()
	if got, err := s.Next(testContext(t), r); err != nil || got.First != want {
		t.Errorf("%s: %v (%v), want %d", r.Key, got, err, want)
	}
}

func fenced(t *testing.T, s owned, r sequence.Request, until int64, words string) {
	t.Helper()
	got, err := s.Next(testContext(t), r)
	var e *sequence.FencedError
	if !errors.As(err, &e) || e.UntilMS != until || e.Key != r.Key || !strings.Contains(e.Error(), words) {
		t.Errorf("%s: %v and the error %v, want a FencedError until %d with %q", r.Key, got, err, until, words)
	}
}

// pair is a primary and a replica that has all that was written.
func pair(t *testing.T) (primary, replica *redistest.Server, cfg redisconn.Config, clock *atomic.Int64) {
	t.Helper()
	primary, replica = redistest.NewWithPort(t), redistest.NewWithPort(t)
	replica.Follow(primary)
	cfg = primary.Config()
	clock = &atomic.Int64{}
	clock.Store(1_800_000_000_000)
	cfg.NowMS = clock.Load
	return primary, replica, cfg, clock
}

func on(cfg redisconn.Config, s *redistest.Server) redisconn.Config {
	cfg.Addrs = []string{s.Sock}
	return cfg
}

// A server that knows nothing may have known everything.
func TestUnknownServerIsFenced(t *testing.T) {
	cfg := redistest.Shared(t).Config()
	var clock atomic.Int64
	clock.Store(1_800_000_000_000)
	cfg.NowMS = clock.Load
	s := mustOpen(t, cfg)
	hour := clock.Load() + time.Hour.Milliseconds()
	fenced(t, s, plain("a"), 0, "it is new, or it has lost its data")
	fenced(t, s, idling("b"), hour, "it starts over at")
	// A declared key is known, and no other.
	if err := s.Declare(testContext(t), sequence.Declaration{Tenant: "t", Key: "a", Options: sequence.DefaultOptions(), Last: 99}); err != nil {
		t.Fatal(err)
	}
	take(t, s, plain("a"), 100)
	fenced(t, s, plain("c"), 0, "no record")
	// failover_fence is for servers that changed.
	trusting := cfg
	trusting.FailoverFenceSet = true
	fenced(t, mustOpen(t, trusting), plain("c"), 0, "no record")
	clock.Store(hour - 1)
	fenced(t, s, idling("b"), hour, "it starts over at")
	clock.Store(hour)
	take(t, s, idling("b"), 1)
	mustInit(t, s)
	take(t, s, plain("c"), 1)
	take(t, s, plain("a"), 101)
}

// The server loses everything while in use.
func TestEmptiedServerHandsOutNothing(t *testing.T) {
	server := redistest.New(t)
	s := mustOpen(t, server.Config())
	mustInit(t, s)
	take(t, s, plain("a"), 1)
	server.Do(t, "FLUSHALL")
	fenced(t, s, plain("a"), 0, "no record")
	mustInit(t, s)
	take(t, s, plain("a"), 1) // the operator said so
	server.Restart()
	fenced(t, s, plain("a"), 0, "no record")
}

// TestFailoverHandsOutNothingTwice: the replica lacks the last values and a
// whole key when it becomes the primary.
func TestFailoverHandsOutNothingTwice(t *testing.T) {
	primary, replica, cfg, clock := pair(t)
	old := mustOpen(t, cfg)
	mustInit(t, old)
	take(t, old, plain("a"), 1)
	take(t, old, idling("b"), 1)
	named := plain("named")
	named.RequestID = "known"
	take(t, old, named, 1)
	redistest.InStep(t, primary)
	replica.Promote() // from now on it hears of nothing
	take(t, old, plain("a"), 2)
	take(t, old, plain("lost"), 1)
	take(t, old, idling("b"), 2)
	primary.Kill()

	cfg = on(cfg, replica)
	s := mustOpen(t, cfg)
	from := clock.Load()
	for _, key := range []string{"a", "lost", "new"} {
		fenced(t, s, plain(key), 0, "another one has taken its place")
	}
	fenced(t, s, idling("b"), from+time.Hour.Milliseconds(), "another one has taken its place")
	take(t, s, named, 1) // what it does remember, it may repeat
	fenced(t, s, plain("named"), 0, "another one")

	// The operator knows of a, and not of lost.
	if err := s.Declare(testContext(t), sequence.Declaration{Tenant: "t", Key: "a", Options: sequence.DefaultOptions(), Last: 2}); err != nil {
		t.Fatal(err)
	}
	take(t, s, plain("a"), 3)
	fenced(t, s, plain("lost"), 0, "another one")
	clock.Add(time.Hour.Milliseconds() - 1)
	fenced(t, s, idling("b"), from+time.Hour.Milliseconds(), "it starts over at")
	clock.Add(1)
	take(t, s, idling("b"), 1)
	take(t, s, idling("b"), 2)

	mustInit(t, s)
	take(t, s, plain("lost"), 1) // as the operator said
	take(t, s, plain("a"), 4)
}

// Where the operator says that a failover loses nothing, it goes on after it.
func TestFailoverFence(t *testing.T) {
	primary, replica, cfg, clock := pair(t)
	cfg.FailoverFence, cfg.FailoverFenceSet, cfg.MinReplicas = time.Minute, true, 1
	cfg.ConfirmWait = redistest.StartTimeout
	s := mustOpen(t, cfg)
	mustInit(t, s)
	take(t, s, plain("a"), 1)
	primary.Kill()
	replica.Promote()
	cfg = on(cfg, replica)
	cfg.MinReplicas = 0
	s = mustOpen(t, cfg)
	fenced(t, s, plain("a"), 0, "another one")
	clock.Add(time.Minute.Milliseconds())
	take(t, s, plain("a"), 2)
	take(t, s, plain("new"), 1)
}

// A value that replicas did not confirm is not handed out, neither by the call
// nor by the same call repeated, until they do.
func TestUnconfirmed(t *testing.T) {
	primary, replica, cfg, _ := pair(t)
	cfg.MinReplicas, cfg.ConfirmWait = 1, redistest.StartTimeout
	patient := mustOpen(t, cfg)
	mustInit(t, patient)
	take(t, patient, plain("a"), 1)
	cfg.ConfirmWait = 100 * time.Millisecond
	named := plain("a")
	named.RequestID = "named"
	replica.Signal(syscall.SIGSTOP)
	for range 2 {
		s := mustOpen(t, cfg) // and with a new connection
		if got, err := s.Next(testContext(t), named); !errors.Is(err, redisconn.ErrUnconfirmed) || sequence.IsAnswer(err) {
			t.Fatalf("%v and the error %v, want ErrUnconfirmed", got, err)
		}
	}
	replica.Signal(syscall.SIGCONT)
	take(t, patient, named, 2)
	take(t, patient, plain("a"), 3)
	replica.Kill()
	redistest.Eventually(t, "the primary notices", func() error {
		if info := primary.Do(t, "INFO", "replication"); !strings.Contains(info, "connected_slaves:0") {
			return errors.New("not yet")
		}
		return nil
	})
	if _, err := patient.Next(testContext(t), plain("a")); !errors.Is(err, redisconn.ErrUnconfirmed) || !strings.Contains(err.Error(), "nothing was done") {
		t.Errorf("without a replica the error is %v, want ErrUnconfirmed", err)
	}
	if last := primary.Do(t, "HGET", cfg.Prefix+"@seq:t:a", "last"); last != "3" {
		t.Errorf("a value was taken without a replica: the last is %s", last)
	}
}

// The user needs these rights, and no other.
func TestRights(t *testing.T) {
	server := redistest.New(t)
	words := []string{"ACL", "SETUSER", "kazahana", "reset", "on", ">secret", "~{kazahana}:*"}
	for word := range strings.FieldsSeq(commands) {
		words = append(words, "+"+word)
	}
	set := func(words ...string) {
		args := make([]any, len(words))
		for i, w := range words {
			args[i] = w
		}
		server.Do(t, args...)
	}
	set(words...)
	cfg, _, err := redisconn.ParseURL("redis+unix://kazahana:secret@"+server.Sock, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, cfg)
	mustInit(t, s)
	r := idling("b")
	r.RequestID = "again"
	take(t, s, r, 1)
	take(t, s, r, 1)
	take(t, s, plain("a"), 1)
	if err := s.Declare(testContext(t), sequence.Declaration{Tenant: "t", Key: "a", Options: sequence.DefaultOptions(), Last: 5}); err != nil {
		t.Error(err)
	}
	for i, word := range words[7:] {
		set(append(append([]string{}, words[:7+i]...), words[8+i:]...)...)
		bad, err := open(t, cfg)
		if err == nil {
			bad.Close()
			t.Errorf("without %s it was opened", word)
		}
	}
}

// An expired key leaves the server by itself, after its TTL and not before.
func TestExpiredKeysLeave(t *testing.T) {
	server := redistest.Shared(t)
	cfg := server.Config()
	s := mustOpen(t, cfg)
	mustInit(t, s)
	take(t, s, idling("b"), 1)
	var left int64
	if _, err := fmt.Sscan(server.Do(t, "PTTL", cfg.Prefix+"@seq:t:b"), &left); err != nil || left <= time.Hour.Milliseconds() || left > 2*time.Hour.Milliseconds() {
		t.Errorf("it leaves in %d ms (%v)", left, err)
	}
	take(t, s, plain("a"), 1)
	if ttl := server.Do(t, "PTTL", cfg.Prefix+"@seq:t:a"); ttl != "-1" {
		t.Errorf("a key without TTL leaves in %s ms", ttl)
	}
}

func BenchmarkStore(b *testing.B) {
	server := redistest.Shared(b)
	client, err := redisconn.Open(server.Config())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	s, err := Open(context.Background(), client)
	if err == nil {
		err = s.Init(context.Background())
	}
	if err != nil {
		b.Fatal(err)
	}
	sequencetest.Benchmark(b, s)
	raw := server.Raw()
	defer raw.Close()
	b.Run("bare INCR", func(b *testing.B) {
		for b.Loop() {
			if err := raw.Incr(context.Background(), "bare").Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
