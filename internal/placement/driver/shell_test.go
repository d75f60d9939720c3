package driver

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/record"
)

// An actor that was not resolved for the time is passivated, and comes back.
func TestIdle(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1", func(c *Config) { c.IdleTTL = time.Minute })
		ready()
		s.settled(a)
		for range 12 {
			time.Sleep(10 * time.Second)
			if _, err := a.Resolve(t.Context(), room(1), 0); err != nil {
				t.Fatal(err)
			}
		}
		if n := a.Overview().Total; n != 1 { // seed 004-19
			t.Errorf("%d rooms are left, of which one was in use", n)
		}
		s.settled(a)
		a.stop()
	})
}

// fencedStore refuses for a while, as Redis does after it may have forgotten.
type fencedStore struct {
	lock.Store
	on atomic.Bool
}

func (f *fencedStore) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if f.on.Load() && r.Op == lock.Acquire {
		return lock.Lease{}, &lock.FencedError{Reason: "it may have forgotten", UntilMS: 1}
	}
	return f.Store.Do(ctx, r)
}

// The end of a store's fence is waited for.
func TestFenceIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		fence := &fencedStore{Store: s.locks}
		a := s.start("a:1", func(c *Config) { c.Locks = fence })
		ready()
		fence.on.Store(true)
		var fenced *lock.FencedError
		if _, err := a.Resolve(t.Context(), room(1), time.Second); !errors.Is(err, placement.ErrPending) || !errors.As(err, &fenced) {
			t.Errorf("the error is %v", err)
		}
		time.AfterFunc(5*time.Second, func() { fence.on.Store(false) })
		if _, err := a.Resolve(t.Context(), room(1), time.Minute); err != nil {
			t.Error(err)
		}
		a.stop()
	})
}

// telling is a store that tells of changes in its own way.
type telling struct {
	lock.Store
	changes func(ctx context.Context, tenant, prefix string) (<-chan struct{}, error)
}

func (s telling) Changes(ctx context.Context, tenant, prefix string) (<-chan struct{}, error) {
	return s.changes(ctx, tenant, prefix)
}

// Where the store tells of members that come and go, no host waits for its next look.
func TestChangesAreHeard(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		tokens := make(chan struct{}, 1)
		a := s.start("a:1", func(c *Config) {
			c.Interval = time.Hour
			c.Locks = telling{c.Locks, func(ctx context.Context, tenant, prefix string) (<-chan struct{}, error) {
				if tenant != "t" || prefix != membersPrefix {
					t.Errorf("watched is %s of %s", prefix, tenant)
				}
				context.AfterFunc(ctx, func() { close(tokens) })
				return tokens, nil
			}}
		})
		ready() // a has looked because it has become a member
		ready()
		b := s.start("b:1")
		synctest.Wait()
		if n := len(a.Overview().Members); n != 1 {
			t.Fatalf("%d members are known already", n)
		}
		tokens <- struct{}{}
		synctest.Wait()
		if n := len(a.Overview().Members); n != 2 {
			t.Errorf("%d members are known", n)
		}
		b.stop()
		a.stop()
	})
}

// A caller that asks right after the start waits until the host is ready; a caller of a stopping
// host does not.
func TestReadinessIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		fence := &fencedStore{Store: s.locks}
		fence.on.Store(true) // no member yet
		a := s.start("a:1", func(c *Config) { c.Locks = fence })
		if _, err := a.Resolve(t.Context(), room(1), 0); !errors.Is(err, placement.ErrNotReady) {
			t.Errorf("without a wait: %v", err)
		}
		time.AfterFunc(5*time.Second, func() { fence.on.Store(false) })
		if _, err := a.Resolve(t.Context(), room(1), time.Minute); err != nil {
			t.Errorf("with a wait: %v", err)
		}
		a.stop()
		began := time.Now()
		if _, err := a.Resolve(t.Context(), room(1), time.Minute); !errors.Is(err, placement.ErrNotReady) || time.Since(began) > 0 {
			t.Errorf("after the stop, and %v: %v", time.Since(began), err)
		}
	})
}

