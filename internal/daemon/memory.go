package daemon

import (
	"container/list"
	"runtime/debug"
	"sync"

	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/wire"
)

// memoryUse is what half messages and unread answers hold, in bytes. Small buffers are not counted: they
// belong to the connection.
type memoryUse struct {
	held    int64
	leaving int64     // of these, of connections that are being closed
	closed  uint64    // connections, for want of room
	holders list.List // the other accounts that hold any, the longest without a move first
	room    sync.Cond // some was given back
	scarce  bool      // the collector has been told to leave less garbage
	usualGC int       // its percentage in quiet times
}

// scarceGC is the collector's percentage while connections hold more than half of what they may. Their buffers
// become garbage when they grow: as usual it would leave as much garbage as memory in use.
const scarceGC = 20

// tend has the collector leave less garbage while memory is scarce.
func (m *memoryUse) tend(most int64) {
	switch {
	case !m.scarce && m.held > most/2:
		m.scarce, m.usualGC = true, debug.SetGCPercent(scarceGC)
		if 0 <= m.usualGC && m.usualGC < scarceGC { // the operator's GOGC is less still
			debug.SetGCPercent(m.usualGC)
		}
	case m.scarce && m.held < most/4:
		m.scarce = false
		debug.SetGCPercent(m.usualGC)
	}
}

// Reserve implements wire.Memory: it takes memory for a message that has begun, and waits
// for it while connections end that give way.
func (a *account) Reserve(n int) error {
	if err := a.take(int64(n), true); err != nil {
		return err
	}
	return nil
}

// Take implements wire.Memory: it takes memory for answers, as Reserve does. A connection that
// may not have it ends soon. Until then the answers are counted all the same.
func (a *account) Take(n int) { a.takeAnswer(n, true) }

// takeMade is Take for an answer that is in memory already: waiting would not save any.
func (a *account) takeMade(n int) { a.takeAnswer(n, false) }

func (a *account) takeAnswer(n int, wait bool) {
	if a.take(int64(n), wait) != nil {
		a.bounds.mu.Lock()
		defer a.bounds.mu.Unlock()
		a.add(int64(n))
	}
}

// take takes memory, for which it closes other connections.
func (a *account) take(n int64, wait bool) *wire.Error {
	b := a.bounds
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &b.memory
	defer m.room.Signal() // there may be room for another one
	for {
		if over := a.over.Load(); over != nil {
			return over
		}
		most := b.limits.Load().memory()
		for m.held-m.leaving+n > most {
			first := m.holders.Front()
			if first != nil && first.Value == a {
				first = first.Next()
			}
			if first == nil {
				a.lose(b.noRoom(most))
				return a.over.Load()
			}
			first.Value.(*account).lose(b.noRoom(most))
		}
		if !wait || m.held+n <= most {
			a.add(n)
			return nil
		}
		a.waitsForRoom++
		m.room.Wait()
		a.waitsForRoom--
	}
}

func (b *bounds) noRoom(most int64) *wire.Error {
	b.memory.closed++
	return b.refuse(keyMemory,
		"half messages and unread answers fill the %d bytes for them, and this connection has moved least: send whole messages, and read the answers", most)
}

// add changes the memory of the connection, which has moved. mu is held.
func (a *account) add(n int64) {
	m := &a.bounds.memory
	a.held += n
	m.held += n
	m.tend(a.bounds.limits.Load().memory())
	if a.over.Load() != nil {
		m.leaving += n
	}
	a.progress()
	if n < 0 {
		m.room.Signal()
	}
}

// Progress implements wire.Memory.
func (a *account) Progress() {
	a.bounds.mu.Lock()
	defer a.bounds.mu.Unlock()
	a.progress()
}

// progress makes the account the last that gives anything up. mu is held.
func (a *account) progress() {
	holders := &a.bounds.memory.holders
	switch holds := a.held > 0 && a.over.Load() == nil; {
	case holds && a.place != nil:
		holders.MoveToBack(a.place)
	case holds:
		a.place = holders.PushBack(a)
	case a.place != nil:
		holders.Remove(a.place)
		a.place = nil
	}
}

// Give implements wire.Memory.
func (a *account) Give(n int) {
	a.bounds.mu.Lock()
	defer a.bounds.mu.Unlock()
	a.add(-min(int64(n), a.held)) // dropped memory is given back already
}

// drop takes back all that the connection holds. mu is held.
func (a *account) drop() { a.add(-a.held) }

// lose makes the connection end for the reason. Its memory counts until it is gone. mu is held.
func (a *account) lose(why *wire.Error) {
	a.over.Store(why)
	a.bounds.memory.leaving += a.held
	a.progress()
	if a.waitsForRoom > 0 {
		a.bounds.memory.room.Broadcast()
	}
	if a.evict != nil {
		a.evict()
	}
}

// watched is what clients hold, for the metrics.
func (b *bounds) watched() metrics.Memory {
	b.mu.Lock()
	defer b.mu.Unlock()
	return metrics.Memory{Reserved: b.memory.held, Reservable: b.limits.Load().memory(), Ended: b.memory.closed}
}
