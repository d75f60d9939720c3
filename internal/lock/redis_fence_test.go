package lock_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// A server that knows nothing may have known everything: it grants nothing for
// as long as any lease lasts that it may have granted.
func TestUnknownServerIsFenced(t *testing.T) {
	server := redistest.New(t)
	r := newOnRedis(t, server)
	before := r.locked("a", time.Hour)
	for what, o := range map[string]time.Duration{"default": 0, "shorter": time.Hour} {
		r.clock.Add(1000)
		server.Do(t, "FLUSHALL")
		r.store = r.open(r.cfg, o)
		want := lock.MaxTTL
		if what == "shorter" {
			want = time.Hour
		}
		r.fencedFor(want, whyMissing)
		if l := r.locked("a", time.Minute); l.Token <= before.Token {
			t.Errorf("%s: token %d after %d, which was forgotten", what, l.Token, before.Token)
		}
	}
	// A client that allows longer terms may have been granted one of its own.
	r.store = r.open(r.cfg, time.Hour)
	server.Do(t, "FLUSHALL")
	from := r.clock.Load()
	r.fenced(from+time.Hour.Milliseconds(), whyMissing)
	r.store = r.open(r.cfg, 0)
	r.fenced(from+lock.MaxTTL.Milliseconds(), whyMissing)
}

func TestRestartWithoutPersistence(t *testing.T) {
	server := redistest.New(t)
	r := newOnRedis(t, server)
	r.do(r.acquire("a", time.Hour))
	server.Restart()
	r.fencedFor(lock.MaxTTL, whyMissing)
}

// What the server still knows goes on; nothing is granted until the longest
// term that it ever granted is over.
func TestRestartWithPersistence(t *testing.T) {
	server := persistent(t)
	r := newOnRedis(t, server)
	first := r.locked("free", time.Minute)
	acquire := r.acquire("held", 3*time.Minute)
	l := r.do(acquire)
	server.Restart()
	r.fenced(r.clock.Load()+4*time.Minute.Milliseconds(), whyChanged) // rounded up
	r.held("held")
	if again := r.do(acquire); !again.Repeated || again.Token != l.Token {
		t.Errorf("repeated, it answers %+v", again)
	}
	renew := r.request(lock.Renew, "held", "alice", 3*time.Minute)
	r.do(renew)
	r.do(renew)
	r.do(r.request(lock.Release, "held", "alice", 0))
	r.fencedFor(4*time.Minute, whyChanged)
	for key, before := range map[string]lock.Lease{"free": first, "held": l} {
		if next := r.locked(key, time.Minute); next.Token <= before.Token || next.Token <= startMS*1000 {
			t.Errorf("%s: token %d after %d", key, next.Token, before.Token)
		}
	}
	next := r.locked("free", time.Minute) // from then on one by one
	if last := r.locked("free", time.Minute); last.Token != next.Token+1 {
		t.Errorf("token %d after %d", last.Token, next.Token)
	}
}

// A renewal can make a term longer than any acquire asked for.
func TestRenewalsCountForTheFence(t *testing.T) {
	server := persistent(t)
	r := newOnRedis(t, server)
	r.do(r.acquire("a", time.Minute))
	r.do(r.request(lock.Renew, "a", "alice", 30*time.Minute))
	server.Restart()
	r.fencedFor(32*time.Minute, whyChanged)
}

func TestFailoverFence(t *testing.T) {
	for name, test := range map[string]struct{ fence, want time.Duration }{
		"none": {0, 0}, "a minute": {time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			server := persistent(t)
			r := newOnRedis(t, server, func(c *redisconn.Config) { c.FailoverFence, c.FailoverFenceSet = test.fence, true })
			before := r.locked("a", time.Hour)
			server.Restart()
			if test.want > 0 {
				r.fencedFor(test.want, whyChanged)
			}
			if l := r.locked("a", time.Hour); l.Token <= before.Token {
				t.Errorf("token %d after %d", l.Token, before.Token)
			}
			// It is about servers that changed, not about a record that is missing,
			// and ends no fence that is there for that.
			server.Do(t, "FLUSHALL")
			until := r.clock.Load() + lock.MaxTTL.Milliseconds()
			r.fenced(until, whyMissing)
			server.Restart()
			r.fenced(until, whyMissing)
		})
	}
}

// The new server's clock is behind the old one's: the fence is counted from
// where the old one had come, and tokens grow.
func TestFailoverToASlowClock(t *testing.T) {
	server := persistent(t)
	r := newOnRedis(t, server)
	r.clock.Add(time.Hour.Milliseconds())
	l := r.locked("a", time.Minute)
	server.Restart()
	r.clock.Add(-time.Hour.Milliseconds())
	// Until the clock has come where it was, it stands still.
	_, err := r.store.Do(testContext(t), r.acquire("fence", time.Minute))
	var fenced *lock.FencedError
	if !errors.As(err, &fenced) || fenced.UntilMS != l.AcquiredMS+time.Minute.Milliseconds() {
		t.Errorf("the error is %v, want a fence until %d", err, l.AcquiredMS+time.Minute.Milliseconds())
	}
	r.init()
	if next := r.locked("a", time.Minute); next.Token <= l.Token {
		t.Errorf("token %d after %d", next.Token, l.Token)
	}
	if next := r.locked("never held", time.Minute); next.Token <= l.Token {
		t.Errorf("token %d on another key after %d: a key that was lost could have had it", next.Token, l.Token)
	}
}

