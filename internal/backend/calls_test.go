package backend

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// stuck is a store that holds calls until they are let through.
type stuck struct {
	record.Store
	under atomic.Int64 // calls
	end   chan struct{}
}

func (s *stuck) Read(ctx context.Context, _ record.Ask) (record.View, error) {
	s.under.Add(1)
	<-s.end
	s.under.Add(-1)
	return record.View{}, ctx.Err()
}

// However many calls come, a store has a bounded number at a time, and those for the upkeep of
// locks beside them at once.
func TestCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := &stuck{end: make(chan struct{})}
		s := newBoundedCalls(below)
		var all sync.WaitGroup
		ask := func(ctx context.Context) {
			all.Go(func() {
				if _, err := s.Read(ctx, record.Ask{}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for range callsAtOnce + 10 {
			ask(t.Context())
		}
		if n := below.under.Load(); n != callsAtOnce {
			t.Errorf("%d calls are under way, want %d", n, callsAtOnce)
		}
		ask(record.Upkeep(t.Context()))
		if n := below.under.Load(); n != callsAtOnce+1 {
			t.Errorf("%d calls are under way: one for the upkeep waits", n)
		}
		close(below.end)
		all.Wait()
		if len(s.under) != 0 {
			t.Errorf("%d calls are under way at the end", len(s.under))
		}
	})
}

// A call that is out of time while it waits was not made, and the error says so.
func TestCallsThatWaitTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBoundedCalls(nil)
		for range callsAtOnce {
			s.under <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, ask := range []func() error{
			func() error { _, err := s.Change(ctx, record.Ask{}, nil); return err },
			func() error { _, err := s.List(ctx, "", "", 1); return err },
			func() error { _, err := s.Read(ctx, record.Ask{}); return err },
		} {
			if err := ask(); !errors.Is(err, record.ErrCrowded) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the error is %v", err)
			}
		}
	})
}
