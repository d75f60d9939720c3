package guard

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"
)

// Ahead notices requests that a client sends before it has the answer to the one before.
// Connections that do so take turns, a request each: the runtime would let each of hundreds go
// on for 10 ms. A client that waits for its answers takes no such turn, which could be a long
// wait: the runtime looks at goroutines that have yielded when it has no others, or at one in 61.
type Ahead struct {
	awaited atomic.Bool
	row     int
}

// atOnceRead is how long a read takes at most of what is there already. It is less than a client
// needs to get an answer and send the next request.
const atOnceRead = 20 * time.Microsecond

// few is how many requests have a turn together. A client that calls again as soon as it has an
// answer may seem to have sent ahead once or twice, if this process was kept from reading.
const few = 4

// Read reads from the connection of the requests.
func (a *Ahead) Read(from io.Reader, b []byte) (int, error) {
	began := time.Now()
	n, err := from.Read(b)
	if n > 0 && time.Since(began) > atOnceRead {
		a.awaited.Store(true)
	}
	return n, err
}

// begin is called when a request begins, and lets others go first if the server has not waited
// for it.
func (a *Ahead) begin() {
	if a.awaited.Load() {
		a.row = 0
	} else if a.row++; a.row%few == 0 {
		runtime.Gosched()
	}
}

// end is called when a request has been handled: what comes before its answer is sent ahead.
func (a *Ahead) end() { a.awaited.Store(false) }

// InTurn lets connections that have sent requests ahead take turns. of finds the one that reads
// the connection of a request.
func InTurn(next http.Handler, of func(context.Context) *Ahead) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := of(r.Context())
		a.begin()
		defer a.end()
		next.ServeHTTP(w, r)
	})
}
