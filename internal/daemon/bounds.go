package daemon

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/wire"
)

// This file is the daemon's defence against its clients: all that it refuses, and all that it
// closes for want of room. Memory is bounded, every wait ends, and there is room for others
// beside a client with a mistake. There is no other promise: clients that attack each other
// may slow each other down.
//
//	connections           max_connections, of which a user has max_connections_per_user, and a
//	                      process (peer PID) half: refused
//	a message             wire.MaxMessage: an error, the connection is closed
//	half messages and     a quarter of memory_limit: the connection that has not moved for the
//	unread answers        longest time is closed (memory.go)
//	answers that one      sendBuffer in the kernel and wire.HighWater here: the connection is
//	does not read         not read from until its peer reads
//	waiting requests      max_in_flight, of which a process has a quarter, and max_waiting of a
//	                      connection; with the IDs of batches a quarter of memory_limit: refused
//	upkeep of locks       upkeepOfConnection of a connection, beside the above, and as many as
//	                      max_in_flight in all: beyond that a connection waits with its request
//	locks                 holdsOfConnection that a connection holds: refused
//	watches of events     driver.MaxSubscribers in all: refused
//	silence               peerPatience for a peer that neither reads nor ends its message: closed
//	long answers          longWorkers make them: others wait their turn (long.go)
//
// Turns: the event loop, and the generator where requests wait for IDs, serve connections in a
// circle, one read or one share of a millisecond each.
const (
	memoryShare        = 4 // a quarter of memory_limit
	processShare       = 2 // a half of the connections
	waitingShare       = 4 // a quarter of the waiting requests
	upkeepOfConnection = 1024
	holdsOfConnection  = 1024
	longWorkers        = 4
	peerPatience       = 30 * time.Second
	// sendBuffer is how many bytes of a connection's answers the kernel takes before the peer
	// reads. The kernel counts about twice as much.
	sendBuffer = 16 << 10
	// waitingSize is the cost of a request that waits, with a goroutine or with the bytes
	// behind it, and rangeSize the cost of each of its IDs where there are more than
	// smallBatch: it may get them one at a time, and each is a range of its own in a slice that
	// grows.
	waitingSize = 16 << 10
	smallBatch  = 64
	rangeSize   = 32
)

// Limits are what of a Server's Config may change while it serves.
type Limits struct {
	AllowUIDs, AllowGIDs  []uint32
	MaxConnections        int
	MaxConnectionsPerUser int // 0: three quarters of MaxConnections
	MaxInFlight           int // requests that wait
	MaxWaiting            int // of these, of one connection; 0: all
	DrainTimeout          time.Duration
	MemoryLimit           int64 // bytes that the process may use; 0 is no limit
	Files                 int   // how many connections the limit of open files allows; 0 is no limit
}

// Keys that errors name.
const (
	keyConnections        = "max_connections"
	keyConnectionsPerUser = "max_connections_per_user"
	keyInFlight           = "max_in_flight"
	keyWaiting            = "max_waiting"
	keyMemory             = "memory_limit"
)

func (l *Limits) connections() (most int, key string) {
	if 0 < l.Files && l.Files < l.MaxConnections {
		return l.Files, refusals.OpenFiles
	}
	return l.MaxConnections, keyConnections
}

func (l *Limits) connectionsPerUser() int {
	all, _ := l.connections()
	if l.MaxConnectionsPerUser > 0 {
		return min(l.MaxConnectionsPerUser, all)
	}
	return all - all/4
}

// memory is how many bytes half messages and unread answers may have, and again requests that
// wait.
func (l *Limits) memory() int64 {
	if l.MemoryLimit <= 0 {
		return math.MaxInt64 / 2
	}
	return max(l.MemoryLimit/memoryShare, 2*wire.MaxMessage)
}

// places are taken and given back by any goroutine, without a lock.
type places struct{ taken atomic.Int64 }

// take takes n places, if no more than most are taken then. A caller that gets none takes none,
// not even for a moment: others would be refused for it.
func (p *places) take(n, most int64) bool {
	for {
		taken := p.taken.Load()
		if taken+n > most {
			return false
		}
		if p.taken.CompareAndSwap(taken, taken+n) {
			return true
		}
	}
}

func (p *places) give(n int64) { p.taken.Add(-n) }

// bounds are what all connections together have.
type bounds struct {
	limits   *atomic.Pointer[Limits]
	refusals *refusals.Counter

	waiting      places // requests
	waitingBytes places // of these requests
	upkeep       places // requests for the upkeep of locks, unless their connection waits with them

	mu          sync.Mutex // guards all below, and the fields of shares and accounts
	connections int        // admitted
	shares      map[sharer]*share
	peers       map[*account]struct{} // the accounts of connections by Unix sockets
	memory      memoryUse
}

