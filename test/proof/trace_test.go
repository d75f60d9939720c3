package proof

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/test/trace"
)

// trail is what a world knows of its leases and IDs: at the end test/trace holds it against
// docs/model/Pool.tla. It sees what a keeper does to its generator, its file and the wire, and
// what the store does.
type trail struct {
	trace.Pool
	w        *world
	names    map[string]string // of leases, by their secrets
	grants   map[string]granted
	askers   map[string]*trailed // by request
	answered map[string]bool     // requests with a grant
	carried  string              // the request that has arrived last: lease servers give it another ID
	folders  map[*node]string
	// unsure are slots with records that may be of grants that no daemon was told of, with their
	// created.
	unsure map[snowflake.Slot]int64
	lives  int // of streams
}

// granted is a lease with the request that it was granted to, and its latest end.
type granted struct {
	lease   lease.Lease
	request string
	expired int64
}

// trailed is what the trail knows of a stream.
type trailed struct {
	name, folder string
	request      string          // the latest
	got          bool            // its answer
	uses         map[string]bool // leases that the generator has or had
	lists        map[string]bool // what the leases file may list
	failed       map[string]bool // releases without success, in this turn
	ended        bool
}

func newTrail(w *world) trail {
	return trail{w: w, names: map[string]string{}, grants: map[string]granted{}, askers: map[string]*trailed{}, answered: map[string]bool{}, folders: map[*node]string{}, unsure: map[snowflake.Slot]int64{}}
}

// note adds a step. Without one of the rules only equal IDs count.
func (t *trail) note(s trace.PoolStep) {
	if !t.w.off {
		t.Steps = append(t.Steps, s)
	}
}

func (t *trail) of(s *stream, do string, l lease.Lease) {
	t.note(trace.PoolStep{Do: do, Proc: s.trail.name, Lease: t.names[l.Secret], Request: t.grants[l.Secret].request})
}

// befalls notes what happens to files and copies.
func (t *trail) befalls(do string) { t.note(trace.PoolStep{Do: do}) }

// starts notes that the stream begins with the leases that it has found.
func (t *trail) starts(s *stream, found state.Saved, mark int64) {
	t.lives++
	s.trail = trailed{
		name: fmt.Sprint(s.name(), " in life ", t.lives), folder: t.folder(s),
		uses: map[string]bool{}, lists: map[string]bool{}, failed: map[string]bool{},
	}
	step := trace.PoolStep{Do: "Start", Proc: s.trail.name, Folder: s.trail.folder, Machine: s.d.at.name, MS: mark}
	for _, l := range append(deref(found.Cached), found.Held...) {
		step.Leases = append(step.Leases, t.names[l.Secret])
		s.trail.uses[l.Secret], s.trail.lists[l.Secret] = true, true
	}
	t.note(step)
	if found.Cached != nil {
		t.of(s, "Keep", *found.Cached)
	}
}

// folder names the stream's folder. Without a live directory nothing survives the process.
func (t *trail) folder(s *stream) string {
	at, found := s.d.ownFolder()
	if !found {
		return fmt.Sprint("of life ", t.lives, " alone")
	}
	if t.folders[at.node()] == "" {
		t.folders[at.node()] = fmt.Sprint("folder ", len(t.folders)+1)
	}
	return t.folders[at.node()] + "/" + s.svc.name
}

// asks notes a request, and that its life takes no answer to the one before.
func (t *trail) asks(s *stream, request string) {
	q := &s.trail
	if request != q.request && !q.got && t.answered[q.request] {
		t.note(trace.PoolStep{Do: "GiveUp", Proc: q.name, Request: q.request})
	}
	if request != q.request {
		q.request, q.got = request, false
	}
	t.askers[request] = q
}

// noted is the provider as the store's side of the trail.
type noted struct {
	provider.Provider
	t *trail
}

// Acquire implements provider.Provider.
func (n noted) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	leases, err := n.Provider.Acquire(ctx, req)
	for _, l := range leases {
		n.t.granted(l, n.t.carried)
	}
	if errors.Is(err, record.ErrUnconfirmed) {
		records, failed := n.List(ctx, req.Service)
		must(failed, nil)
		n.t.unconfirmed(records)
	}
	return leases, err
}

