package sqlitefile

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// An operation that should be first waits for the group under way, and for no other; nor do
// others share its commit.
func TestWriteFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string // of the worker
		step := func(name string) error { order = append(order, name); return nil }
		commits := false
		f := mustOpen(t, newPath(t), Options{At: func(at string) error {
			if commits && at == StepCommitted {
				return step("commit")
			}
			return nil
		}})
		commits = true
		hold := make(chan struct{})
		var all sync.WaitGroup
		write := func(do func(context.Context, func(*Tx) error) error, name string) {
			all.Go(func() {
				if err := do(t.Context(), func(tx *Tx) error { return step(name) }); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		last := func(ctx context.Context, op func(*Tx) error) error { return f.Write(ctx, op, nil) }
		write(func(ctx context.Context, op func(*Tx) error) error {
			return last(ctx, func(tx *Tx) error { <-hold; return op(tx) })
		}, "under way")
		write(last, "other")
		write(last, "other")
		write(f.WriteFirst, "first")
		write(f.WriteFirst, "first")
		close(hold)
		all.Wait()
		want := []string{"under way", "commit", "first", "first", "commit", "other", "other", "commit"}
		if !slices.Equal(order, want) {
			t.Errorf("the order is %v, want %v", order, want)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Operations that come first on end leave others their turn.
func TestWriteFirstOnEnd(t *testing.T) {
	f := mustOpen(t, newPath(t), Options{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for range 8 {
		all.Go(func() {
			for f.WriteFirst(ctx, func(*Tx) error { return nil }) == nil {
			}
		})
	}
	for range 10 {
		if err := f.Write(t.Context(), func(*Tx) error { return nil }, nil); err != nil {
			t.Error(err)
		}
	}
	stop()
}
