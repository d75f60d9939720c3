package httplease

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap"
)

// The possible lacks of a lease server: seed 000, sections 4.2 and 7.1, asks for none of it.
const (
	lackRequestID = "requestId in the answer to POST /lease"
	lackReserved  = "reservedUntil in leases"
	lackVerify    = "POST /leases/verify"
)

// The leases of such an answer may be another client's.
var (
	errOtherRequest = errors.New("the answer has another requestId than the request: its leases are not used")
	errNoRequest    = errors.New("the answer has no requestId, and this server has repeated it before: its leases are not used")
)

// foreign is the knowledge about servers that others may have written.
type foreign struct {
	log *zap.Logger

	mu       sync.Mutex
	echoes   map[string]bool // servers that have repeated a requestId, by URL
	lacking  map[string]bool // the lacks that were seen; true when logged
	acquires int
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
		f.lack(lackRequestID)
		return nil
	}
	f.echoes[server] = true
	if received != sent {
		return errOtherRequest
	}
	return nil
}

// lacks notes something that a server lacks.
func (f *foreign) lacks(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lack(what)
}

// lack is lacks with mu held.
func (f *foreign) lack(what string) {
	if _, known := f.lacking[what]; !known {
		f.lacking[what] = false
	}
}

// acquired is called after an acquire. A lack is told after the first verify, which follows soon
// and may find more; without one, after the next acquire.
func (f *foreign) acquired() {
	f.mu.Lock()
	f.acquires++
	first := f.acquires == 1
	f.mu.Unlock()
	if !first {
		f.tell()
	}
}

// tell logs each lack once.
func (f *foreign) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	var news []string
	for _, what := range slices.Sorted(maps.Keys(f.lacking)) {
		if !f.lacking[what] {
			f.lacking[what] = true
			news = append(news, what)
		}
	}
	if len(news) > 0 {
		f.log.Info("the lease server lacks optional parts", zap.Strings("lacks", news))
	}
}