// unconfirmed notes which records are those of grants that are not told to anyone yet.
func (t *trail) unconfirmed(records []provider.Record) {
	told := map[snowflake.Slot]int64{}
	for _, g := range t.grants {
		told[g.lease.Slot()] = max(told[g.lease.Slot()], g.lease.Created)
	}
	for _, r := range records {
		if slot := r.Lease.Slot(); told[slot] != r.Lease.Created {
			t.unsure[slot] = r.Lease.Created
		}
	}
}

// granted notes a grant, unless it was answered before.
func (t *trail) granted(l lease.Lease, request string) {
	if t.names[l.Secret] != "" {
		return
	}
	t.names[l.Secret] = fmt.Sprint("lease ", len(t.names)+1)
	t.grants[l.Secret], t.answered[request] = granted{l, request, l.Expired}, true
	asker := ""
	if by := t.askers[request]; by != nil {
		asker = by.name
	}
	t.note(trace.PoolStep{
		Do: "Grant", Proc: asker, Lease: t.names[l.Secret], Request: request, Slot: l.Slot(), Created: l.Created, Expired: l.Expired, Until: l.ReservedUntil,
	})
}

// Extend implements provider.Provider. If the store's process was killed, its records say whether
// it had carried the extension out.
func (n noted) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	longer, err := n.Provider.Extend(ctx, req)
	if err == nil {
		n.t.extended(req, longer)
	} else if errors.Is(err, errKilled) {
		records, failed := n.List(ctx, req.Service)
		must(failed, nil)
		for _, r := range records {
			if l := r.Lease; l.ID == req.ID && l.BitSeq == req.BitSeq && l.Created == req.CreatedMS {
				n.t.extended(req, l)
			}
		}
	}
	return longer, err
}

// extended notes that a lease lasts longer, and when that was by the store's clock.
func (t *trail) extended(req provider.ExtendRequest, longer lease.Lease) {
	l, known := t.leaseOf(req.ID, req.BitSeq, req.Signed)
	g := t.grants[l.Secret]
	if !known || longer.Expired <= g.expired {
		return
	}
	g.expired = longer.Expired
	t.grants[l.Secret] = g
	t.note(trace.PoolStep{
		Do: "Extend", Proc: t.askers[g.request].name, Lease: t.names[l.Secret], MS: longer.Expired - l.Term(), Expired: longer.Expired, Until: longer.ReservedUntil,
	})
}

// Release implements provider.Provider. If the store's process was killed, it may have carried
// the release out.
func (n noted) Release(ctx context.Context, req provider.ReleaseRequest) error {
	err := n.Provider.Release(ctx, req)
	if err == nil || errors.Is(err, errKilled) {
		if l, known := n.t.released(req); known {
			n.t.note(trace.PoolStep{Do: "TakeBack", Lease: n.t.names[l.Secret], MS: req.TimestampMS, Maybe: err != nil})
		}
	}
	return err
}

// released is the lease that a release is about.
func (t *trail) released(req provider.ReleaseRequest) (lease.Lease, bool) {
	return t.leaseOf(req.ID, req.BitSeq, req.Signed)
}

func (t *trail) leaseOf(id int64, bitSeq int, signed func(secret string) bool) (lease.Lease, bool) {
	for secret, g := range t.grants {
		if g.lease.ID == id && g.lease.BitSeq == bitSeq && signed(secret) {
			return g.lease, true
		}
	}
	return lease.Lease{}, false
}

// gets notes that the generator gets leases.
func (t *trail) gets(s *stream, leases []lease.Lease) {
	for _, l := range leases {
		if !s.trail.uses[l.Secret] {
			s.trail.uses[l.Secret], s.trail.got = true, true
			t.of(s, "Receive", l)
		}
	}
}

// loses notes that the generator is cut off from its leases, but for one for fallback. It has
// answered earlier requests by now.
func (t *trail) loses(s *stream, had []lease.Lease, hadCached *lease.Lease) {
	for _, l := range append(deref(hadCached), had...) {
		if !contains(s.held, l) && !isCached(s.cached, l) && s.trail.uses[l.Secret] {
			t.of(s, "Seal", l)
			s.trail.uses[l.Secret] = false
		}
	}
	if s.cached != nil && !isCached(hadCached, *s.cached) {
		t.of(s, "Keep", *s.cached)
	}
}