// overtaken are records in which another host is faster, once.
type overtaken struct {
	storage.Storage
	once atomic.Bool
}

func (o *overtaken) Store(ctx context.Context, tenant string, key placement.Key, r placement.Record) error {
	if !o.once.Swap(true) {
		return placement.ErrStale
	}
	return o.Storage.Store(ctx, tenant, key, r)
}

// A resolve asks again after its activation was overtaken by another host's.
func TestOvertakenIsAskedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1", func(c *Config) { c.Records = &overtaken{Storage: s.records} })
		ready()
		if _, err := a.Resolve(t.Context(), room(1), time.Minute); err != nil {
			t.Error(err)
		}
		a.stop()
	})
}

// stuckStore does not answer for one room.
type stuckStore struct{ lock.Store }

func (s stuckStore) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if r.Key == activationPrefix+room(0).String() {
		<-ctx.Done()
		return lock.Lease{}, ctx.Err()
	}
	return s.Store.Do(ctx, r)
}

// A key keeps no other key waiting if its store does not answer.
func TestStuckCommandDelaysNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1", func(c *Config) { c.Locks = stuckStore{s.locks} })
		ready()
		_, _ = a.Resolve(t.Context(), room(0), 0)
		began := time.Now()
		if _, err := a.Resolve(t.Context(), room(1), time.Minute); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took >= commandTimeout {
			t.Errorf("room 1 has waited %v for room 0", took)
		}
		a.stop()
	})
}

// strayStore has the lock of one room go astray.
type strayStore struct{ lock.Store }

func (s strayStore) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if r.Key == activationPrefix+room(0).String() {
		return lock.Lease{}, &record.StrayError{Err: errors.New("404")}
	}
	return s.Store.Do(ctx, r)
}

// An activation ends at once if its lock goes astray, by the clock of the bubble.
func TestStrayEndsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1", func(c *Config) { c.Locks = strayStore{s.locks} })
		ready()
		began := time.Now()
		_, err := a.Resolve(t.Context(), room(0), time.Minute)
		if took := time.Since(began); !errors.As(err, new(*record.StrayError)) || took > 0 {
			t.Errorf("after %v: %v", took, err)
		}
		a.stop()
	})
}

type payerKey struct{}

func paidBy(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, payerKey{}, name)
}

// paid notes who pays for each record that is made, and fails removals.
type paid struct {
	storage.Storage
	removal error
	payers  chan any
}

func (p *paid) Store(ctx context.Context, tenant string, key placement.Key, r placement.Record) error {
	p.payers <- ctx.Value(payerKey{})
	return p.Storage.Store(ctx, tenant, key, r)
}

func (p *paid) Remove(ctx context.Context, tenant string, key placement.Key, r placement.Record, keep bool) error {
	if p.removal != nil {
		return p.removal
	}
	return p.Storage.Remove(ctx, tenant, key, r, keep)
}

// Who asks for a key pays for it, also where the record of the user before could not be
// removed.
func TestWhoAsksPays(t *testing.T) {
	for _, removal := range []error{nil, placement.ErrStale, placement.ErrInvalid, placement.ErrNoRoom} {
		bubble(t, func(t *testing.T, s *site) {
			records := &paid{Storage: s.records, removal: removal, payers: make(chan any, 10)}
			a := s.start("a:1", func(c *Config) {
				c.IdleTTL, c.Records = time.Minute, records
				c.Payer = func(placement.Key, int64) context.Context { return paidBy(context.Background(), "first") }
			})
			ready()
			for _, name := range []string{"first", "second"} {
				if _, err := a.Resolve(paidBy(t.Context(), name), room(1), time.Minute); err != nil {
					t.Fatalf("%v: %v", removal, err)
				}
				if got := <-records.payers; got != name {
					t.Errorf("%v: %v pays for what %s asked for", removal, got, name)
				}
				for len(records.payers) > 0 {
					<-records.payers // the second Store of an activation
				}
				time.Sleep(2 * time.Minute) // it ends for want of use
				synctest.Wait()
			}
			a.stop()
		})
	}
}
