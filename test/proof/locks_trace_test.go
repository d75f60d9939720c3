package proof

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/test/trace"
)

// lockTrail is what a world knows of its locks: at the end test/trace holds it against
// docs/model/Locks.tla. It sees the messages between hosts and store, and the store.
type lockTrail struct {
	w      *world
	traces map[string]*trace.Locks // by the keys of locks
	life   string                  // of the store, as of the last message
	leases map[string]leaseOf      // by lease ID
	shown  map[string]lock.Lease   // by key, as of the last message
	calls  map[*lock.Request]string
	asked  map[string]bool // numbers of requests
	// carried is how many requests for a lock have been carried out.
	carried map[string]int
}

// leaseOf returns the owner of a lease: the number of the acquire that was granted it.
type leaseOf struct {
	host  string
	token int64 // 0: it was not granted
	known bool  // its host knows
}

type requestKey struct{}

func newLockTrail(w *world) *lockTrail {
	return &lockTrail{
		w: w, life: w.records.era(), traces: map[string]*trace.Locks{}, leases: map[string]leaseOf{}, shown: map[string]lock.Lease{},
		calls: map[*lock.Request]string{}, asked: map[string]bool{}, carried: map[string]int{},
	}
}

// step adds one for a message that carries a request.
func (t *lockTrail) step(m *message, do string, s trace.LockStep) {
	r := m.request
	s.Do, s.Number, s.Op, s.Sent = do, t.calls[r], r.Op.String(), m.sent
	s.Host = s.Number
	if r.Op != lock.Acquire {
		l := t.leases[r.LeaseID]
		s.Host = l.host
		s.Token = cmp.Or(s.Token, l.token)
	}
	t.of(r.Key).Steps = append(t.of(r.Key).Steps, s)
}

func (t *lockTrail) of(key string) *trace.Locks {
	if t.traces[key] == nil {
		t.traces[key] = &trace.Locks{Memory: lock.MaxReceipts}
	}
	return t.traces[key]
}

// sends notes that the messages are on their way.
func (t *lockTrail) sends(fresh []*message) {
	for _, m := range slices.SortedStableFunc(slices.Values(fresh), func(a, b *message) int { return cmp.Compare(a.sent, b.sent) }) {
		r := m.request
		if r == nil {
			continue
		}
		if _, known := t.calls[r]; !known {
			t.calls[r] = cmp.Or(r.RequestID, fmt.Sprint(r.Op, " ", t.w.number(), " of ", r.LeaseID))
			if r.Op == lock.Acquire {
				t.calls[r] = cmp.Or(r.RequestID, r.LeaseID)
				t.leases[r.LeaseID] = leaseOf{cmp.Or(t.leases[r.LeaseID].host, t.calls[r]), t.leases[r.LeaseID].token, t.leases[r.LeaseID].known}
			}
		}
		if r.Op == lock.Release && t.leases[r.LeaseID].host == "" {
			// The acquire waited for its turn in the process until the host gave up: it was asked
			// for, and never sent.
			t.leases[r.LeaseID] = leaseOf{host: r.LeaseID}
			t.of(r.Key).Steps = append(t.of(r.Key).Steps, trace.LockStep{
				Do: "Ask", At: m.sent, Sent: m.sent, Op: lock.Acquire.String(), Number: r.LeaseID, Host: r.LeaseID,
			})
		}
		do := "Ask"
		if number := t.calls[r]; t.asked[number] {
			do = "Again"
		} else if t.asked[number] = true; r.Op == lock.Release && !t.leases[r.LeaseID].known {
			do = "Discard"
		}
		t.step(m, do, trace.LockStep{At: m.sent})
	}
}

