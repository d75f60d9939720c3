package daemon

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/record/bounds"
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
	quotas *quota.Stats

	mu      sync.Mutex // guards all below, the fields of each user, and of each account
	used    int64
	ended   uint64 // connections, for want of room
	leaving int64  // of these, of connections that end
	kept    int64  // of these, what cannot be taken away
	clock   uint64
	large   int64         // for large buffers of sockets
	changed chan struct{} // closed when there may be room; nil if nobody waits
	users   map[owner]*user
	peers   map[*account]struct{} // the accounts of connections by Unix sockets
	holds   int                   // of all users
	scarce  map[*user]int         // how many connections of a user wait because all memory is taken

	making  chan struct{} // has room for the long answers that are being made
	running running       // connections of all users
}

// How many long answers are made at a time, for all users and for one.
const (
	maxMaking     = 6
	maxUserMaking = 2
	// maxUserAsking is how many of one user wait for that or are made. It is small, since those
	// that wait in vain all end at the same time.
	maxUserAsking = 64
)

func newBudget(limits *atomic.Pointer[Limits]) *budget {
	return &budget{limits: limits, users: map[owner]*user{}, peers: map[*account]struct{}{}, scarce: map[*user]int{}, making: make(chan struct{}, maxMaking),
		running: make(running, maxRunning)}
}

// owner is who a user is: a UID or, of peers on a network, an address.
type owner struct {
	uid  uint32
	from netip.Prefix // valid: the address, and uid is unknownUID
}

// user is a user with open connections.
type user struct {
	owner
	open     int      // connections, those that are being turned away included
	admitted int      // connections that count
	groups   []uint32 // of the latest connection
	bytes    int64
	leaving  int64                 // of these, of connections that end
	kept     int64                 // of these, what cannot be taken away
	holders  map[*account]struct{} // accounts that hold any bytes and do not end
	waiting  inFlight              // requests
	large    int64                 // for large buffers of sockets
	holds    int                   // locks that connections hold, and watches
	streams  int                   // of them, events of placement
	making   chan struct{}         // has room for the long answers that are being made
	asking   atomic.Int64          // requests for long answers, but for those that wait for their peer
	running  running               // connections of this user
	queue    chan struct{}         // has room for the connection that waits for memory; others wait for it
}

// most names the user who has the most of what all share.
func (b *budget) most(of func(*user) int64) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mostOf(of)
}

// mostOf is most. mu is held.
func (b *budget) mostOf(of func(*user) int64) string {
	var most *user
	for _, u := range b.users {
		if most == nil || of(u) > of(most) {
			most = u
		}
	}
	if most == nil {
		return ""
	}
	return most.String()
}

// pays returns a context in which the keys that are made count for the user.
func (u *user) pays(ctx context.Context) context.Context {
	return bounds.Pay(ctx, u.String())
}

// account is what one connection holds of a budget. It is the connection's wire.Memory,
// wherever the connection is served.
type account struct {
	budget   *budget
	user     *user
	peer     *unixsock.Peer // nil: not known
	admitted bool
	evict    func() // makes the connection end soon; called with mu held, and must not block
	half     int64  // bytes of messages that have begun
	unread   int64  // bytes of answers
	large    bool   // the socket has a large buffer
	moving   uint64 // when the connection read or wrote more last, by budget.clock
	over     atomic.Pointer[wire.Error]
	lost     chan struct{} // closed when over is set; nil unless the connection has waited for memory
}

// open begins the account of a connection.
func (b *budget) open(nc stream) *account {
	uid := unknownUID
	peer, err := unixsock.PeerOf(nc)
	if err == nil {
		uid = peer.UID
	}
	a := b.openFor(owner{uid: uid})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		// The connections of a user mostly have the same groups: keep them once.
		if slices.Equal(peer.Groups, a.user.groups) {
			peer.Groups = a.user.groups
		}
		a.user.groups = peer.Groups
		a.peer = &peer
	}
	b.peers[a] = struct{}{}
	return a
}

// dismiss ends the connections of peers that are not allowed any more, and counts them.
func (b *budget) dismiss() (n int) {
	limits := b.limits.Load()
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := range b.peers {
		if a.over.Load() == nil && !limits.allow(a.peer) {
			a.lose(limits.refusal(a.peer))
			n++
		}
	}
	return n
}

func (b *budget) openFor(who owner) *account {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.users[who]
	if u == nil {
		u = &user{owner: who, holders: map[*account]struct{}{}, making: make(chan struct{}, maxUserMaking),
			running: make(running, maxUserRunning), queue: make(chan struct{}, 1)}
		b.users[who] = u
	}
	u.open++
	return &account{budget: b, user: u}
}

