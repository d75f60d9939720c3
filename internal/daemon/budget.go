package daemon

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kazahana/kazahana/internal/record/quota"
	"github.com/kazahana/kazahana/internal/unixsock"
	"github.com/kazahana/kazahana/internal/wire"
)

// unknownUID is the user of peers whose credentials cannot be read.
const unknownUID = ^uint32(0)

// budget shares the memory for messages that have begun and answers that have not been
// read. It is fair to users first, and to connections then: where memory runs out, the
// user that holds the most gives some up, by losing the connection whose half message
// has not grown for the longest time. Only a user without half messages loses a
// connection that does not read its answers.
//
// Small buffers are not counted: they belong to the connection.
type budget struct {
	limits *atomic.Pointer[Limits]

	mu    sync.Mutex // guards all below, the fields of each user, and of each account
	used  int64
	peak  int64 // of what was held, since settled last said so
	clock uint64
	users map[uint32]*user
}

// user is a user with open connections.
type user struct {
	uid      uint32
	open     int // connections, those that are being turned away included
	admitted int // connections that count
	bytes    int64
	holders  map[*account]struct{} // accounts that hold any bytes
	waiting  atomic.Int64          // requests
}

// pays returns a context in which the keys that are made count for the user.
func (u *user) pays(ctx context.Context) context.Context {
	return quota.Pay(ctx, fmt.Sprintf("user %d", u.uid))
}

// account is what one connection holds of a budget. It is the connection's wire.Memory,
// wherever the connection is served.
type account struct {
	budget   *budget
	user     *user
	admitted bool
	evict    func() // makes the connection end soon; must not block
	half     int64  // bytes of messages that have begun
	unread   int64  // bytes of answers
	moving   uint64 // when the connection read or wrote more last, by budget.clock
	over     atomic.Pointer[wire.Error]
}

