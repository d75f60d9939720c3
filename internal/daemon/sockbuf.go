package daemon

import (
	"maps"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/longwork"
)

// The kernel counts the bytes that wait in a Unix socket for the peer to the process that
// has sent them, until the peer reads them or closes its end: that this end is closed
// changes nothing. So each connection has a small buffer for what it sends, which is part
// of its cost; as many as a share of the memory allows have a large one; and a connection
// that has ended counts for as long as its peer has not read. Over TCP it is the same, until the
// connection is reset.
//
// What a peer sends is counted to the peer.
const (
	smallSend     = 4 << 10
	smallSendCost = 13 << 10 // the most that the kernel then holds for a connection
	largeSend     = 64 << 10
	largeSendCost = 168 << 10
)

// maxUnreadRefusals is how many connections that were turned away may have left the
// reason unread. Then others are closed without a word.
const maxUnreadRefusals = 1024

// remnantPause is when a connection that has ended is first looked at again.
const remnantPause = 5 * time.Millisecond

// enlarge reports whether the connection may have a large buffer from now on, until it
// ends. It has a small one so far.
func (a *account) enlarge() bool {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.limits.Load().sending()
	if a.large || b.large+largeSendCost > all || a.user.large+largeSendCost > ofUser(0, all) {
		return false
	}
	a.large = true
	a.user.large += largeSendCost
	b.large += largeSendCost
	return true
}

// shrink gives a large buffer up, with the connection. mu is held.
func (a *account) shrink() {
	if a.large {
		a.large = false
		a.user.large -= largeSendCost
		a.budget.large -= largeSendCost
	}
}

// bounded reports whether what the kernel holds is bounded.
func (l *Limits) bounded() bool { return l.MemoryLimit > 0 }

// sending is what large buffers may take.
func (l *Limits) sending() int64 { return l.MemoryLimit / sendingShare }

// part closes the stream of a connection, and reports whether it could: one whose peer has
// not read all answers stays open, though nothing comes from it or goes to it any more.
func (s *Server) part(nc stream) bool {
	if s.limits.Load().bounded() && unread(nc) > 0 && shutdown(nc) == nil {
		return false
	}
	_ = nc.Close()
	return true
}

// remember counts a connection that has ended until its peer has read all. mu is held.
func (s *Server) remember(nc stream, a *account) {
	a.park(func() {})
	s.remnants[nc] = a
	// Mostly the peer is just about to close its end.
	if s.fresh = append(s.fresh, nc); len(s.fresh) == 1 { // thousands have one timer
		time.AfterFunc(remnantPause, s.forgetFresh)
	}
	if !a.admitted {
		s.unreadRefusals++
	}
}

// forgetFresh forgets the connections that have just ended, if their peers have read all.
func (s *Server) forgetFresh() {
	s.mu.Lock()
	fresh := s.fresh
	s.fresh = nil
	s.mu.Unlock()
	s.forgetRead(fresh)
}

// forgetRead forgets those of the connections whose peers have read all, or are gone.
func (s *Server) forgetRead(ended []stream) {
	var work longwork.Work
	for _, nc := range ended {
		work.Part()
		if unread(nc) == 0 {
			s.forgetRemnant(nc)
		}
	}
}

// forgetRemnant closes a connection that has ended, unless somebody else does. It counts until then.
func (s *Server) forgetRemnant(nc stream) {
	s.mu.Lock()
	a := s.remnants[nc]
	if a != nil {
		s.remnants[nc] = nil // it is being closed
	}
	s.mu.Unlock()
	if a == nil {
		return
	}
	_ = nc.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	a.close()
	delete(s.remnants, nc)
	if !a.admitted {
		s.unreadRefusals--
	}
	s.countConnections()
}

// allRemnants are the connections that have ended and are not closed yet.
func (s *Server) allRemnants() []stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.remnants))
}
