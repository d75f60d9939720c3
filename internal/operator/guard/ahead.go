package guard

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/turnstile"
)

// Ahead notices requests that a client sends before it has the answer to the one before.
// Connections that do so take turns, a request each: the runtime would let each of hundreds go
// on for 10 ms. A client that waits for its answers takes no such turn: the line may be long.
//
// A turn lasts until the answer has been sent, since threads that send compete for the processor.
type Ahead struct {
	Peer any // comparable: peers take turns, however many connections each has

	read    atomic.Bool               // something was read since the last answer was made
	awaited atomic.Bool               // and the read had to wait
	row     int                       // how much it seems to send ahead, up to few
	turn    *time.Timer               // ends it; nil: it has none
	line    *turnstile.Turnstile[any] // nil: that of the process
}

// atOnceRead is how long a read takes at most of what is there already. It is less than a client
// needs to get an answer and send the next request.
const atOnceRead = 20 * time.Microsecond

// few is by how many more requests have been there at once than were awaited before each takes a turn.
// A client that calls again as soon as it has an answer may now and then seem to have sent ahead, if
// this process was kept from reading. A request that was read together with the one before takes a
// turn in any case.
const few = 4

// turnTime is how long others wait at most for the request whose turn it is: it may be waiting for
// its peer, a lock or a disk.
const turnTime = time.Millisecond

// line is where requests that were sent ahead wait for their turns: of all servers of the process,
// since these share the runtime's queue. In that queue, a goroutine that answers somebody else would
// be behind all of them.
var line = turnstile.New[any](1)

func (a *Ahead) enter() { _ = cmp.Or(a.line, line).Enter(context.Background(), a.Peer) } // which has no end

// leave gives the next turn. Before that, all go first that are in the runtime's queue.
func (a *Ahead) leave() {
	runtime.Gosched()
	cmp.Or(a.line, line).Leave()
}

// Read reads from the connection of the requests.
func (a *Ahead) Read(from io.Reader, b []byte) (int, error) {
	began := time.Now()
	n, err := from.Read(b)
	if n > 0 {
		a.read.Store(true)
		if time.Since(began) > atOnceRead {
			a.awaited.Store(true)
		}
	}
	return n, err
}

// begin is called when a request begins, and lets others go first if the server has not waited
// for it.
func (a *Ahead) begin() {
	switch {
	case a.awaited.Load():
		a.row = max(a.row-1, 0)
	case a.read.Load():
		a.row = min(a.row+1, few)
	default:
		a.row = few
	}
	if a.row == few {
		a.enter()
		a.turn = time.AfterFunc(turnTime, a.leave)
	}
}

// end is called when a request has been handled: what comes before its answer is sent ahead.
func (a *Ahead) end() {
	a.read.Store(false)
	a.awaited.Store(false)
}

// Changed is told of the connection's states: after StateIdle and StateClosed all is sent.
func (a *Ahead) Changed(to http.ConnState) {
	if (to == http.StateIdle || to == http.StateClosed) && a.turn != nil {
		if a.turn.Stop() {
			a.leave()
		}
		a.turn = nil
	}
}

// InTurn lets connections that have sent requests ahead take turns. of finds the one that reads
// the connection of a request. The server's ConnState calls its Changed, or each turn takes turnTime.
func InTurn(next http.Handler, of func(context.Context) *Ahead) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := of(r.Context())
		a.begin()
		defer a.end()
		next.ServeHTTP(w, r)
	})
}