// open begins the account of a connection.
func (b *budget) open(nc stream) *account {
	uid := unknownUID
	if peer, err := unixsock.PeerOf(nc); err == nil {
		uid = peer.UID
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.users[uid]
	if u == nil {
		u = &user{uid: uid, holders: map[*account]struct{}{}}
		b.users[uid] = u
	}
	u.open++
	return &account{budget: b, user: u}
}

// admit counts the connection for its user, and returns why it may not be.
func (a *account) admit() *wire.Error {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	if most, key := a.budget.limits.Load().userConnections(); a.user.admitted >= most {
		return wire.Errorf(wire.CodeOverloaded,
			"user %d has all %d connections that one user may have: share a connection, or raise %s", a.user.uid, most, key)
	}
	a.user.admitted++
	a.admitted = true
	return nil
}

// close ends the account.
func (a *account) close() {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.drop()
	if a.admitted {
		a.user.admitted--
	}
	if a.user.open--; a.user.open == 0 {
		delete(b.users, a.user.uid)
	}
}

// moved says how the connection is made to end from now on. It is called where another
// goroutine or the lane takes the connection over, which holds nothing then. A connection
// that was chosen to give way meanwhile ends at once: what ended it before was not in
// charge of it any more.
func (a *account) moved(evict func()) {
	a.budget.mu.Lock()
	a.drop()
	a.evict = evict
	a.budget.mu.Unlock()
	if a.over.Load() != nil {
		evict()
	}
}

// drop takes back all that the connection holds. mu is held.
func (a *account) drop() {
	a.add(&a.half, -a.half)
	a.add(&a.unread, -a.unread)
}

// add changes what the connection holds of one kind. mu is held.
func (a *account) add(kind *int64, n int64) {
	*kind += n
	a.user.bytes += n
	a.budget.used += n
	a.budget.peak = max(a.budget.peak, a.budget.used)
	if a.half+a.unread > 0 {
		a.user.holders[a] = struct{}{}
	} else {
		delete(a.user.holders, a)
	}
}

// Reserve implements wire.Memory: it takes memory for a message that has begun.
func (a *account) Reserve(n int) error {
	if err := a.take(&a.half, int64(n)); err != nil {
		return err
	}
	return nil
}

// Take implements wire.Memory: it takes memory for answers. A connection that may not
// have it ends soon.
func (a *account) Take(n int) { _ = a.take(&a.unread, int64(n)) }

func (a *account) take(kind *int64, n int64) *wire.Error {
	if over := a.over.Load(); over != nil {
		return over
	}
	a.budget.mu.Lock()
	victims, err := a.makeRoom(n)
	if err == nil {
		a.progress()
		a.add(kind, n)
	} else {
		a.lose(err)
		victims = append(victims, a)
	}
	var evictions []func()
	for _, v := range victims {
		if v.evict != nil {
			evictions = append(evictions, v.evict)
		}
	}
	a.budget.mu.Unlock()
	for _, evict := range evictions {
		evict()
	}
	return err
}

// lose takes back what the connection holds, which ends for the reason. mu is held.
func (a *account) lose(why *wire.Error) {
	a.over.Store(why)
	a.drop()
}

// TryReserve implements wire.Memory: it takes memory for a message if that costs no
// other connection anything.
func (a *account) TryReserve(n int) bool {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	if a.over.Load() != nil || a.lacking(int64(n)) != "" {
		return false
	}
	a.progress()
	a.add(&a.half, int64(n))
	return true
}

// Progress implements wire.Memory.
func (a *account) Progress() {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.progress()
}

// progress makes the account the last that gives anything up. mu is held.
func (a *account) progress() {
	a.budget.clock++
	a.moving = a.budget.clock
}

// Release implements wire.Memory.
func (a *account) Release(n int) { a.give(&a.half, int64(n)) }

// Give implements wire.Memory.
func (a *account) Give(n int) { a.give(&a.unread, int64(n)) }

func (a *account) give(kind *int64, n int64) {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.add(kind, -min(n, *kind)) // what was dropped is given back already
}

// lacking names the key of the quota that n more bytes would exceed, "" for none. mu is
// held.
func (a *account) lacking(n int64) string {
	all, user := a.budget.limits.Load().bytes()
	switch {
	case a.user.bytes+n > user:
		return keyUserMemory
	case a.budget.used+n > all:
		return keyMemory
	}
	return ""
}

// makeRoom ends the accounts that stand in the way of n more bytes, or returns why the
// connection may not have these. mu is held.
func (a *account) makeRoom(n int64) (victims []*account, err *wire.Error) {
	for key := a.lacking(n); key != ""; key = a.lacking(n) {
		from := a.user
		if key != keyUserMemory {
			from = a.greediest(n)
		}
		victim := from.victim(a)
		if victim == nil {
			return victims, a.budget.exceeded(key, a.user)
		}
		victim.lose(a.budget.exceeded(key, from))
		victims = append(victims, victim)
	}
	return victims, nil
}

// greediest is the user with the most bytes once the account's has n more. Of equal ones
// it is the account's own. mu is held.
func (a *account) greediest(n int64) *user {
	most := a.user
	for _, u := range a.budget.users {
		if u != a.user && u.bytes > max(most.bytes, a.user.bytes+n) {
			most = u
		}
	}
	return most
}

// victim is the account that gives up what it holds, nil if there is none beside the one
// that asks. mu is held.
func (u *user) victim(asks *account) (victim *account) {
	for a := range u.holders {
		switch {
		case a == asks:
		case victim == nil, (a.half > 0) != (victim.half > 0) && a.half > 0:
			victim = a
		case (a.half > 0) == (victim.half > 0) && a.moving < victim.moving:
			victim = a
		}
	}
	return victim
}

// exceeded is the error of a connection that loses what it holds.
func (b *budget) exceeded(key string, u *user) *wire.Error {
	all, user := b.limits.Load().bytes()
	most, whose := all, "all users"
	if key == keyUserMemory {
		most, whose = user, "one user"
	}
	return wire.Errorf(wire.CodeOverloaded,
		"unfinished messages and unread answers fill the %d bytes for %s, and the connections of user %d hold the most: "+
			"send whole messages, read the answers, or raise %s", most, whose, u.uid, key)
}

// muchMemory is from where on memory is given back to the system.
const muchMemory = 16 << 20

// settled reports whether much memory was held lately, and no more than a quarter of it
// is held now. others is what is held beside the budget.
func (b *budget) settled(others int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.used + others
	b.peak = max(b.peak, held)
	if b.peak < muchMemory || held > b.peak/4 {
		return false
	}
	b.peak = held
	return true
}