// admit counts the connection for its user, and returns why it may not be. open is how many there are.
func (a *account) admit(open int) *wire.Error {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	limits := a.budget.limits.Load()
	most, key := limits.userConnections()
	if a.user.admitted >= most {
		return a.budget.exceeds(key, a.user, most, "connections", "share one")
	}
	all, key := limits.connections()
	if n, ofU := int64(open), int64(a.user.admitted); !leaves(n+1, int64(all), int64(most), ofU+1) {
		whose := a.budget.mostOf(func(u *user) int64 { return int64(u.admitted) })
		return a.budget.leavesTooFew(key, whose, a.user, ofU, n, int64(all), "connections", "share one")
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
	a.shrink()
	delete(b.peers, a)
	if a.admitted {
		a.user.admitted--
	}
	if a.user.open--; a.user.open == 0 {
		delete(b.users, a.user.owner)
	}
}

// park is moved for the fast path, where the connection holds nothing.
func (a *account) park(evict func()) {
	a.budget.mu.Lock()
	a.drop()
	a.budget.mu.Unlock()
	a.moved(evict)
}

// moved says how the connection is made to end from now on. A connection
// that was chosen to give way meanwhile ends at once: what ended it before was not in
// charge of it any more.
func (a *account) moved(evict func()) {
	a.budget.mu.Lock()
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
	a.budget.hold(a.user, n)
	lost := a.over.Load() != nil
	if lost {
		a.user.leaving += n
		a.budget.leaving += n
	}
	if !lost && a.half+a.unread > 0 {
		a.user.holders[a] = struct{}{}
	} else {
		delete(a.user.holders, a)
	}
	if n < 0 {
		a.budget.wake()
	}
}

// wake lets those who wait for room look again. mu is held.
func (b *budget) wake() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// Reserve implements wire.Memory: it takes memory for a message that has begun, and waits
// for it while connections end that give way.
func (a *account) Reserve(n int) error {
	if err := a.take(&a.half, int64(n), false); err != nil {
		return err
	}
	return nil
}

// Take implements wire.Memory: it takes memory for answers, likewise. A connection that
// may not have it ends soon. Until then the answers are counted all the same.
func (a *account) Take(n int) { a.takeAnswer(n, false) }

// takeMade is Take for an answer that is in memory already: waiting would not save any.
func (a *account) takeMade(n int) { a.takeAnswer(n, true) }

func (a *account) takeAnswer(n int, made bool) {
	if a.take(&a.unread, int64(n), made) != nil {
		a.budget.mu.Lock()
		defer a.budget.mu.Unlock()
		a.add(&a.unread, int64(n))
	}
}

// take takes memory of one kind once there is room, which it makes. With made, connections
// that end need not be gone.
func (a *account) take(kind *int64, n int64, made bool) *wire.Error {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	w := roomWait{account: a}
	defer w.end()
	for {
		if over := a.over.Load(); over != nil {
			return over
		}
		var err *wire.Error
		if short := b.makeRoom(a.user, a, n); short != "" {
			err = b.exceeded(short, a.user)
		}
		key := b.lacking(a.user, n, 0, 0)
		if err == nil && (made || key == "" && !b.poorerWaits(a.user)) {
			a.progress()
			a.add(kind, n)
			return nil
		}
		if err == nil && !w.wait(key) && a.over.Load() == nil { // not lost meanwhile
			err = b.exceeded(cmp.Or(key, keyMemory), a.user)
		}
		if err != nil {
			a.lose(err)
			return err
		}
	}
}

// lose makes the connection end for the reason. What it holds counts until it is gone. mu
// is held.
func (a *account) lose(why *wire.Error) {
	a.over.Store(why)
	a.user.leaving += a.half + a.unread
	a.budget.leaving += a.half + a.unread
	delete(a.user.holders, a)
	if a.lost != nil {
		close(a.lost)
		a.lost = nil
	}
	if a.evict != nil {
		a.evict()
	}
}

// TryReserve implements wire.Memory: it takes memory for a message if that costs no
// other connection anything.
func (a *account) TryReserve(n int) bool {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	if a.over.Load() != nil || a.budget.lacking(a.user, int64(n), 0, 0) != "" || a.budget.poorerWaits(a.user) {
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

// lacking names the key of the quota that n more bytes would exceed once so many of the
// user and of all are free, "" for none. mu is held.
func (b *budget) lacking(u *user, n, ofUser, ofAll int64) string {
	all, user := b.limits.Load().bytes()
	switch {
	case u.bytes-ofUser+n > user:
		return keyUserMemory
	case b.used-ofAll+n > all:
		return keyMemory
	}
	return ""
}

// makeRoom ends connections until there will be room for n more bytes of the user, or
// returns the key of the quota that forbids them. asks is the connection that wants them,
// which does not end for it. mu is held.
func (b *budget) makeRoom(u *user, asks *account, n int64) (short string) {
	for {
		key := b.lacking(u, n, u.leaving, b.leaving)
		if key == "" {
			return ""
		}
		from := u
		if key != keyUserMemory {
			from = b.greediest(u, n)
		}
		victim := from.victim(asks)
		if victim == nil {
			return key
		}
		victim.lose(b.exceeded(key, from))
	}
}

// stays is what the user holds, without the connections that are ending. mu is held.
func (u *user) stays() int64 { return u.bytes - u.leaving }

// greediest is the user with the most bytes, of those who can give up any, once this one
// has n more. Of equal ones it is this one. mu is held.
func (b *budget) greediest(asks *user, n int64) *user {
	most := asks
	for _, u := range b.users {
		if u != asks && len(u.holders) > 0 && u.stays() > asks.stays()+n && (most == asks || u.stays() > most.stays()) {
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
	b.ended++
	whose, r := "all users", b.shortOf(key, u)
	if key == keyUserMemory {
		whose = "one user"
	}
	return overloaded(b.quotas, r,
		"unfinished messages and unread answers fill the %d bytes for %s, and the connections of %v hold the most: "+
			"send whole messages, read the answers, or raise %s", r.Limit, whose, u.owner, key)
}

// shortOf is the refusal of memory that the user has used up.
func (b *budget) shortOf(key string, u *user) quota.Refusal {
	most, ofUser := b.limits.Load().bytes()
	if key == keyUserMemory {
		most = ofUser
	}
	return quota.Refusal{Quota: key, Limit: most, Whose: u.owner.String()}
}

// memory is what the budget has given out.
func (b *budget) memory() metrics.Memory {
	all, _ := b.limits.Load().bytes()
	b.mu.Lock()
	defer b.mu.Unlock()
	return metrics.Memory{Reserved: b.used, Reservable: all, Ended: b.ended}
}