func TestInit(t *testing.T) {
	server := persistent(t)
	r := newOnRedis(t, server)
	before := r.locked("a", time.Hour)
	for range 2 {
		server.Restart()
		r.init() // the operator knows that nothing was lost
		l := r.locked("a", time.Hour)
		if l.Token <= before.Token {
			t.Errorf("token %d after %d", l.Token, before.Token)
		}
		before = l
	}
	server.Restart()
	r.fenced(r.clock.Load()+64*time.Minute.Milliseconds(), whyChanged)
	r.init()
	r.init() // on a store in use
	r.locked("a", time.Hour)
}

// TestFailoverRepeatsNoToken: the replica lacks the last leases of a key, a whole
// key, and a release when it becomes the primary.
func TestFailoverRepeatsNoToken(t *testing.T) {
	primary, replica := redistest.Pair(t)
	r := newOnRedis(t, primary)
	highest := map[string]int64{}
	note := func(l lock.Lease) {
		t.Helper()
		if l.Token <= highest[l.Key] {
			t.Errorf("%s: token %d after %d", l.Key, l.Token, highest[l.Key])
		}
		highest[l.Key] = l.Token
	}
	note(r.locked("known", time.Minute))
	known := r.do(r.acquire("released", time.Minute))
	redistest.InStep(t, primary)
	redistest.CutOff(t, primary, replica)
	r.clock.Add(1000)
	for range 5 {
		note(r.locked("known", time.Minute))
		note(r.locked("lost", time.Minute))
	}
	lost := r.do(r.acquire("lost", time.Minute)) // held by somebody
	note(lost)
	r.do(r.request(lock.Release, "released", "alice", 0))
	primary.Kill()
	replica.Signal(syscall.SIGCONT)
	replica.Promote()

	r.store = r.on(replica)
	r.held("released") // what is known counts on
	if _, err := r.store.Do(testContext(t), r.request(lock.Renew, "lost", "alice", time.Minute)); !errors.Is(err, lock.ErrNotOwned) {
		t.Errorf("a lease that was lost is renewed: %v", err)
	}
	r.fencedFor(time.Minute, whyChanged)
	if r.clock.Load() < lost.ExpiresMS {
		t.Error("the fence is shorter than a lease that was lost")
	}
	for range 3 {
		note(r.locked("known", time.Minute))
		note(r.locked("lost", time.Minute))
	}
	highest["released"] = known.Token
	note(r.locked("released", time.Minute))
}

// The same process is the primary, then a replica, then the primary again: its
// run_id has not changed, and yet it has taken over the data of another.
func TestFailoverBack(t *testing.T) {
	a, b := redistest.Pair(t)
	r := newOnRedis(t, a)
	r.locked("a", time.Minute)
	redistest.InStep(t, a)
	redistest.CutOff(t, a, b)
	lost := r.locked("lost", time.Minute)
	port := a.Port
	a.Do(t, "CONFIG", "SET", "port", redistest.FreePort(t)) // b must not come back to it
	b.Signal(syscall.SIGCONT)
	b.Promote()
	a.Do(t, "CONFIG", "SET", "port", port)
	a.Follow(b)
	a.Promote()
	r.clock.Add(1000)
	if _, err := r.store.Get(testContext(t), "t", "lost"); !errors.Is(err, lock.ErrNotFound) {
		t.Fatalf("nothing was lost: %v", err)
	}
	r.fencedFor(time.Minute, whyChanged)
	if l := r.locked("lost", time.Minute); l.Token <= lost.Token {
		t.Errorf("token %d after %d", l.Token, lost.Token)
	}
}

// Only the store's record is gone: those of locks count on.
func TestLostStoreRecord(t *testing.T) {
	server := redistest.New(t)
	r := newOnRedis(t, server)
	before := r.locked("a", time.Minute)
	r.do(r.acquire("held", 10*time.Hour))
	server.Do(t, "DEL", r.cfg.Prefix+"@rec")
	r.clock.Add(-time.Hour.Milliseconds())
	r.held("held")
	r.fencedFor(lock.MaxTTL, whyMissing)
	r.clock.Add(-2 * lock.MaxTTL.Milliseconds())
	r.init()
	if l := r.locked("a", time.Minute); l.Token <= before.Token {
		t.Errorf("token %d after %d", l.Token, before.Token)
	}
}

// The first lease of all may be the one that was lost.
func TestNothingGrantedYet(t *testing.T) {
	server := persistent(t)
	r := newOnRedis(t, server)
	server.Restart()
	r.fencedFor(lock.MaxTTL, whyChanged)
}

// Another failover does not shorten the fence of the one before.
func TestFailoverDuringAFence(t *testing.T) {
	server := persistent(t)
	r := newOnRedis(t, server)
	r.locked("a", time.Hour)
	server.Restart()
	until := r.clock.Load() + 64*time.Minute.Milliseconds()
	r.fenced(until, whyChanged)
	server.Restart()
	trusting := r.cfg
	trusting.FailoverFenceSet = true
	r.store = r.open(trusting, 0)
	r.fenced(until, whyChanged)
	r.store = r.on(server)
	server.Restart()
	r.clock.Add(time.Minute.Milliseconds())
	r.fenced(until+time.Minute.Milliseconds(), whyChanged)
}
