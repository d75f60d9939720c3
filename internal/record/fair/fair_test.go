package fair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

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

func newSlow(atOnce int) (*slow, *Store) {
	s := &slow{began: make(chan string, 1000), end: make(chan struct{})}
	return s, &Store{s, newQueue(atOnce), newQueue(atOnce)}
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
		if err := <-done; err != nil || s.other.free != 1 || s.other.callers.Len()+len(s.other.byName) != 0 {
			t.Errorf("%v; afterwards: %+v", err, s.other)
		}
	})
}

// However calls come, end and give up, the number of those under way is right, and a call
// waits only where the limit is reached.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 3
		q := newQueue(most)
		type call struct {
			cancel context.CancelFunc
			done   chan error
		}
		entered := make(chan *call, 1000)
		var waiting []*call
		under := 0
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				ctx, cancel := context.WithCancel(record.By(context.Background(), fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "caller"))))
				c := &call{cancel, make(chan error, 1)}
				go func() {
					if err := q.enter(ctx); err != nil {
						c.done <- err
						return
					}
					entered <- c
				}()
				if under < most {
					<-entered
					under++
					return
				}
				for settled := false; !settled; {
					q.mu.Lock()
					n := 0
					for at := q.callers.Front(); at != nil; at = at.Next() {
						n += at.Value.(*caller).calls.Len()
					}
					settled = n == len(waiting)+1
					q.mu.Unlock()
				}
				waiting = append(waiting, c)
			},
			"leave": func(t *rapid.T) {
				if under == 0 {
					return
				}
				under--
				if q.leave(); len(waiting) > 0 {
					next := <-entered
					under++
					waiting = slices.DeleteFunc(waiting, func(c *call) bool { return c == next })
				}
			},
			"give up": func(t *rapid.T) {
				if len(waiting) == 0 {
					return
				}
				i := rapid.IntRange(0, len(waiting)-1).Draw(t, "which")
				waiting[i].cancel()
				if err := <-waiting[i].done; !errors.Is(err, record.ErrCrowded) {
					t.Fatal(err)
				}
				waiting = slices.Delete(waiting, i, i+1)
			},
			"": func(t *rapid.T) {
				q.mu.Lock()
				defer q.mu.Unlock()
				if q.free != most-under || len(waiting) > 0 && under < most || q.callers.Len() != len(q.byName) || (q.callers.Len() == 0) != (len(waiting) == 0) {
					t.Fatalf("%d are under way and %d wait: %+v", under, len(waiting), q)
				}
			},
		})
	})
}
