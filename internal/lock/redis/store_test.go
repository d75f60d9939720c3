package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// impatient has replicas confirm soon, or not at all.
func impatient(c *redisconn.Config) { c.ConfirmWait = 100 * time.Millisecond }

func unconfirmed(t *testing.T, s owned, q lock.Request, words string) {
	t.Helper()
	l, err := s.Do(testContext(t), q)
	if !errors.Is(err, redisconn.ErrUnconfirmed) || lock.IsAnswer(err) || !strings.Contains(err.Error(), words) {
		t.Fatalf("%v: %+v and the error %v, want ErrUnconfirmed with %q", q.Op, l, err, words)
	}
}

// What replicas did not confirm is not answered, however often it is asked for;
// a lease that nobody was told of is given back.
func TestUnconfirmed(t *testing.T) {
	primary, replica := pair(t)
	r := newRig(t, primary, func(c *redisconn.Config) { c.MinReplicas = 1 })
	l := r.do(r.acquire("held", time.Hour))
	replica.Signal(syscall.SIGSTOP)

	acquire := r.acquire("a", time.Hour)
	for range 2 {
		unconfirmed(t, r.on(primary, impatient), acquire, "given back")
		if got, err := r.store.Get(testContext(t), "t", "a"); err != nil || got.State != lock.Released {
			t.Fatalf("the lock is %+v (%v), want it given back", got, err)
		}
	}
	renew := r.request(lock.Renew, "held", "alice", 2*time.Hour)
	release := r.request(lock.Release, "held", "alice", 0)
	for _, q := range []lock.Request{renew, renew, release, release} { // each on a new connection
		unconfirmed(t, r.on(primary, impatient), q, "0 of min_replicas=1")
	}

	replica.Signal(syscall.SIGCONT)
	if got := r.do(release); !got.Repeated || got.LeaseID != l.LeaseID {
		t.Errorf("the release, repeated, answers %+v", got)
	}
	if got := r.do(acquire); got.Repeated || got.LeaseID != acquire.LeaseID {
		t.Errorf("the acquire, repeated, answers %+v, want a fresh lease", got)
	}
	replica.Kill()
	redistest.Eventually(t, "the primary notices", func() error {
		if info := primary.Do(t, "INFO", "replication"); !strings.Contains(info, "connected_slaves:0") {
			return errors.New("not yet")
		}
		return nil
	})
	unconfirmed(t, r.store, r.acquire("b", time.Hour), "nothing was done")
	if _, err := r.store.Get(testContext(t), "t", "b"); !errors.Is(err, lock.ErrNotFound) {
		t.Errorf("without a replica there is a lock: %v", err)
	}
}

