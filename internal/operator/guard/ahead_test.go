package guard

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/turnstile"
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
			a.end()
			a.Changed(http.StateIdle)
			if others.Load() {
				n++
			}
			<-done
		}
		return n
	}
	const all = 100 * few
	if n := yields(false); n < all*9/10 {
		t.Errorf("of %d requests that were sent ahead %d let others go first", all, n)
	}
	if n := yields(true); n > all/8 { // the runtime interrupts some on a busy machine
		t.Errorf("%d awaited requests let others go first", n)
	}
}

// A request takes a turn if it was read together with the one before, or is one of many in a row that
// were there at once.
func TestWhichRequestsTakeTurns(t *testing.T) {
	for requests, want := range map[string]string{ // l: read late, q: quickly, n: nothing was read
		"llllll": "......", "lnnn": ".ttt", "lnnnlnnn": ".ttt.ttt", "lqlqlqlq": "........", "lqqqqq": "....tt", "lqqlqqqq": "......tt",
		"lqqqlqqqlqqq": "......tt.ttt",
	} {
		synctest.Test(t, func(t *testing.T) { // no time passes within a read, but for that of late
			a, got := &Ahead{line: turnstile.New[any](1)}, ""
			for _, r := range requests {
				switch r {
				case 'l':
					_, _ = a.Read(late{}, make([]byte, 1))
				case 'q':
					_, _ = a.Read(strings.NewReader("x"), make([]byte, 1))
				}
				a.begin()
				got += map[bool]string{false: ".", true: "t"}[a.turn != nil]
				a.end()
				a.Changed(http.StateIdle)
			}
			if got != want {
				t.Errorf("of %s take turns: %s, want %s", requests, got, want)
			}
		})
	}
}

// A goroutine that answers somebody else waits for a few requests that were sent ahead, not for all.
func TestRequestsSentAheadWaitInALine(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const clients, looks = 64, 200
	var requests atomic.Int64
	var stop atomic.Bool
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			a := &Ahead{}
			for !stop.Load() {
				a.begin()
				requests.Add(1)
				a.end()
				a.Changed(http.StateIdle)
			}
		})
	}
	for requests.Load() < few*clients {
		runtime.Gosched()
	}
	before := requests.Load()
	for range looks {
		runtime.Gosched()
	}
	if n := requests.Load() - before; n > looks*clients/8 {
		t.Errorf("a goroutine that let others go first %d times waited for %d requests", looks, n)
	}
	stop.Store(true)
	all.Wait()
}

// A turn ends when the answer has been sent, or the connection is closed, but in a millisecond in any
// case.
func TestTurnsEnd(t *testing.T) {
	for end, want := range map[http.ConnState]time.Duration{http.StateIdle: 0, http.StateClosed: 0, http.StateActive: turnTime} {
		synctest.Test(t, func(t *testing.T) {
			l := turnstile.New[any](1)
			first, second := &Ahead{line: l}, &Ahead{line: l}
			first.begin()
			took := make(chan time.Duration)
			go func() {
				began := time.Now()
				second.begin()
				took <- time.Since(began)
			}()
			synctest.Wait()
			first.end()
			first.Changed(end)
			if got := <-took; got != want {
				t.Errorf("%v: the second one waited for %v, and not for %v", end, got, want)
			}
			first.Changed(http.StateClosed) // which ends no turn of others
			third := make(chan struct{})
			go func() {
				(&Ahead{line: l}).begin()
				close(third)
			}()
			synctest.Wait()
			select {
			case <-third:
				t.Errorf("%v: the third one has its turn before the end of the second one's", end)
			default:
			}
			time.Sleep(3 * turnTime) // all turns end
			<-third
		})
	}
}

// Peers take turns, however many connections each has.
func TestPeersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := turnstile.New[any](1)
		(&Ahead{line: l}).begin()
		order := make(chan string, 100)
		for _, peer := range []string{"many", "many", "many", "many", "few"} {
			go func() {
				(&Ahead{Peer: peer, line: l}).begin()
				order <- peer
			}()
			synctest.Wait()
		}
		time.Sleep(10 * turnTime)
		if first, next := <-order, <-order; first != "many" || next != "few" {
			t.Errorf("the turns began with %s, %s", first, next)
		}
	})
}
