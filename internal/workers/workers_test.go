package workers

import (
	"sync"
	"testing"
	"testing/synctest"
)

// All jobs are carried out, however many come at once, and so are those that come after the
// end. No more goroutines wait than may, and none after the end.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, many = 3, 10
		closing := make(chan struct{})
		w := New(most, closing)
		var mu sync.Mutex
		done := 0
		burst := func() {
			hold := make(chan struct{})
			for range many {
				w.Start(func() {
					<-hold
					mu.Lock()
					defer mu.Unlock()
					done++
				})
			}
			synctest.Wait()
			close(hold)
			synctest.Wait()
		}
		for i := 1; i <= 2; i++ {
			burst()
			if waiting := w.waiting.Load(); done != i*many || waiting != most {
				t.Errorf("after %d bursts: %d jobs were done, and %d goroutines wait", i, done, waiting)
			}
		}
		close(closing)
		synctest.Wait()
		w.Wait()
		burst()
		if waiting := w.waiting.Load(); done != 3*many || waiting != 0 {
			t.Errorf("after the end: %d jobs were done, and %d goroutines wait", done, waiting)
		}
	})
}

// A job that comes when a goroutine waits is carried out by that one.
func TestAWorkerIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closing, hold := make(chan struct{}), make(chan struct{})
		w := New(1, closing)
		w.Start(func() {})
		synctest.Wait()
		w.Start(func() { <-hold })
		synctest.Wait()
		if waiting := w.waiting.Load(); waiting != 0 {
			t.Errorf("%d goroutines wait beside the one with a job", waiting)
		}
		close(hold)
		close(closing)
		w.Wait()
	})
}