func newBounds(limits *atomic.Pointer[Limits], counter *refusals.Counter) *bounds {
	b := &bounds{limits: limits, refusals: counter, shares: map[sharer]*share{}, peers: map[*account]struct{}{}}
	b.memory.room.L = &b.mu
	return b
}

// refuse is the error of all that is refused or closed because there is too much of it.
func (b *bounds) refuse(limit, format string, args ...any) *wire.Error {
	refusal := wire.Errorf(wire.CodeOverloaded, "%s: see %s", fmt.Sprintf(format, args...), limit)
	b.refusals.Refuse(limit, refusal.Message)
	return refusal
}

// admit counts a connection, or returns why it may not stay.
func (a *account) admit() *wire.Error {
	b := a.bounds
	b.mu.Lock()
	defer b.mu.Unlock()
	limits := b.limits.Load()
	most, key := limits.connections()
	perUser, perProcess := limits.connectionsPerUser(), max(most/processShare, 1)
	switch who := a.process; {
	case b.connections >= most:
		return b.refuse(key, "all %d connections are in use: share one", most)
	case a.user.connections >= perUser:
		return b.refuse(keyConnectionsPerUser, "%v has %d connections, as many as one may have: share one", a.user, perUser)
	case who.pid != 0 && who.connections >= perProcess: // of other PID namespaces, who are all 0, the users count
		return b.refuse(key, "%v has %d connections, half of all that may be: share one", who, perProcess)
	}
	a.counts(+1)
	a.admitted = true
	return nil
}

// waits counts a request that waits, for so many IDs or for an answer, or returns why it may not. Its
// bytes are for doneWaiting.
func (a *account) waits(ids int64) (bytes int64, refusal *wire.Error) {
	b, limits := a.bounds, a.bounds.limits.Load()
	all := int64(limits.MaxInFlight)
	ofProcess, ofConnection := max(all/waitingShare, 1), int64(limits.MaxWaiting)
	if ofConnection <= 0 {
		ofConnection = all
	}
	if bytes = waitingSize; ids > smallBatch {
		bytes += ids * rangeSize
	}
	if !a.waiting.take(1, ofConnection) {
		return 0, b.refuse(keyWaiting, "%d requests of a connection of %v wait, as many as may: wait for answers", ofConnection, a.process)
	}
	if !a.process.waiting.take(1, ofProcess) {
		a.waiting.give(1)
		return 0, b.refuse(keyInFlight, "%d requests of %v wait, a quarter of all that may: wait for answers", ofProcess, a.process)
	}
	if !b.waiting.take(1, all) {
		a.waiting.give(1)
		a.process.waiting.give(1)
		return 0, b.refuse(keyInFlight, "%d requests wait, and no more may", all)
	}
	if most := limits.memory(); !b.waitingBytes.take(bytes, most) {
		a.doneWaiting(0)
		return 0, b.refuse(keyMemory, "requests that wait fill the %d bytes for them: ask for fewer IDs at a time", most)
	}
	return bytes, nil
}

// doneWaiting counts a request that waits no longer.
func (a *account) doneWaiting(bytes int64) {
	a.bounds.waitingBytes.give(bytes)
	a.bounds.waiting.give(1)
	a.process.waiting.give(1)
	a.waiting.give(1)
}

// keepsUp counts a request for the upkeep of a lock, which is never refused. It reports false where
// there are too many: then the connection waits with the request, which is not counted.
func (a *account) keepsUp() bool {
	if !a.upkeep.take(1, upkeepOfConnection) {
		return false
	}
	if !a.bounds.upkeep.take(1, int64(a.bounds.limits.Load().MaxInFlight)) {
		a.upkeep.give(1)
		return false
	}
	return true
}

// doneKeepingUp counts a request that is answered.
func (a *account) doneKeepingUp() {
	a.bounds.upkeep.give(1)
	a.upkeep.give(1)
}

// hold counts a lock that the connection holds.
func (a *account) hold() error {
	if !a.holds.take(1, holdsOfConnection) {
		return a.bounds.refuse(refusals.Holds, "a connection of %v holds %d locks, as many as one may: release some", a.process, holdsOfConnection)
	}
	return nil
}

// letGo counts a lock that the connection holds no more.
func (a *account) letGo() { a.holds.give(1) }

// inFlight is how many requests wait, for anything.
func (b *bounds) inFlight() int64 { return b.waiting.taken.Load() + b.upkeep.taken.Load() }
