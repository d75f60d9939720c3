package turnstile

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// A caller with a hundred calls delays another by one of them.
func TestCallersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, began := New[string](2), make(chan string, 200)
		enter := func(name string, calls int) {
			for range calls {
				go func() {
					if err := gate.Enter(t.Context(), name); err != nil {
						t.Error(err)
					}
					began <- name
				}()
				synctest.Wait()
			}
		}
		enter("greedy", 100)
		enter("modest", 2)
		for range 4 {
			gate.Leave()
			synctest.Wait()
		}
		var order []string
		for len(began) > 0 {
			order = append(order, <-began)
		}
		if want := []string{"greedy", "greedy", "greedy", "modest", "greedy", "modest"}; !slices.Equal(order, want) {
			t.Errorf("the order was %v", order)
		}
		for gate.Waiting() > 0 {
			gate.Leave()
		}
	})
}

// However calls come, end and give up, the number of those under way is right, and a call
// waits only where the limit is reached, which may vary.
func TestTurnstile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := 3
		gate := Varying[int](func() int { return most })
		type call struct {
			cancel context.CancelFunc
			done   chan error
		}
		entered := make(chan *call, 1000)
		var waiting []*call
		under := 0
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				ctx, cancel := context.WithCancel(context.Background())
				c, name := &call{cancel, make(chan error, 1)}, rapid.IntRange(0, 3).Draw(t, "caller")
				go func() {
					if err := gate.Enter(ctx, name); err != nil {
						c.done <- err
						return
					}
					entered <- c
				}()
				if under < most && len(waiting) == 0 {
					<-entered
					under++
					return
				}
				for gate.Waiting() <= len(waiting) {
				}
				waiting = append(waiting, c)
			},
			"leave": func(t *rapid.T) {
				if under == 0 {
					return
				}
				under--
				gate.Leave()
				for len(waiting) > 0 && under < most {
					next := <-entered
					under++
					waiting = slices.DeleteFunc(waiting, func(c *call) bool { return c == next })
				}
			},
			"vary": func(t *rapid.T) { most = rapid.IntRange(1, 5).Draw(t, "most") },
			"give up": func(t *rapid.T) {
				if len(waiting) == 0 {
					return
				}
				i := rapid.IntRange(0, len(waiting)-1).Draw(t, "which")
				waiting[i].cancel()
				if err := <-waiting[i].done; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				waiting = slices.Delete(waiting, i, i+1)
			},
			"": func(t *rapid.T) {
				n := gate.Waiting()
				gate.mu.Lock()
				defer gate.mu.Unlock()
				if gate.under != under || n != len(waiting) || gate.callers.Len() != len(gate.byName) || (gate.callers.Len() == 0) != (n == 0) {
					t.Fatalf("%d are under way and %d wait: %+v", under, len(waiting), gate)
				}
			},
		})
	})
}
