package trace

import (
	"maps"
	"slices"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Pool is the trace of a pool that is seen whole: its store, its wire, its daemons and their
// folders. docs/model/Pool.tla must allow each of its steps after the steps before it.
//
// The checker knows what each process wrote to its folder. It does not look at what accidents
// made of that: a process that adopts something else than the last one wrote there is refused.
type Pool struct{ Steps []PoolStep }

// PoolStep is a step. The specification's daemons are processes here, one for each service and
// life; its folders are those of one service each.
type PoolStep struct {
	Do      string // the action in Pool.tla
	Proc    string
	Folder  string   // Start
	Machine string   // Start, Boot
	Lease   string   // which one it is about
	Leases  []string // Start: that are adopted
	Request string   // Grant, Receive, GiveUp
	Slot    snowflake.Slot
	Created int64 // Grant, Unix ms
	Expired int64 // Grant, Extend, Extended
	Until   int64 // likewise: the end of the reservation
	// MS is the time that an ID embeds, that a release tells, the mark of a Start, or what the
	// store's clock shows at an Extend.
	MS      int64
	ID, Low int64 // Emit
	Cached  bool  // Emit: a cached fallback ID
	// From is how many steps there were when the ID was asked for: it is made between then and
	// now, at an unknown moment.
	From int
	// Maybe: it is unknown whether it was carried out. Verify: whether a grant has replaced the
	// lease that no step tells of, since no client was told of it.
	Maybe bool
}

// poolLease is a grant, with its record in the store and what its holder knows.
type poolLease struct {
	PoolStep       // of the grant
	exp, end int64 // in the store
	released bool
	lost     bool  // the store has known it no longer at some time
	known    int64 // until when its holder may use it
	until    int64 // until when its holder believes it reserved
	used     bool  // an ID was made under it
	last     int64 // that such an ID embeds
	sent     map[int64]bool
	sentMS   int64 // the earliest of sent
	wasSent  bool
}

// poolProc is a process.
type poolProc struct {
	down    bool
	folder  string
	asked   map[string]bool
	held    map[string]bool // false: it was cut off from it
	cached  string
	regular map[string]int    // until which step a lease was for regular IDs, that is not so now
	any     map[string]int    // until which step it was for any
	leaving map[string]string // how far a release is
	begin   int64             // the mark that it began at
	lasts   []poolLast
}

// poolLast is the greatest ID of a process after so many steps.
type poolLast struct {
	at int
	id int64
	ms int64
}

// pool is the state of Pool.tla.
type pool struct {
	at      int
	leases  map[string]*poolLease
	order   []*poolLease
	procs   map[string]*poolProc
	folders map[string]*poolFolder
	fence   int64
	r       *Result
	breaks  func(format string, args ...any)
}

// PoolActions are the names of the actions of Pool.tla, in order.
func PoolActions() []string { return slices.Sorted(maps.Keys(poolActions)) }

// poolActions are the actions of Pool.tla.
var poolActions = map[string]func(*pool, *poolProc, PoolStep){
	"Grant": (*pool).Grant, "Receive": (*pool).Receive, "GiveUp": (*pool).GiveUp, "Extend": (*pool).Extend, "Extended": (*pool).Extended,
	"Verify": (*pool).Verify, "Keep": (*pool).Keep, "Seal": (*pool).Seal, "Forget": (*pool).Forget, "Send": (*pool).Send,
	"TakeBack": (*pool).TakeBack, "Released": (*pool).Released, "Refused": (*pool).Refused, "Unanswered": (*pool).Unanswered,
	"Start": (*pool).Start, "Kill": (*pool).Kill, "Emit": (*pool).Emit, "Restore": (*pool).Restore, "Boot": (*pool).Boot,
	"Backup": (*pool).Befalls, "CopyDirectory": (*pool).Befalls, "CloneMachine": (*pool).Befalls, "MoveAway": (*pool).Befalls,
	"MoveBack": (*pool).Befalls, "MoveFiles": (*pool).Befalls, "CopyFiles": (*pool).Befalls, "PutLeases": (*pool).Befalls, "PutMarks": (*pool).Befalls,
}

// Check follows the trace.
func (t Pool) Check() (r Result) {
	p := &pool{leases: map[string]*poolLease{}, procs: map[string]*poolProc{}, folders: map[string]*poolFolder{}, r: &r, breaks: r.breaks}
	for i, s := range t.Steps {
		act, known := poolActions[s.Do]
		if !known {
			p.breaks("%s is no action of Pool.tla", s.Do)
			break
		}
		q := p.procs[s.Proc]
		if q == nil {
			q = &poolProc{down: true, asked: map[string]bool{}, held: map[string]bool{}, regular: map[string]int{}, any: map[string]int{}, leaving: map[string]string{}}
			p.procs[s.Proc] = q
		}
		p.at = i
		act(p, q, s)
	}
	return r
}

// lease returns the lease of a step. A lease that was never granted is refused.
func (p *pool) lease(s PoolStep) *poolLease {
	l := p.leases[s.Lease]
	if l == nil {
		p.breaks("%s: %s is about %s, which was never granted", s.Do, s.Proc, s.Lease)
		l = &poolLease{PoolStep: s, sent: map[int64]bool{}}
		p.leases[s.Lease] = l
	}
	return l
}

func (q *poolProc) uses(lease string) bool { return q.held[lease] || q.cached == lease && lease != "" }

// user returns a process that uses the lease, other than beside, which may; "": none does.
func (p *pool) user(lease string, beside *poolProc) string {
	for _, name := range slices.Sorted(maps.Keys(p.procs)) {
		if q := p.procs[name]; q != beside && !q.down && q.uses(lease) {
			return name
		}
	}
	return ""
}

// Grant: the store has a record of its own for each grant here. The order of two grants is not
// seen if the process of the store was killed between them and their answers.
func (p *pool) Grant(q *poolProc, s PoolStep) {
	p.r.Grants++
	q.asked[s.Request] = true
	l := &poolLease{PoolStep: s, exp: s.Expired, end: s.Until, known: s.Expired, until: s.Until, sent: map[int64]bool{}}
	if s.Created < p.fence {
		p.breaks("Restore: %s is granted %d ms before the fence ends", s.Lease, p.fence-s.Created)
	}
	for _, other := range p.order {
		if !other.Slot.Overlaps(s.Slot) {
			continue
		}
		p.r.Pairs++
		switch {
		case other.Created <= s.Created && other.end > s.Created, other.Created > s.Created && l.end > other.Created:
			p.breaks("Free: %s is granted at %d, and %s, created %d, ends at %d", s.Lease, s.Created, other.Lease, other.Created, other.end)
		case other.Slot == s.Slot && other.Created <= s.Created:
			other.lost = true // its record was replaced
		}
	}
	p.leases[s.Lease], p.order = l, append(p.order, l)
}

// Receive: the process takes the lease up (rule 13). It may hear of it more than once.
func (p *pool) Receive(q *poolProc, s PoolStep) {
	l := p.lease(s)
	switch other := p.user(s.Lease, q); {
	case l.Request != s.Request || !q.asked[s.Request]:
		p.breaks("Receive: %s takes up %s, which was granted to request %s, not its own %s", s.Proc, s.Lease, l.Request, s.Request)
	case other != "":
		p.breaks("OneUser: %s and %s use %s", s.Proc, other, s.Lease)
	}
	q.held[s.Lease] = true
	p.lists(q, s.Lease)
}

// lists: the leases file of the process's folder may list the lease from now on.
func (p *pool) lists(q *poolProc, lease string) {
	if f := p.folders[q.folder]; f != nil {
		f.lists[lease] = true
	}
}

// GiveUp: the process takes no answer to the request any more.
func (p *pool) GiveUp(q *poolProc, s PoolStep) {
	if !q.asked[s.Request] {
		p.breaks("GiveUp: %s waits for no answer to %s", s.Proc, s.Request)
	}
	delete(q.asked, s.Request)
}

// Extend: the store extends a lease.
func (p *pool) Extend(q *poolProc, s PoolStep) {
	l := p.lease(s)
	if l.released || s.MS >= l.exp || !q.held[s.Lease] {
		p.breaks("Extend: %s is extended at %d, released: %v, its end %d", s.Lease, s.MS, l.released, l.exp)
	}
	if s.MS < p.fence {
		p.breaks("Restore: %s is extended %d ms before the fence ends", s.Lease, p.fence-s.MS)
	}
	for _, other := range p.order {
		if other != l && other.Slot.Overlaps(l.Slot) && other.end > s.MS {
			p.breaks("OthersEnded: %s is extended at %d, and %s ends at %d", s.Lease, s.MS, other.Lease, other.end)
		}
	}
	l.exp, l.end = max(l.exp, s.Expired), max(l.end, s.Until)
}

// Extended: the holder hears of it.
func (p *pool) Extended(q *poolProc, s PoolStep) {
	l := p.lease(s)
	if s.Expired > l.exp || s.Until > l.end || !q.held[s.Lease] {
		p.breaks("Extended: %s hears that %s ends at %d, and the store has %d", s.Proc, s.Lease, s.Expired, l.exp)
	}
	l.known, l.until = max(l.known, s.Expired), max(l.until, s.Until)
}

// Verify: the process hears that the lease is lost, and drops it.
func (p *pool) Verify(q *poolProc, s PoolStep) {
	if l := p.lease(s); !l.lost && !s.Maybe {
		p.breaks("Verify: %s hears that %s is lost, and the store has it", s.Proc, s.Lease)
	}
	p.drop(q, s.Lease)
}

// drop cuts the process off from a lease.
func (p *pool) drop(q *poolProc, lease string) {
	if q.held[lease] {
		q.regular[lease] = p.at
	}
	if q.uses(lease) {
		q.any[lease] = p.at
	}
	delete(q.held, lease)
	if q.cached == lease {
		q.cached = ""
	}
}

// Keep: the lease stays for cached fallback, in place of another.
func (p *pool) Keep(q *poolProc, s PoolStep) {
	if !q.uses(s.Lease) {
		p.breaks("Keep: %s keeps %s, which it does not have", s.Proc, s.Lease)
	}
	if q.cached != "" && q.cached != s.Lease {
		p.drop(q, q.cached)
	}
	p.drop(q, s.Lease)
	q.cached = s.Lease
	p.lists(q, s.Lease)
}

// Seal: the generator is cut off (rules 7 and 10). Several leases may be on their way back.
func (p *pool) Seal(q *poolProc, s PoolStep) {
	if !q.uses(s.Lease) {
		p.breaks("Seal: %s is cut off from %s, which it does not have", s.Proc, s.Lease)
	}
	p.drop(q, s.Lease)
	q.leaving[s.Lease] = "sealed"
}

// Forget: the leases file lists the lease no longer (rule 8). A lease that has run out may be gone
// from the file before the generator is cut off from it: only a start looks at the file, and a
// process that is killed in between has done both.
func (p *pool) Forget(q *poolProc, s PoolStep) {
	if f := p.folder(q.folder); !f.lists[s.Lease] {
		p.breaks("Forget: %s forgets %s, which is not in its file", s.Proc, s.Lease)
	} else {
		delete(f.lists, s.Lease)
	}
}

// Send: the release goes on its way (rules 9 and 12). If no ID was made under the lease, any
// time will do.
func (p *pool) Send(q *poolProc, s PoolStep) {
	l := p.lease(s)
	last := max(q.last(p.at).ms, l.last)
	switch {
	case q.leaving[s.Lease] == "sent":
		p.breaks("Send: %s sends the release of %s again", s.Proc, s.Lease)
	case q.leaving[s.Lease] != "sealed":
		p.breaks("Send: %s sends the release of %s, from which it is not cut off", s.Proc, s.Lease)
	case l.used && s.MS < last:
		p.breaks("LastTimestamp: %s sends the release of %s with %d, and has embedded %d", s.Proc, s.Lease, s.MS, last)
	}
	p.gone(s)
	if !l.wasSent || s.MS < l.sentMS {
		l.sentMS = s.MS
	}
	l.sent[s.MS], l.wasSent = true, true
	q.leaving[s.Lease] = "sent"
}

// gone is ReleasedIsGone for a lease.
func (p *pool) gone(s PoolStep) {
	if user := p.user(s.Lease, nil); user != "" {
		p.breaks("ReleasedIsGone: %s: %s uses %s", s.Do, user, s.Lease)
	}
	for _, name := range slices.Sorted(maps.Keys(p.folders)) {
		if f := p.folders[name]; f.lists[s.Lease] && !f.foreign {
			p.breaks("ReleasedIsGone: %s: folder %s lists %s", s.Do, name, s.Lease)
		}
	}
}

// TakeBack: the store carries out a release that was sent. Once more changes nothing.
func (p *pool) TakeBack(_ *poolProc, s PoolStep) {
	l := p.lease(s)
	if !l.sent[s.MS] {
		p.breaks("TakeBack: the store takes %s back with %d, and nobody has sent that", s.Lease, s.MS)
	}
	if !s.Maybe && !l.released {
		p.gone(s)
		l.released, l.lost = true, true
	}
	l.end = min(l.end, max(s.MS+1, l.Created)) // Ended
}

// Released: the process hears that the store has taken the lease back.
func (p *pool) Released(q *poolProc, s PoolStep) {
	if l := p.lease(s); !l.released || q.leaving[s.Lease] != "sent" {
		p.breaks("Released: %s hears that %s was released, which is %q; in the store: %v", s.Proc, s.Lease, q.leaving[s.Lease], l.released)
	}
	delete(q.leaving, s.Lease)
}

// Refused: the lease is put back for the next start. No release of it is on its way, or was sent
// at all: of several that leave, the first may not have been sent.
func (p *pool) Refused(q *poolProc, s PoolStep) {
	l := p.lease(s)
	switch {
	case q.leaving[s.Lease] == "":
		p.breaks("Refused: %s puts %s back, which is %q", s.Proc, s.Lease, q.leaving[s.Lease])
	case l.released:
		p.breaks("Refused: %s puts %s back, which the store has taken back", s.Proc, s.Lease)
	}
	delete(q.leaving, s.Lease)
	clear(l.sent)
	l.wasSent = false
	p.lists(q, s.Lease)
}

// Unanswered: the lease is gone (rule 11).
func (p *pool) Unanswered(q *poolProc, s PoolStep) {
	if q.leaving[s.Lease] != "sent" {
		p.breaks("Unanswered: %s hears nothing of its release of %s, which is %q", s.Proc, s.Lease, q.leaving[s.Lease])
	}
	delete(q.leaving, s.Lease)
}

// Restore: the store falls back. The fence outlasts the grants that it may have forgotten (rule
// 6).
func (p *pool) Restore(*poolProc, PoolStep) {
	for _, l := range p.order {
		l.lost = true
		p.fence = max(p.fence, l.end)
	}
}

// Befalls is what happens to files and copies. Start judges what comes of it.
func (p *pool) Befalls(*poolProc, PoolStep) {}

// last is the greatest ID of the process after so many steps.
func (q *poolProc) last(at int) (last poolLast) {
	for _, l := range slices.Backward(q.lasts) {
		if l.at < at {
			return l
		}
	}
	return last
}

// Emit: an ID reaches its caller.
func (p *pool) Emit(q *poolProc, s PoolStep) {
	p.r.Emits++
	l := p.under(q, s)
	switch last := q.last(s.From); {
	case s.ID <= last.id:
		p.breaks("CanMake: %s makes ID %d after %d", s.Proc, s.ID, last.id)
	case s.MS < q.begin:
		p.breaks("Begin: %s embeds %d, and began at %d", s.Proc, s.MS, q.begin)
	case l == nil && !s.Cached:
		p.breaks("Regular: %s embeds %d with the low bits %d under no lease that it uses", s.Proc, s.MS, s.Low)
	case l == nil:
		p.breaks("Cached: %s embeds %d with the low bits %d under no lease that it uses", s.Proc, s.MS, s.Low)
	case l.wasSent && s.MS > l.sentMS && (!s.Cached || s.MS < l.until):
		p.breaks("Send: %s embeds %d under %s, whose release was sent with %d", s.Proc, s.MS, l.Lease, l.sentMS)
	}
	if l != nil {
		l.used, l.last = true, max(l.last, s.MS)
	}
	if greatest := q.last(p.at); s.ID > greatest.id {
		q.lasts = append(q.lasts, poolLast{p.at, s.ID, max(greatest.ms, s.MS)})
	}
}

// under is the lease under which the ID was made: the latest lease that allows it and that the
// process has used since it was asked.
func (p *pool) under(q *poolProc, s PoolStep) (found *poolLease) {
	to := q.regular
	if s.Cached {
		to = q.any
	}
	for _, l := range p.order {
		at, was := to[l.Lease]
		used := q.held[l.Lease] || s.Cached && q.cached == l.Lease || was && at >= s.From
		in := s.Low >= l.Slot.Start && s.Low < l.Slot.End && s.MS >= l.Created && (s.Cached || s.MS < l.known)
		if used && in && (found == nil || found.Created <= l.Created) {
			found = l
		}
	}
	return found
}
