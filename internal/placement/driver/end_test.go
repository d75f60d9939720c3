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
)

// What nobody has resolved for the time is passivated, and comes back.
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
		if n := len(a.Snapshot().Activations); n != 1 {
			t.Errorf("%d rooms are left, of which one was in use", n)
		}
		s.settled(a)
		a.stop()
	})
}

// A host whose process has not let go in time does not give its membership back:
// others wait for its end.
func TestMembershipOutlastsDeafProcess(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1", func(c *Config) { c.Executor = silent{} })
		a.SetKinds([]string{"room"})
		ready()
		_, _ = a.Resolve(t.Context(), room(1), time.Millisecond)
		a.stop()
		l, err := s.locks.Get(t.Context(), "t", membersPrefix+"a:1")
		if err != nil || l.State != lock.Active {
			t.Errorf("the membership is %+v, %v", l, err)
		}
	})
}

// silent is a process that never answers, not even that it was too late.
type silent struct{}

func (silent) Activate(placement.Key, placement.Record, time.Duration, func(string, error))  {}
func (silent) Passivate(placement.Key, placement.Record, time.Duration, func([]byte, error)) {}

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

// A crowd of commands is carried out by few.
func TestFewWorkers(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		slow := &slowStore{Store: s.locks}
		a := s.start("a:1", func(c *Config) { c.Locks = slow })
		ready()
		const crowd = 1000
		for i := range crowd {
			if _, err := a.Resolve(t.Context(), room(i), 0); !errors.Is(err, placement.ErrPending) {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := slow.most.Load(); n != maxCommands {
			t.Errorf("%d calls of the store at once, want %d", n, maxCommands)
		}
		for i := range crowd {
			if _, err := a.Resolve(t.Context(), room(i), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		a.stop()
	})
}

// slowStore takes a while, and counts how many it is asked for at once.
type slowStore struct {
	lock.Store
	now, most atomic.Int64
}

func (s *slowStore) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if r.Op == lock.Acquire && r.Key[:1] == "a" {
		s.most.Store(max(s.most.Load(), s.now.Add(1)))
		time.Sleep(100 * time.Millisecond)
		s.now.Add(-1)
	}
	return s.Store.Do(ctx, r)
}

// telling is a store that tells of changes in its own way.
type telling struct {
	lock.Store
	changes func(ctx context.Context, tenant, prefix string) (<-chan struct{}, error)
}

func (s telling) Changes(ctx context.Context, tenant, prefix string) (<-chan struct{}, error) {
	return s.changes(ctx, tenant, prefix)
}

// Where the store tells of members that come and go, nobody waits for the next
// look.
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
		if n := len(a.Snapshot().Members); n != 1 {
			t.Fatalf("%d members are known already", n)
		}
		tokens <- struct{}{}
		synctest.Wait()
		if n := len(a.Snapshot().Members); n != 2 {
			t.Errorf("%d members are known", n)
		}
		b.stop()
		a.stop()
	})
}

// Who asks right after the start waits until the host is ready; who asks one that
// stops does not.
func TestReadinessIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1")
		if _, err := a.Resolve(t.Context(), room(1), 0); !errors.Is(err, placement.ErrNotReady) {
			t.Errorf("without a wait: %v", err)
		}
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

// What has not begun at the stop does not begin, however slow the store is.
func TestStopBeginsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		slow := &slowStore{Store: s.locks}
		a := s.start("a:1", func(c *Config) { c.Locks = slow })
		ready()
		for i := range 10_000 {
			if _, err := a.Resolve(t.Context(), room(i), 0); !errors.Is(err, placement.ErrPending) {
				t.Fatal(err)
			}
		}
		began := time.Now()
		a.stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
		if n := len(must(s.locks.List(t.Context(), "t", "", lock.MaxList))(t)); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

// overtaken are records in which somebody else is faster, once.
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

// A resolve whose activation was overtaken by another host's asks again.
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
