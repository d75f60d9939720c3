package httplease

import (
	"errors"
	"sync"
)

// The leases of such an answer may be another client's.
var (
	errOtherRequest = errors.New("the answer has another requestId than the request: its leases are not used")
	errNoRequest    = errors.New("the answer has no requestId, and this server has repeated it before: its leases are not used")
)

// foreign is the knowledge about servers that others may have written: seed 000, section 4.2, does
// not ask them for a requestId.
type foreign struct {
	mu     sync.Mutex
	echoes map[string]bool // servers that have repeated a requestId, by URL
}

// repeats holds an answer to its request. A server that repeated a requestId once
// must always: without it, an answer could be an old one, or another client's, which
// a proxy has mixed up.
func (f *foreign) repeats(server, sent, received string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case received == "" && f.echoes[server]:
		return errNoRequest
	case received == "":
		return nil
	}
	f.echoes[server] = true
	if received != sent {
		return errOtherRequest
	}
	return nil
}
