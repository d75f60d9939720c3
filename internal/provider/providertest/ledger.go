package providertest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// ledger notes every grant of a test, with its end by the grant rule. It is safe for
// concurrent use.
type ledger struct {
	mu      sync.Mutex
	entries map[ledgerKey]*entry
}

type ledgerKey struct {
	pool string
	key  lease.Key
}

type entry struct {
	pool  string
	lease lease.Lease
	end   int64 // ReservedUntil, or less after a release
}

// granted checks a lease that was granted on the terms, and notes it. The same grant
// again, as the answer to a repeated request, must be the same lease.
func (g *ledger) granted(t provider.Terms, l lease.Lease) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := ledgerKey{t.Pool, l.Key()}
	if e, ok := g.entries[k]; ok {
		if e.lease != l {
			return fmt.Errorf("the lease %v was returned again as %v", e.lease, l)
		}
		return nil
	}
	if err := l.Validate(); err != nil {
		return err
	}
	if len(l.Secret) < 32 {
		return fmt.Errorf("the secret has %d characters, fewer than 128 bits in hex", len(l.Secret))
	}
	if want := t.Grant(l.ID, l.Created, l.Secret); l != want {
		return fmt.Errorf("the lease is %+v, want %+v", l, want)
	}
	if !t.Range().Contains(l.ID) {
		return fmt.Errorf("machine ID %d is not in %v", l.ID, t.Range())
	}
	g.entries[k] = &entry{pool: t.Pool, lease: l, end: l.ReservedUntil}
	return nil
}

// released notes a release that was carried out.
func (g *ledger) released(pool string, l lease.Lease, timestampMS int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e, ok := g.entries[ledgerKey{pool, l.Key()}]; ok {
		e.end = provider.ReleasedEnd(l.Created, e.end, timestampMS)
	}
}

// extended notes that a grant lasts longer.
func (g *ledger) extended(pool string, l lease.Lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e, ok := g.entries[ledgerKey{pool, l.Key()}]; ok {
		e.lease, e.end = l, max(e.end, l.ReservedUntil)
	}
}

// inOrder returns the entries by pool and the start of their slots.
func (g *ledger) inOrder() []*entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*entry, 0, len(g.entries))
	for _, e := range g.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.lease.Slot().Start, b.lease.Slot().Start),
			cmp.Compare(a.lease.Created, b.lease.Created))
	})
	return all
}

// check reports two grants that break the grant rule.
func (g *ledger) check() error {
	all := g.inOrder()
	secrets := map[string]bool{}
	for i, a := range all {
		if secrets[a.lease.Secret] {
			return fmt.Errorf("two grants have one secret, one of them %v", a.lease)
		}
		secrets[a.lease.Secret] = true
		for _, b := range all[i+1:] {
			if b.pool != a.pool || b.lease.Slot().Start >= a.lease.Slot().End {
				break // as do all that follow
			}
			if a.lease.Created < b.end && b.lease.Created < a.end {
				return fmt.Errorf("the slots overlap and the intervals too:\n  %v", []*entry{a, b})
			}
		}
	}
	return nil
}

// String is the entry without its secret.
func (e *entry) String() string {
	return fmt.Sprintf("pool %s, machine ID %d, bit_seq %d: [%d, %d)", e.pool, e.lease.ID, e.lease.BitSeq, e.lease.Created, e.end)
}

// String lists the first grants, for a failed test.
func (g *ledger) String() string {
	all := g.inOrder()
	var b strings.Builder
	for _, e := range all[:min(len(all), 200)] {
		fmt.Fprintf(&b, "  %v\n", e)
	}
	return b.String()
}
