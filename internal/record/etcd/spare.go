package etcd

import (
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxSpares is how many leases that no record uses a process keeps for its next records.
const maxSpares = 32

// lease is an etcd lease.
type lease struct {
	id      clientv3.LeaseID // 0: none
	termMS  int64            // it lasts longer than that by a fifth
	aliveAt time.Duration    // see known
	own     bool             // no record uses it, nor will another process
}

// lasts reports whether the lease lasts for its term from now on.
func (s *Store) lasts(l lease) bool {
	term := time.Duration(l.termMS) * time.Millisecond
	return l.id != 0 && l.aliveAt != 0 && s.elapsed()-l.aliveAt < term/slack
}

// spare keeps a lease that no record uses any more, for the next record with the same
// term: a lock that is handed over needs no new one. Leases that are too many, or too old,
// are ended in the background.
func (s *Store) spare(l lease) {
	if l.id == 0 {
		return
	}
	s.mu.Lock()
	s.spares = append(s.spares, l)
	var old []lease
	s.spares = slices.DeleteFunc(s.spares, func(l lease) bool {
		if s.lasts(l) {
			return false
		}
		old = append(old, l)
		return true
	})
	if len(s.spares) > maxSpares {
		old, s.spares = append(old, s.spares[0]), s.spares[1:]
	}
	s.mu.Unlock()
	if len(old) == 0 || !s.begin() {
		return
	}
	go func() {
		defer s.tasks.Done()
		for _, l := range old {
			ctx, cancel := context.WithTimeout(s.lifetime, sweepTime)
			_, _ = s.conn.KV.Revoke(ctx, l.id) // if this fails, it ends by itself
			cancel()
		}
	}()
}

// takeSpare returns a spare lease for the term, none where there is none.
func (s *Store) takeSpare(termMS int64) lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range s.spares {
		if l.termMS == termMS && s.lasts(l) {
			s.spares = slices.Delete(s.spares, i, i+1)
			return l
		}
	}
	return lease{}
}

// spareUnused keeps the leases that the call has made and that no record uses. Where a
// commit has an unknown outcome, a record may use them.
func (c *change) spareUnused() {
	for key, l := range c.leases {
		used := slices.ContainsFunc(c.seen.records, func(k known) bool { return k.key == key && k.lease == l.id })
		if l.own && !used && !c.open {
			c.spare(l)
		}
	}
}
