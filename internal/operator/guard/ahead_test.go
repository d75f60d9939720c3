package guard

import (
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// late is a connection whose client takes some time to send.
type late struct{ io.Reader }

func (l late) Read(b []byte) (int, error) {
	time.Sleep(10 * atOnceRead)
	return len(b), nil
}

// A client that waits for its answers is served at once: only those whose requests were there
// before the server looked for them let others go first.
func TestAwaitedRequestsTakeNoTurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	yields := func(awaited bool) (n int) {
		a := &Ahead{}
		for range 100 * few {
			if awaited {
				if _, err := a.Read(late{}, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			var others atomic.Bool
			done := make(chan struct{})
			go func() { others.Store(true); close(done) }()
			a.begin()
			if others.Load() {
				n++
			}
			<-done
			a.end()
		}
		return n
	}
	if n := yields(false); n < 90 {
		t.Errorf("of 400 requests that were sent ahead %d let others go first, want 100", n)
	}
	if n := yields(true); n > 50 { // the runtime interrupts some on a busy machine
		t.Errorf("%d awaited requests let others go first", n)
	}
}
