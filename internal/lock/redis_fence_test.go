package lock_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

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