// lost notes that the stream hears of a lease that was taken over.
func (t *trail) lost(s *stream, claim provider.Claim) {
	if l, known := t.leaseOf(claim.ID, claim.BitSeq, claim.Signed); known && s.trail.uses[l.Secret] {
		t.note(trace.PoolStep{
			Do: "Verify", Proc: s.trail.name, Lease: t.names[l.Secret], Request: t.grants[l.Secret].request, Maybe: t.unsure[l.Slot()] > l.Created,
		})
		s.trail.uses[l.Secret] = false
	}
}

// saves notes what the leases file may list from now on, even if the write fails.
func (t *trail) saves(s *stream, content state.Saved) {
	for _, l := range append(deref(content.Cached), content.Held...) {
		if s.trail.lists[l.Secret] {
			continue
		}
		s.trail.lists[l.Secret] = true
		used, known := s.trail.uses[l.Secret]
		switch {
		case known && !used:
			delete(s.trail.failed, l.Secret)
			t.of(s, "Refused", l)
		case isCached(content.Cached, l):
			t.of(s, "Keep", l)
		default:
			t.of(s, "Receive", l)
			s.trail.uses[l.Secret], s.trail.got = true, true
		}
	}
}

// saved notes the leases that it lists no longer, for certain.
func (t *trail) saved(s *stream, content state.Saved) {
	for _, secret := range slices.Sorted(maps.Keys(s.trail.lists)) {
		if l := t.grants[secret].lease; !contains(content.Held, l) && !isCached(content.Cached, l) {
			delete(s.trail.lists, secret)
			t.of(s, "Forget", l)
		}
	}
}

// sends notes a release. A lease that was refused at once was never used.
func (t *trail) sends(s *stream, req provider.ReleaseRequest) {
	l, known := t.released(req)
	if !known {
		return
	}
	if _, used := s.trail.uses[l.Secret]; !used {
		s.trail.uses[l.Secret] = false
		t.of(s, "Receive", l)
		t.of(s, "Seal", l)
		t.of(s, "Forget", l)
	}
	t.note(trace.PoolStep{Do: "Send", Proc: s.trail.name, Lease: t.names[l.Secret], MS: req.TimestampMS})
}

// hears notes the answer to a release, or that there was none yet.
func (t *trail) hears(s *stream, req provider.ReleaseRequest, err error) {
	l, known := t.released(req)
	switch {
	case known && err == nil:
		t.of(s, "Released", l)
	case known:
		s.trail.failed[l.Secret] = true
	}
}

// ends notes, at the end of a turn, which leases were not put back.
func (t *trail) ends(s *stream) {
	for _, secret := range slices.Sorted(maps.Keys(s.trail.failed)) {
		t.of(s, "Unanswered", t.grants[secret].lease)
	}
	clear(s.trail.failed)
}

// emits notes an ID that was asked for when there were from steps.
func (t *trail) emits(s *stream, line snowflake.Timeline, id snowflake.ID, kind generator.Kind, from int) {
	low := line.Low(id)
	if kind == generator.FallbackCachedID {
		low -= line.FallbackBit()
	}
	t.note(trace.PoolStep{Do: "Emit", Proc: s.trail.name, MS: line.UnixMS(id), ID: int64(id), Low: low, Cached: kind == generator.FallbackCachedID, From: from})
}

// killed notes the end of the stream.
func (t *trail) killed(s *stream) {
	if s.trail.name != "" && !s.trail.ended {
		s.trail.ended = true
		t.note(trace.PoolStep{Do: "Kill", Proc: s.trail.name})
	}
}

// follow judges the steps of the world, unless a rule is switched off: then only equal IDs count.
func (w *world) follow() {
	if w.off || w.fault != "" {
		return
	}
	if w.whole {
		w.lockTrail.follow()
		w.placeTrail.follow()
	}
	w.followed = w.trail.Check()
	if broken := w.followed.Broken; len(broken) > 0 {
		w.fault = "no step of docs/model/Pool.tla: " + broken[0]
	}
}
