package lazy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hanging is something that opens when it is let go, even after its context ends.
type hanging struct {
	tries, closed atomic.Int32
	let           chan struct{}
}

func (h *hanging) value() *Value[int] {
	return New("x", func(context.Context) (int, error) {
		n := h.tries.Add(1)
		<-h.let
		return int(n), nil
	}, func(int) error {
		h.closed.Add(1)
		return nil
	})
}

// A caller goes its way when its time is up, and another one waits for the same
// attempt: what hangs is not asked twice.
func TestHangingOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{let: make(chan struct{})}
		v := h.value()
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			begun := time.Now()
			if _, err := v.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the error is %v", err)
			}
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			cancel()
		}
		if _, ok := v.Ready(); ok {
			t.Error("it is ready")
		}
		got := make(chan int)
		go func() {
			n, err := v.Get(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- n
		}()
		synctest.Wait()
		close(h.let)
		if n := <-got; n != 1 || h.tries.Load() != 1 {
			t.Errorf("got %d after %d tries", n, h.tries.Load())
		}
		if err := v.Close(); err != nil || h.closed.Load() != 1 {
			t.Errorf("Close: %v, closed %d times", err, h.closed.Load())
		}
		if _, err := v.Get(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		if err := v.Close(); err != nil || h.closed.Load() != 1 {
			t.Errorf("closed twice: %v, %d", err, h.closed.Load())
		}
	})
}

// Close waits a moment for what hangs, and it is closed when it has opened.
func TestCloseWhileItHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{let: make(chan struct{})}
		v := h.value()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := v.Get(ctx); err == nil {
			t.Error("it did not hang")
		}
		begun := time.Now()
		if err := v.Close(); err == nil || time.Since(begun) != closeWait {
			t.Errorf("Close: %v after %v", err, time.Since(begun))
		}
		close(h.let)
		synctest.Wait()
		if h.closed.Load() != 1 {
			t.Error("it stays open")
		}
	})
}

// An attempt that failed is not the last one.
func TestOpenedAgain(t *testing.T) {
	fail := errors.New("not now")
	tries := 0
	v := New("x", func(context.Context) (string, error) {
		if tries++; tries == 1 {
			return "", fail
		}
		return "open", nil
	}, func(string) error { return nil })
	if _, err := v.Get(t.Context()); !errors.Is(err, fail) {
		t.Errorf("the first time: %v", err)
	}
	for range 2 {
		if s, err := v.Get(t.Context()); s != "open" || err != nil {
			t.Errorf("then: %q, %v", s, err)
		}
	}
	if tries != 2 {
		t.Errorf("%d tries", tries)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// hangsOnce is a value with a first attempt to open that does not end by itself.
func hangsOnce() *Value[int] {
	tries := 0
	return New("x", func(ctx context.Context) (int, error) {
		if tries++; tries == 1 {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		return tries, nil
	}, func(int) error { return nil })
}

// A caller without a deadline does not keep the others for ever.
func TestCallerWithoutADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := hangsOnce()
		first, cancel := context.WithCancel(t.Context())
		go v.Get(first)
		synctest.Wait()
		cancel()
		later, end := context.WithTimeout(t.Context(), 2*attemptTimeout)
		defer end()
		if n, err := v.Get(later); n != 2 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// A caller that waits for another caller's attempt keeps its own deadline.
func TestPatientCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := hangsOnce()
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := v.Get(impatient); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("impatient: %v", err)
			}
		})
		synctest.Wait()
		all.Go(func() {
			if n, err := v.Get(t.Context()); n != 2 || err != nil {
				t.Errorf("patient: %d, %v", n, err)
			}
		})
		all.Wait()
	})
}

func TestOpenedValue(t *testing.T) {
	closed := false
	v := Opened("seven", 7, func(int) error { closed = true; return nil })
	if n, err := v.Get(t.Context()); n != 7 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, ok := v.Ready(); n != 7 || !ok {
		t.Errorf("ready: %d, %v", n, ok)
	}
	if err := v.Close(); err != nil || !closed {
		t.Errorf("%v, closed %v", err, closed)
	}
	if _, err := v.Get(t.Context()); !errors.Is(err, ErrClosed) || err.Error() != "seven: closed" {
		t.Errorf("after the end: %v", err)
	}
}