// deliver has the store carry the message out, and notes its effect.
func (t *lockTrail) deliver(m *message) {
	if m.request == nil {
		t.w.placeTrail.deliver(m)
		return
	}
	t.look(m.request.Key)
	before := t.shown[m.request.Key]
	at, storeMS := time.Since(t.w.began), t.w.records.now()
	m.err = m.do(noting{t.w.records, m})
	if !m.changes {
		return
	}
	after := t.get(m.request.Key)
	if m.err != nil && (!m.wrote || after == before) {
		return
	}
	// From here on it was carried out. With an error, the process was killed after the commit.
	t.shown[m.request.Key] = after
	s := trace.LockStep{At: at, StoreMS: storeMS, Token: after.Token, LeftMS: after.RemainingMS}
	if m.request.Op == lock.Acquire {
		t.leases[after.LeaseID] = leaseOf{cmp.Or(t.leases[after.LeaseID].host, t.calls[m.request]), after.Token, t.leases[after.LeaseID].known}
		m.lease = after.LeaseID
	}
	switch {
	case m.wrote && m.request.Op == lock.Acquire && after.State != lock.Active:
		t.givenBack(m, s)
	case m.wrote:
		t.carried[m.request.Key]++
		if s.LeftMS = 0; m.request.Op != lock.Release {
			s.TermMS = after.ExpiresMS - storeMS
		}
		t.step(m, "Commit", s)
		t.w.placeTrail.membership(m, after, s)
		m.told = m.err == nil
	case m.request.Op != lock.Release && before.State == lock.Active:
		s.LeftMS = before.RemainingMS // the disk may have frozen since the store has seen the lock
		t.step(m, "Repeat", s)
		t.w.placeTrail.repeated(m, after)
		m.told = true
	}
}

// givenBack notes that an acquire, with an uncertain grant, has ended its lease.
func (t *lockTrail) givenBack(m *message, s trace.LockStep) {
	s.Op, s.Number, s.Host, s.Sent, s.LeftMS = "release", t.calls[m.request]+" given back", t.calls[m.request], s.At, 0
	for _, s.Do = range []string{"Discard", "Commit"} {
		t.of(m.request.Key).Steps = append(t.of(m.request.Key).Steps, s)
	}
}

// noting notes what a message does to the store.
type noting struct {
	record.Store
	m *message
}

// Change implements record.Store.
func (n noting) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	n.m.changes = true
	return n.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		writes, err := rule(v)
		n.m.wrote = len(writes) > 0
		return writes, err
	})
}

// answers notes that the answer arrives.
func (t *lockTrail) answers(m *message) {
	if m.request == nil || !m.told || !m.waits.Load() {
		return
	}
	if l, acquired := t.leases[m.lease]; acquired {
		l.known = true
		t.leases[m.lease] = l
	}
	t.step(m, "Receive", trace.LockStep{At: time.Since(t.w.began)})
	t.w.placeTrail.joined(m)
}

// look notes the store's view of a lock, and the store's own acts since the last look.
func (t *lockTrail) look(key string) {
	if life := t.w.records.era(); life != t.life {
		t.life = life
		for _, other := range slices.Sorted(maps.Keys(t.traces)) {
			t.sees(other, "Forget")
		}
	}
	if now := t.get(key); now.Token == 0 && t.shown[key].Token > 0 {
		t.sees(key, "Delete")
	}
	t.sees(key, "Look")
}

func (t *lockTrail) sees(key, do string) {
	l, v := t.get(key), t.w.records.view()
	t.shown[key] = l
	t.of(key).Steps = append(t.of(key).Steps, trace.LockStep{
		Do: do, At: time.Since(t.w.began), StoreMS: t.w.records.now(), Token: l.Token, Active: l.State == lock.Active,
		EndMS: l.ExpiresMS, Floor: v.Floor, FenceMS: v.Fence.UntilMS,
	})
}

func (t *lockTrail) get(key string) lock.Lease {
	l, err := lock.OnRecords(t.w.records).Get(context.Background(), "t", key)
	must(err, lock.ErrNotFound)
	return l
}

// follow judges the steps of each lock.
func (t *lockTrail) follow() {
	for _, key := range slices.Sorted(maps.Keys(t.traces)) {
		one := t.traces[key]
		for _, b := range t.w.beliefs[key] {
			if b.end() > b.from {
				one.Relied = append(one.Relied, trace.Reliance{Host: t.leases[b.lease.LeaseID].host, Token: b.lease.Token, From: b.from, Until: b.end()})
			}
		}
		// Hosts go on while the disk of the store is frozen: what they do comes after the commit.
		slices.SortStableFunc(one.Steps, func(a, b trace.LockStep) int { return cmp.Compare(a.At, b.At) })
		r := one.Check()
		t.w.lockSteps += len(one.Steps)
		if len(r.Broken) > 0 {
			t.w.broken("no step of docs/model/Locks.tla, lock %s: %s", key, r.Broken[0])
		}
	}
}
