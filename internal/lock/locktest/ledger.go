package locktest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kazahana/kazahana/internal/lock"
)

// ledger is every grant that a test saw.
type ledger struct {
	mu     sync.Mutex
	grants map[name][]*grant
}

type name struct{ tenant, key string }

type grant struct {
	lock.Lease // zero until the acquire is noted
	endMS      int64
	renewedMS  int64 // when endMS was set; 0 by the acquire
	released   bool
}

func newLedger() *ledger { return &ledger{grants: map[name][]*grant{}} }

// noting is a store whose answers go into a ledger.
type noting struct {
	lock.Store
	ledger *ledger
}

func (n noting) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	l, err := n.Store.Do(ctx, r)
	if err == nil && !l.Repeated {
		n.ledger.note(r, l)
	}
	return l, err
}

// note does not depend on the order of what concurrent callers note, which is
// not that in which the store answered.
func (g *ledger) note(r lock.Request, l lock.Lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := name{r.Tenant, r.Key}
	i := slices.IndexFunc(g.grants[n], func(known *grant) bool { return known.LeaseID == l.LeaseID })
	if i < 0 {
		i = len(g.grants[n])
		g.grants[n] = append(g.grants[n], &grant{Lease: lock.Lease{LeaseID: l.LeaseID}})
	}
	known := g.grants[n][i]
	switch at := l.ExpiresMS - l.RemainingMS; {
	case r.Op == lock.Acquire:
		known.Lease = l
		if known.renewedMS == 0 {
			known.endMS = l.ExpiresMS
		}
	case r.Op == lock.Release:
		known.released = true
	case at > known.renewedMS:
		known.renewedMS, known.endMS = at, l.ExpiresMS
	case at == known.renewedMS: // nobody knows which was the last
		known.endMS = min(known.endMS, l.ExpiresMS)
	}
}

// check reports how the grants contradict the invariants, or the store them.
func (g *ledger) check(s *suite) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for n, grants := range g.grants {
		grants = slices.DeleteFunc(slices.Clone(grants), func(l *grant) bool { return l.Token == 0 })
		slices.SortFunc(grants, func(a, b *grant) int { return int(a.Token - b.Token) })
		for i := 1; i < len(grants); i++ {
			a, b := grants[i-1], grants[i]
			switch {
			case a.Token == b.Token:
				return fmt.Errorf("two leases of %q have token %d (LS-INV-002)", n.key, a.Token)
			case b.AcquiredMS < a.AcquiredMS:
				return fmt.Errorf("tokens of %q do not grow with time: %d at %d, %d at %d (LS-INV-002)", n.key, a.Token, a.AcquiredMS, b.Token, b.AcquiredMS)
			case !a.released && b.AcquiredMS < a.endMS:
				return fmt.Errorf("%q had two leases at %d (LS-INV-001)", n.key, b.AcquiredMS)
			}
		}
		page, err := s.store.List(ctx, n.tenant, "", lock.MaxList)
		if err != nil {
			return err
		}
		active := 0
		for _, l := range page {
			if l.Key == n.key {
				active++
			}
		}
		if active > 1 {
			return fmt.Errorf("%d leases of %q are listed (LS-INV-001)", active, n.key)
		}
	}
	return nil
}

func (g *ledger) String() string {
	var b strings.Builder
	for n, grants := range g.grants {
		for _, l := range grants {
			fmt.Fprintf(&b, "%s %q token %d owner %s from %d to %d released %v\n", n.tenant, n.key, l.Token, l.Owner, l.AcquiredMS, l.endMS, l.released)
		}
	}
	return b.String()
}
