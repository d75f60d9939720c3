package locktest

import (
	"math"

	"github.com/kazahana/kazahana/internal/lock"
)

// Add records a call that was made elsewhere, for example in another process:
// when it was called and when it returned is on one clock for all calls. What is
// recorded by clients of the History is on another: add to a History of its own.
func (h *History) Add(client int, r lock.Request, called, returned int64, l lock.Lease, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := call{client: client, request: r, called: called, returned: returned, lease: l, err: err}
	if c.unknown() {
		c.returned = math.MaxInt64
	}
	h.calls = append(h.calls, c)
}
