package child

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
)

// A flood of one signal while nobody reads costs no other signal.
func TestSignalsAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw, out, done := make(chan os.Signal), make(chan syscall.Signal), make(chan struct{})
		go merge(raw, out, done)
		defer close(done)
		for range 2 * LastSignal {
			raw <- syscall.SIGWINCH
		}
		raw <- syscall.SIGTERM
		if first, second := <-out, <-out; first != syscall.SIGWINCH || second != syscall.SIGTERM {
			t.Errorf("%v and %v are passed on", first, second)
		}
		synctest.Wait()
		select {
		case more := <-out:
			t.Errorf("%v is passed on again", more)
		default:
		}
	})
}
