package backend

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// slow is a store whose calls wait until they are let through.
type slow struct {
	record.Store
	began chan string // the callers, as their calls begin
	end   chan struct{}
}

func (s *slow) Read(ctx context.Context, _ record.Ask) (record.View, error) {
	s.began <- record.Caller(ctx)
	<-s.end
	return record.View{}, ctx.Err()
}

func newSlow(atOnce int) (*slow, *fairRecords) {
	s := &slow{began: make(chan string, 1000), end: make(chan struct{})}
	return s, newFair(s, func() int { return atOnce })
}

// A caller with a hundred calls delays another by one of them, and urgent calls by none.
func TestCallersAreEqual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below, s := newSlow(2)
		ask := func(ctx context.Context) {
			go func() { _, _ = s.Read(ctx, record.Ask{}) }()
			synctest.Wait()
		}
		greedy, modest := record.By(t.Context(), "greedy"), record.By(t.Context(), "modest")
		for range 100 {
			ask(greedy)
		}
		for range 3 {
			ask(modest)
		}
		ask(record.Urgent(modest))
		ask(record.Urgent(greedy))
		var order []string
		for range 8 {
			below.end <- struct{}{}
			synctest.Wait()
		}
		for len(below.began) > 0 {
			order = append(order, <-below.began)
		}
		if want := []string{"greedy", "greedy", "modest", "greedy", "greedy", "modest", "greedy", "modest", "greedy", "modest"}; !slices.Equal(order[:10], want) {
			t.Errorf("the order was %v", order)
		}
		close(below.end)
	})
}

// A call whose context ends while it waits was not made, and leaves nothing behind.
func TestCallsThatWaitTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below, s := newSlow(1)
		done := make(chan error)
		go func() {
			_, err := s.Read(t.Context(), record.Ask{})
			done <- err
		}()
		synctest.Wait()
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
		below.end <- struct{}{}
		if err := <-done; err != nil || s.other.Waiting() != 0 {
			t.Errorf("%v; afterwards: %+v", err, s.other)
		}
	})
}