// A lease that somebody was told of is not given back by another who was told
// of it too and whose answer was not confirmed.
func TestToldLeaseIsNotGivenBack(t *testing.T) {
	for name, tell := range map[string]func(r *rig, q lock.Request){
		"repeated": func(r *rig, q lock.Request) { r.do(q) },
		"renewed":  func(r *rig, q lock.Request) { r.do(r.request(lock.Renew, q.Key, q.Owner, time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, redistest.Shared(t))
			q := r.acquire("a", time.Hour)
			l := r.do(q)
			tell(r, q)
			_, err := redisconn.Run(testContext(t), r.store.client, redisconn.Once, func(ctx context.Context, conn *goredis.Conn) (struct{}, error) {
				if fate := r.store.giveBack(ctx, conn, q, l); !strings.Contains(fate, "stays") {
					t.Errorf("fate of the lease: %s", fate)
				}
				return struct{}{}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			r.held("a")
		})
	}
}

// After a failover to a replica that confirmed everything, with no fence at all,
// every lease that was answered is there.
func TestConfirmedSurvivesFailover(t *testing.T) {
	primary, replica := pair(t)
	r := newRig(t, primary, func(c *redisconn.Config) { c.MinReplicas, c.FailoverFenceSet = 1, true })
	for i := range 20 {
		r.do(r.acquire(fmt.Sprintf("k%d", i), time.Hour))
	}
	primary.Kill()
	replica.Promote()
	r.store = r.on(replica, func(c *redisconn.Config) { c.MinReplicas = 0 })
	for i := range 20 {
		r.held(fmt.Sprintf("k%d", i))
	}
	r.locked("free", time.Minute)
}

// Keys that were held once and never again do not stay in the index for ever.
func TestIndexIsTidied(t *testing.T) {
	server := redistest.Shared(t)
	r := newRig(t, server)
	const once = 300
	for i := range once {
		r.do(r.acquire(fmt.Sprintf("once%d", i), time.Minute))
	}
	r.clock.Add(time.Minute.Milliseconds())
	for range once {
		for _, key := range []string{"a", "b"} {
			r.locked(key, time.Minute)
		}
	}
	n, err := strconv.Atoi(server.Do(t, "ZCARD", r.cfg.Prefix+"@locks:t"))
	if err != nil || n > 10 {
		t.Errorf("%d keys are in the index (%v), and none is held", n, err)
	}
}

// A List looks at more keys than one script does.
func TestLongList(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	const live = stretch + 10
	for i := range 2 * live {
		ttl := time.Hour
		if i%2 == 0 {
			ttl = time.Minute
		}
		r.do(r.acquire(fmt.Sprintf("k%04d", i), ttl))
	}
	r.clock.Add(time.Minute.Milliseconds())
	for _, limit := range []int{live - 1, live, lock.MaxList} {
		page, err := r.store.List(testContext(t), "t", "", limit)
		if err != nil || len(page) != min(limit, live) {
			t.Fatalf("a page of %d has %d (%v), want %d", limit, len(page), err, min(limit, live))
		}
		for i, l := range page {
			if l.Key != fmt.Sprintf("k%04d", 2*i+1) {
				t.Fatalf("entry %d is %s", i, l.Key)
			}
		}
	}
}

// Tokens are exact up to the last, and then end.
func TestLastToken(t *testing.T) {
	server := redistest.Shared(t)
	r := newRig(t, server)
	r.locked("a", time.Minute)
	server.Do(t, "HSET", r.cfg.Prefix+"@lock:t:a", "token", itoa(lock.MaxToken-2))
	for _, want := range []int64{lock.MaxToken - 1, lock.MaxToken} {
		if l := r.locked("a", time.Minute); l.Token != want {
			t.Errorf("token %d, want %d", l.Token, want)
		}
	}
	if l, err := r.store.Do(testContext(t), r.acquire("a", time.Minute)); !errors.Is(err, lock.ErrTokensUsedUp) {
		t.Errorf("after the last token: %+v, %v", l, err)
	}
}

func TestLongestTerm(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	s := r.open(r.cfg, Options{MaxTTL: time.Minute})
	for ttl, want := range map[time.Duration]error{time.Minute: nil, time.Minute + time.Millisecond: lock.ErrInvalid} {
		if _, err := s.Do(testContext(t), r.acquire(ttl.String(), ttl)); !errors.Is(err, want) {
			t.Errorf("a term of %v: %v", ttl, err)
		}
	}
	for _, bad := range []time.Duration{-1, time.Millisecond, lock.MaxTTL + 1, time.Hour + 1} {
		if s, err := open(t, r.cfg, Options{MaxTTL: bad}); err == nil {
			s.Close()
			t.Errorf("MaxTTL %v was taken", bad)
		}
	}
}

func TestUnfitServers(t *testing.T) {
	refused := func(cfg redisconn.Config, words string) {
		t.Helper()
		s, err := open(t, cfg, Options{})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("the error is %v, want one with %q", err, words)
		}
	}
	refused(redistest.New(t, "--maxmemory-policy", "allkeys-lru").Config(), "noeviction")
	server := redistest.Shared(t)
	cfg := server.Config()
	server.Do(t, "HSET", cfg.Prefix+"@lock", "format", "2")
	refused(cfg, "format 2")
}

// The user needs these rights, and no other.
func TestRights(t *testing.T) {
	server := redistest.New(t)
	words := []string{"ACL", "SETUSER", "kazahana", "reset", "on", ">secret", "~{kazahana}:*", "&{kazahana}:@lock:*"}
	fixed := len(words) - 1 // the channel is a right that can be missing too
	for word := range strings.FieldsSeq(commands) {
		words = append(words, "+"+word)
	}
	set := func(words []string) {
		args := make([]any, len(words))
		for i, w := range words {
			args[i] = w
		}
		server.Do(t, args...)
	}
	set(words)
	cfg, _, err := redisconn.ParseURL("redis+unix://kazahana:secret@"+server.Sock, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, cfg: cfg}
	r.store = r.open(cfg, Options{})
	r.init()
	tokens, err := r.store.Notify(testContext(t), "t", "a")
	if err != nil {
		t.Fatal(err)
	}
	q := r.acquire("a", time.Minute)
	r.do(q)
	r.do(q)
	r.do(r.request(lock.Renew, "a", "alice", time.Minute))
	r.do(r.request(lock.Release, "a", "alice", 0))
	receive(t, tokens)
	if _, err := r.store.List(testContext(t), "t", "", 1); err != nil {
		t.Error(err)
	}
	page, err := os.ReadFile("../../../docs/providers/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	if rule := "'~{kazahana}:*' '&{kazahana}:@lock:*' +" + strings.ReplaceAll(commands, " ", " +") + " +select\n"; !strings.Contains(string(page), rule) {
		t.Errorf("docs/providers/redis.md does not show the rule %s", rule)
	}
	for i, word := range words[fixed:] {
		set(append(append([]string{}, words[:fixed+i]...), words[fixed+i+1:]...))
		bad, err := open(t, cfg, Options{})
		if err == nil {
			bad.Close()
			t.Errorf("without %s it was opened", word)
		}
	}
}

// A setting that is changed under a running store is noticed, though most
// scripts do not look.
func TestPolicyChangedLater(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	r.locked("a", time.Minute)
	server.Do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	redistest.Eventually(t, "refused", func() error {
		_, err := r.store.Do(testContext(t), r.acquire("a", lock.MinTTL))
		if err == nil || !strings.Contains(err.Error(), "noeviction") {
			return fmt.Errorf("the error is %v", err)
		}
		return nil
	})
	// It stays refused: a refusal is no look that found all well.
	for range 3 {
		if _, err := r.store.Do(testContext(t), r.acquire("a", lock.MinTTL)); err == nil || !strings.Contains(err.Error(), "noeviction") {
			t.Errorf("the error is %v", err)
		}
	}
	server.Do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	r.clock.Add(time.Minute.Milliseconds())
	r.locked("a", time.Minute)
}
