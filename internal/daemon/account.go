package daemon

import (
	"container/list"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	recordbounds "github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/unixsock"
	"github.com/kazahana/kazahana/internal/wire"
)

// unknownUID is the user of peers with unreadable credentials.
const unknownUID = ^uint32(0)

// owner identifies a user: a UID or, of peers on a network, an address.
type owner struct {
	uid  uint32
	from netip.Prefix // valid: the address, and uid is unknownUID
}

// String names the owner.
func (o owner) String() string {
	if o.from.IsValid() {
		return "address " + o.from.Masked().Addr().String()
	}
	return fmt.Sprintf("UID %d", o.uid)
}

// sharer identifies a process of a user, or with the PID 0 the user. Peers without a visible PID
// are counted by their user only.
type sharer struct {
	owner
	pid int
}

// String names the sharer.
func (s sharer) String() string {
	if s.pid == 0 {
		return s.owner.String()
	}
	return fmt.Sprintf("process %d of %v", s.pid, s.owner)
}

// share is what a user with open connections has, or a process.
type share struct {
	sharer
	open        int      // connections, also ones being turned away
	connections int      // the counted ones
	waiting     places   // requests; of processes
	groups      []uint32 // of the user's latest connection
}

// pays returns a context in which the keys that are made count for the user.
func (s *share) pays(ctx context.Context) context.Context {
	return recordbounds.Pay(ctx, s.owner.String())
}

// account is one connection's part of the bounds. It is the connection's wire.Memory,
// wherever the connection is served.
type account struct {
	bounds   *bounds
	user     *share
	process  *share         // the user's, where no PID is visible
	peer     *unixsock.Peer // nil: not known
	admitted bool
	evict    func() // makes the connection end soon; called with mu held, and must not block
	over     atomic.Pointer[wire.Error]

	held         int64         // bytes of half messages and unread answers
	place        *list.Element // among the accounts that hold any
	waitsForRoom int           // goroutines

	waiting, upkeep places // requests
	holds           places // locks
}

// open begins the account of a connection.
func (b *bounds) open(nc stream) *account {
	uid, pid := unknownUID, 0
	peer, err := unixsock.PeerOf(nc)
	if err == nil {
		uid, pid = peer.UID, peer.PID
	}
	a := b.openFor(owner{uid: uid}, pid)
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

func (b *bounds) openFor(who owner, pid int) *account {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &account{bounds: b, user: b.share(sharer{who, 0}), process: b.share(sharer{who, pid})}
}

// share returns the sharer's part for one more connection. mu is held.
func (b *bounds) share(who sharer) *share {
	s := b.shares[who]
	if s == nil {
		s = &share{sharer: who}
		b.shares[who] = s
	}
	s.open++
	return s
}

// counts adds to the counted connections. mu is held.
func (a *account) counts(n int) {
	a.bounds.connections += n
	a.user.connections += n
	if a.process != a.user {
		a.process.connections += n
	}
}

// dismiss ends the connections of peers that are not allowed any more, and counts them.
func (b *bounds) dismiss() (n int) {
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

// close ends the account.
func (a *account) close() {
	b := a.bounds
	b.mu.Lock()
	defer b.mu.Unlock()
	a.drop()
	delete(b.peers, a)
	if a.admitted {
		a.counts(-1)
	}
	for _, s := range []*share{a.user, a.process} {
		if s.open--; s.open == 0 {
			delete(b.shares, s.sharer)
		}
	}
}

// park is moved for the fast path, where the connection holds nothing.
func (a *account) park(evict func()) {
	a.bounds.mu.Lock()
	a.drop()
	a.bounds.mu.Unlock()
	a.moved(evict)
}

// moved says how the connection is made to end from now on. A connection
// that was chosen to give way meanwhile ends at once: what ended it before was not in
// charge of it any more.
func (a *account) moved(evict func()) {
	a.bounds.mu.Lock()
	a.evict = evict
	a.bounds.mu.Unlock()
	if a.over.Load() != nil {
		evict()
	}
}
