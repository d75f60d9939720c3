package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
)

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(etcdtest.StartPatience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *rig) known(key string) known {
	r.Helper()
	k, err := r.store.read(testContext(r), r.store.pathsOf("t", key))
	if err != nil {
		r.Fatal(err)
	}
	return k
}

// leaseLeft is how many seconds an etcd lease has left, -1 when it is gone.
func (r *rig) leaseLeft(id clientv3.LeaseID) int64 {
	r.Helper()
	resp, err := r.store.conn.KV.TimeToLive(testContext(r), id)
	if err != nil {
		r.Fatal(err)
	}
	return resp.TTL
}

func (r *rig) leaseEnds(what string, id clientv3.LeaseID) {
	r.Helper()
	eventually(r.T, what, func() error {
		if n := r.leaseLeft(id); n >= 0 {
			return fmt.Errorf("it has %d s left", n)
		}
		return nil
	})
}

// No clock of a host lets it take what somebody holds, or hold what it does not.
func TestClocksDoNotMatter(t *testing.T) {
	for _, holder := range []time.Duration{-2 * time.Hour, 0, 2 * time.Hour} {
		for _, other := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
			t.Run(fmt.Sprint(holder, other), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				ahead(r.store, holder)
				q := r.request(lock.Acquire, "a", 10*time.Second)
				r.do(q)
				s := mustOpen(t, r.cfg)
				ahead(s, other)
				most := 12 * time.Second.Milliseconds()
				if held := r.held(s, "a"); held.RemainingMS < 1 || held.RemainingMS > most {
					t.Errorf("the lock is told to be held for %d ms", held.RemainingMS)
				}
				page, err := s.List(testContext(t), "t", "", 1)
				if err != nil || len(page) != 1 || page[0].RemainingMS < 1 || page[0].RemainingMS > most {
					t.Errorf("listed is %+v (%v)", page, err)
				}
				eventually(t, "some of the term has passed", func() error {
					if n := r.leaseLeft(r.known("a").lease); n > 8 {
						return fmt.Errorf("%d s are left", n)
					}
					return nil
				})
				for _, s := range []owned{r.store, s} { // also where the holder's clock has changed
					got, err := s.Do(testContext(t), q)
					if err != nil || !got.Repeated || got.RemainingMS < 1 {
						t.Fatalf("repeated: %+v, %v", got, err)
					}
					seen, err := s.Get(testContext(t), "t", "a")
					if err != nil || seen.State != lock.Active || seen.RemainingMS > 8000 || got.RemainingMS > 8000 {
						t.Errorf("9 s or more of an etcd lease of 11 s are left to %+v and %+v, %v", got, seen, err)
					}
				}
				// The end of the marker is the end of the lease, whatever clocks say.
				if _, err := s.conn.KV.Revoke(testContext(t), r.known("a").lease); err != nil {
					t.Fatal(err)
				}
				for _, s := range []owned{r.store, s} {
					if _, err := s.Do(testContext(t), r.request(lock.Renew, "a", time.Minute)); !errors.Is(err, lock.ErrExpired) {
						t.Errorf("a renewal after the end: %v", err)
					}
				}
				if _, err := s.Do(testContext(t), r.request(lock.Acquire, "a", time.Minute)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A lock that expires in the moment before it is renewed or released has expired,
// and one that expires in the moment before it is acquired can be.
func TestExpiryMeanwhile(t *testing.T) {
	for op, want := range map[lock.Op]error{lock.Renew: lock.ErrExpired, lock.Release: lock.ErrExpired, lock.Acquire: nil} {
		r := newRig(t)
		r.do(r.request(lock.Acquire, "a", time.Minute))
		ttl := time.Hour
		if op == lock.Release {
			ttl = 0
		}
		c := &change{Store: r.store.Store, Request: r.request(op, "a", ttl), paths: r.store.pathsOf("t", "a"), nonce: "n", known: r.known("a"), read: true}
		if _, err := r.store.conn.KV.Revoke(testContext(t), c.known.lease); err != nil {
			t.Fatal(err)
		}
		if op == lock.Acquire {
			c.read = false
		}
		l, err := again(testContext(t), r.store.Store, "a", c.try)
		c.discard(testContext(t))
		if !errors.Is(err, want) {
			t.Errorf("%v: %+v, %v, want %v", op, l, err, want)
		}
	}
}

// The etcd lease lasts a second longer than the term.
func TestEtcdLeases(t *testing.T) {
	r := newRig(t)
	for ttl, want := range map[time.Duration]int64{lock.MinTTL: 2, time.Minute: 61, time.Minute + 1e6: 62, lock.MaxTTL: 86401} {
		if got := seconds(ttl.Milliseconds()); got != want {
			t.Errorf("a term of %v has an etcd lease of %d s, want %d", ttl, got, want)
		}
	}
	r.do(r.request(lock.Acquire, "a", 20*time.Second))
	first := r.known("a").lease
	eventually(t, "some time has passed", func() error {
		if n := r.leaseLeft(first); n > 19 {
			return fmt.Errorf("%d s are left", n)
		}
		return nil
	})
	r.do(r.request(lock.Renew, "a", 20*time.Second))
	if k := r.known("a"); k.lease != first || r.leaseLeft(first) < 20 {
		t.Errorf("renewed, the etcd lease %x has %d s left, want %x to have 20", k.lease, r.leaseLeft(k.lease), first)
	}
	r.do(r.request(lock.Renew, "a", time.Hour))
	second := r.known("a").lease
	if second == first || r.leaseLeft(second) < 3500 {
		t.Errorf("renewed for an hour, the etcd lease has %d s left", r.leaseLeft(second))
	}
	r.leaseEnds("the etcd lease before", first)
	r.do(r.request(lock.Renew, "a", 5*time.Second))
	if n := r.leaseLeft(r.known("a").lease); n > 6 {
		t.Errorf("renewed for 5 s, the etcd lease has %d s left", n)
	}
	r.leaseEnds("the etcd lease before", second)
	last := r.known("a").lease
	r.do(r.request(lock.Release, "a", 0))
	r.leaseEnds("the released etcd lease", last)
}

// An etcd lease whose transaction came too late, or was never sent, ends.
func TestOrphans(t *testing.T) {
	r := newRig(t)
	newChange := func(ttl time.Duration) *change {
		return &change{Store: r.store.Store, Request: r.request(lock.Acquire, "a", ttl), paths: r.store.pathsOf("t", "a"), nonce: "n"}
	}
	late := newChange(time.Hour)
	id, err := late.leaseFor(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	late.read = true // of a lock that nobody held
	r.do(r.request(lock.Acquire, "a", time.Minute))
	_, err = again(testContext(t), r.store.Store, "a", late.try)
	var held *lock.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("the late acquire: %v", err)
	}
	late.discard(testContext(t))
	r.leaseEnds("the late one's", id)

	id, err = newChange(lock.MinTTL).leaseFor(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	r.leaseEnds("the one that was never used", id)
}

// A transaction whose answer was lost is sent once more: what the first did is
// what the call answers, or that nobody can tell.
func TestLostAnswer(t *testing.T) {
	for _, op := range []lock.Op{lock.Acquire, lock.Renew, lock.Release} {
		for _, requestID := range []string{"", "named"} {
			for _, outrun := range []bool{false, true} {
				t.Run(fmt.Sprint(op, requestID, outrun), func(t *testing.T) {
					r := newRig(t)
					ttl := time.Duration(0)
					if op != lock.Release {
						ttl = time.Minute
					}
					if op != lock.Acquire {
						r.do(r.request(lock.Acquire, "a", time.Minute))
					}
					q := r.request(op, "a", ttl)
					q.RequestID = requestID
					first := &change{Store: r.store.Store, Request: q, paths: r.store.pathsOf("t", "a"), nonce: "n", known: r.known("a"), read: true}
					second := *first
					second.tries = 1
					done, err := first.try(testContext(t))
					if err != nil {
						t.Fatal(err)
					}
					if outrun && op == lock.Release {
						r.do(r.request(lock.Acquire, "a", time.Minute))
					} else if outrun {
						r.do(r.request(lock.Renew, "a", time.Minute))
					}
					l, err := again(testContext(t), r.store.Store, "a", second.try)
					switch {
					case outrun && requestID == "":
						if !errors.Is(err, errOutrun) || lock.IsAnswer(err) {
							t.Errorf("%+v, %v, want errOutrun", l, err)
						}
					case err != nil || l.LeaseID != done.LeaseID || l.Token != done.Token || l.State != done.State || l.Repeated != outrun:
						t.Errorf("%+v, %v, want %+v", l, err, done)
					}
					if k := r.known("a"); k.Token != done.Token && !(outrun && op == lock.Release && k.Token == done.Token+1) {
						t.Errorf("it was carried out twice: %+v", k.State)
					}
				})
			}
		}
	}
}

// Tokens are counted one by one, and from the floor where a record was deleted,
// also in the moment in which somebody makes a new one.
func TestTokens(t *testing.T) {
	r := newRig(t)
	for want := int64(1); want <= 3; want++ {
		if l := r.locked("a"); l.Token != want {
			t.Errorf("token %d, want %d", l.Token, want)
		}
	}
	// By what was known before somebody else held it for a moment.
	late := &change{
		Store: r.store.Store, Request: r.request(lock.Acquire, "late", time.Minute), paths: r.store.pathsOf("t", "late"), nonce: "n", read: true,
	}
	r.locked("late")
	late.known = r.known("late")
	r.locked("late")
	if l, err := again(testContext(t), r.store.Store, "late", late.try); err != nil || l.Token != 3 {
		t.Errorf("%+v, %v, want token 3", l, err)
	}
	unseen := r.known("b")
	if l := r.locked("b"); l.Token != 1 {
		t.Errorf("token %d of a new lock", l.Token)
	}
	r.do(r.request(lock.Acquire, "held", lock.MaxTTL))
	s := mustOpen(t, r.cfg)
	ahead(s, lock.MaxTTL+lock.KeepIdle+time.Minute)
	if err := sweepAll(s); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b"} {
		if k := r.known(key); k.rev != 0 || k.floor != 3 {
			t.Errorf("%s: %+v", key, k)
		}
	}
	r.held(r.store, "held")
	q := r.request(lock.Acquire, "b", time.Minute)
	c := &change{Store: r.store.Store, Request: q, paths: r.store.pathsOf("t", "b"), nonce: "n", known: unseen, read: true}
	if l, err := again(testContext(t), r.store.Store, "b", c.try); err != nil || l.Token != 4 {
		t.Errorf("by what was known before the deletion: %+v, %v, want token 4", l, err)
	}
	// A record that was used since is not deleted.
	k := r.known("held")
	stale := k
	stale.rev--
	stale.markerRev = 0
	for _, k := range []known{k, stale} {
		k.markerRev = 0
		if rev, err := s.remove(testContext(t), s.pathsOf("t", "held"), k); err != nil || rev != 0 {
			t.Errorf("a held lock was removed: %d, %v", rev, err)
		}
	}
}

// Idle records go as new ones are made.
func TestSweepInPassing(t *testing.T) {
	r := newRig(t)
	for i := range 40 {
		r.locked(fmt.Sprintf("old%d", i))
	}
	s := mustOpen(t, r.cfg)
	ahead(s, 3*time.Hour)
	r.store = s
	made := 0
	eventually(t, "the old ones are deleted", func() error {
		for range sweepEvery {
			r.locked(fmt.Sprintf("new%d", made))
			made++
		}
		resp, err := s.conn.KV.Get(testContext(t), s.recordsOf("t")+"old", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && resp.Count > 0 {
			err = fmt.Errorf("there are %d", resp.Count)
		}
		return err
	})
}

func TestDamagedRecords(t *testing.T) {
	r := newRig(t)
	r.do(r.request(lock.Acquire, "a", time.Minute))
	p := r.store.pathsOf("t", "a")
	put := func(path, value string) {
		t.Helper()
		if _, err := r.store.conn.KV.Put(testContext(t), path, value); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(words string) {
		t.Helper()
		l, err := r.store.Do(testContext(t), r.request(lock.Acquire, "a", time.Minute))
		if err == nil || lock.IsAnswer(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v, %v, want an error with %q", l, err, words)
		}
	}
	put(p.marker, "{}")
	refused("changed by hand")
	for _, value := range []string{"", "{}", `{"t":0,"s":"ACTIVE","x":1}`, `{"t":1,"s":"EXPIRED","x":1}`, `{"t":"1","s":"ACTIVE","x":1}`} {
		put(p.record, value)
		refused("is damaged")
	}
	put(r.store.pathsOf("t", "b").floor, "-1")
	if l, err := r.store.Do(testContext(t), r.request(lock.Acquire, "b", time.Minute)); err == nil || !strings.Contains(err.Error(), "no token") {
		t.Errorf("%+v, %v", l, err)
	}
}

// Another client's release is told, and so is the end of a lease.
func TestNotify(t *testing.T) {
	r := newRig(t)
	other := mustOpen(t, r.cfg)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	wait := func(tokens <-chan struct{}, want bool) {
		t.Helper()
		select {
		case _, open := <-tokens:
			if open != want {
				t.Errorf("the channel is open: %v", open)
			}
		case <-time.After(etcdtest.StartPatience):
			t.Fatal("nothing is told")
		}
	}
	tokens, err := other.Notify(ctx, "t", "a")
	if err != nil {
		t.Fatal(err)
	}
	r.do(r.request(lock.Acquire, "a", time.Minute))
	r.do(r.request(lock.Renew, "a", time.Hour)) // moves the marker
	r.locked("b")
	if len(tokens) > 0 {
		t.Error("something else than a release is told")
	}
	r.do(r.request(lock.Release, "a", 0))
	wait(tokens, true)
	r.do(r.request(lock.Acquire, "a", lock.MinTTL))
	wait(tokens, true) // expired
	last, err := other.Notify(testContext(t), "t", "a")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	wait(tokens, false)
	if err := other.Store.Close(); err != nil {
		t.Error(err)
	}
	wait(last, false)
	if _, err := other.Notify(testContext(t), "t", "a"); err == nil {
		t.Error("a closed store notifies")
	}
}
