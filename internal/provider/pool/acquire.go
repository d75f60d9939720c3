package pool

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
)

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	t := p.cfg.Services.Of(req.Service)
	a := &acquire{p: p, t: t, req: req, meta: encodeMeta(req.Meta), began: time.Now()}
	a.asked.want = min(t.LeaseCount(req.ThroughputPerMS), mostLeases)
	a.counts[granted] = 1
	if p.isNew(t.Pool, req.Client) {
		a.counts[clients] = 1
	}
	leases, err := a.run(ctx)
	isFull := errors.As(err, new(*provider.FullError))
	if isFull {
		a.counts[granted], a.counts[full] = 0, 1
	}
	if isFull || err == nil {
		p.known(t.Pool, req.Client)
		p.count(t.Pool, a.counts) // if no change has written them
	}
	return leases, err
}

// acquire is one request that is carried out.
type acquire struct {
	p    *Provider
	t    provider.Terms
	req  provider.AcquireRequest
	meta []byte

	began  time.Time
	asked  asked    // as of the last change
	mine   []grant  // of the asked ones, this call's own
	head   head     // as of the last change
	counts counts   // of this request, until a change has written them
	listed *listing // after a miss
	nowMS  int64    // of the last look
	last   bool     // by the list, nothing else is free,
	nextMS int64    // and this is when something will be
}

// errMiss: nothing is free in the blocks that the rule was shown.
var errMiss = errors.New("nothing is free in some blocks")

// maxMisses bounds the changes in a row that grant nothing, since blocks fill up meanwhile. Each
// other change grants a lease that is wanted.
const maxMisses = 20

// run makes changes until the request is answered.
func (a *acquire) run(ctx context.Context) ([]lease.Lease, error) {
	for misses := 0; misses < maxMisses; {
		err := a.p.based(a.t, func(base head) error { return a.change(ctx, base) })
		missed := errors.Is(err, errMiss)
		if missed {
			err = a.list(ctx)
		}
		switch {
		case err != nil:
			return a.fail(ctx, err)
		case missed:
			misses++
		case a.asked.over():
			return a.answer(ctx)
		default:
			misses = 0
		}
	}
	return a.fail(ctx, fmt.Errorf("pool %q: %w", a.t.Pool, record.ErrBusy))
}

// list gets a list of the pool after a miss. A list from before the call may lead to free slots,
// but only one made during the call proves that nothing is free.
func (a *acquire) list(ctx context.Context) (err error) {
	if a.listed == nil {
		if a.listed, err = a.p.ends(ctx, a.t, a.nowMS, time.Time{}); err != nil {
			return err
		}
	}
	if a.listed.at.Before(a.began) && !a.listed.hasRoom(a.p.base(a.t).ringOf(a.t), a.nowMS) {
		a.listed, err = a.p.ends(ctx, a.t, a.nowMS, a.began)
	}
	return err
}

// attempt is one try of a change, with its random draws made beforehand, so that its rule is
// pure. The request is as it was before.
type attempt struct {
	p       *Provider
	t       provider.Terms
	req     provider.AcquireRequest
	name    keys
	meta    []byte
	asked   asked
	base    head
	ring    ring
	blocks  []int64
	last    bool // nothing else is free
	nextMS  int64
	from    int64 // the machine ID that the choice begins with
	nonce   nonce
	fresh   head   // of a pool that does not exist yet
	pending counts // to be written
}

// decision is the result of one run of an attempt's rule.
type decision struct {
	asked asked
	mine  []grant
	head  head
	seen  map[int64][]grant // the blocks, as they are then
	nowMS int64
	err   error // of the rule
}

// attempt makes the random draws for the next change.
func (a *acquire) attempt(base head) *attempt {
	x := &attempt{p: a.p, t: a.t, req: a.req, name: base.keys(a.t.Pool), meta: a.meta, asked: a.asked, base: base, ring: base.ringOf(a.t), fresh: newHead(a.t.Timeline, a.p.cfg.Services.Near(a.t))}
	rand.Read(x.nonce[:]) // never fails (crypto/rand ends the program instead)
	if a.listed != nil && !a.last {
		x.blocks, a.nextMS = a.listed.room(x.ring, a.nowMS, a.p.cfg.Random)
		a.last = len(x.blocks) == 0 && !a.listed.at.Before(a.began)
	}
	if len(x.blocks) == 0 && !a.last {
		x.blocks = x.ring.pick(a.p.cfg.Random)
	}
	x.last, x.nextMS = a.last, a.nextMS
	x.from = x.ring.ids.Low + a.p.cfg.Random(x.ring.ids.Count())
	x.pending = a.p.uncounted(a.t.Pool)
	return x
}

// change carries out as much of the request as one change can.
func (a *acquire) change(ctx context.Context, base head) error {
	x := a.attempt(base)
	counted := x.pending.plus(a.counts)
	var latest atomic.Pointer[decision] // a run may still be under way when the change has failed
	_, err := a.p.cfg.Records.Change(ctx, x.ask(), func(v record.View) ([]record.Write, error) {
		d, writes, err := x.rule(v, counted)
		d.err = err
		latest.Store(&d)
		return writes, err
	})
	d := cmp.Or(latest.Load(), &decision{err: errUndecided})
	carriedOut := err == nil || errors.Is(err, record.ErrUnconfirmed)
	decided := d.err == nil || errors.Is(d.err, errMiss)
	if decided && len(d.asked.got) > len(a.mine)+len(d.mine) {
		a.counts = counts{} // another call has counted the request
	}
	if !decided || !carriedOut && !errors.Is(err, errMiss) {
		if keepsCounts(err, d.err) {
			a.p.count(a.t.Pool, x.pending)
		}
		if damaged, ok := errors.AsType[*damagedError](err); ok {
			a.p.damaged(damaged.key)
		}
		if errors.Is(err, errOtherBase) {
			a.listed, a.last = nil, false
		}
		return err
	}
	a.nowMS = d.nowMS
	a.listed.update(d.seen)
	if !carriedOut || len(d.mine) == 0 {
		a.p.count(a.t.Pool, x.pending)
	} else {
		a.counts = counts{}
	}
	if carriedOut {
		a.asked, a.head, a.mine = d.asked, d.head, append(a.mine, d.mine...)
	}
	return err
}

func (x *attempt) ask() record.Ask {
	ask := record.Ask{Fresh: true, Keys: []string{x.name.head(), x.name.count(x.p.shard)}}
	if x.req.RequestID != "" {
		ask.Keys = append(ask.Keys, requestKey(x.req.Service, x.req.RequestID))
	}
	for _, block := range x.blocks {
		ask.Keys = append(ask.Keys, x.name.block(block), x.name.past(block))
	}
	return ask
}

// rule grants the free ones of the slots that were asked for. It is pure but for the provider's
// memory.
func (x *attempt) rule(v record.View, counted counts) (d decision, writes []record.Write, err error) {
	s, err := x.p.seePool(v, x.t, x.base)
	// A repeated request is no exception: its lease may have been given back since, and granted
	// to another.
	if s.fenced != nil {
		return d, nil, s.fenced
	}
	if clock := x.t.CheckClock(v.NowMS); clock != nil {
		return d, nil, clock
	}
	if err == nil && s.exists {
		err = s.head.check(x.t)
	}
	if err != nil {
		return d, nil, err
	}
	if !s.exists {
		if x.fresh.layout != x.base.layout { // of a pool that was lost
			x.p.learn(x.t.Pool, x.fresh.layout)
			return d, nil, errOtherBase
		}
		s.head = x.fresh
		writes = append(writes, record.Write{Key: s.name.head(), Value: x.fresh.value()})
	}
	d = decision{asked: x.asked.clipped(), head: s.head, seen: map[int64][]grant{}, nowMS: v.NowMS}
	request := ""
	if x.req.RequestID != "" {
		request = requestKey(x.req.Service, x.req.RequestID)
		if before := v.Records[request].Value; before != nil {
			if d.asked, err = parseAsked(before); err != nil {
				return d, nil, x.p.unreadableRequest(request, err)
			}
		}
	}
	if d.asked.over() {
		return d, nil, nil
	}
	blocks, err := x.take(s, &d)
	if err != nil {
		return d, nil, err
	}
	for _, g := range d.mine {
		d.asked.got = append(d.asked.got, named{g.start, g.bitSeq, g.nonce})
	}
	if request != "" {
		writes = append(writes, d.asked.write(request, x.t))
	}
	if len(d.mine) > 0 {
		if len(d.asked.got) > len(x.asked.got)+len(d.mine) {
			counted = x.pending // the call that has made the other grants has counted the request
		}
		writes = append(writes, s.counted(x.p.shard, counted))
		writes = append(writes, s.unmarked()...)
	}
	return d, append(writes, blocks...), nil
}

// take grants in the blocks that are seen, and returns the writes of these blocks.
func (x *attempt) take(s seenPool, d *decision) (writes []record.Write, err error) {
	var all []free
	nextMS := x.nextMS
	for _, block := range x.blocks {
		grants, err := s.grants(s.name.block(block))
		if err != nil && !x.p.isDamaged(s.name.block(block)) {
			return nil, &damagedError{s.name.block(block), err}
		}
		if err != nil {
			grants = s.head.taken(block)
		}
		d.seen[block] = grants
		some, next := x.ring.freeIn(block, d.seen[block], s.NowMS)
		all = append(all, some...)
		nextMS = earliest(nextMS, next)
	}
	low, end := x.ring.blocks()
	everything := x.last || end-low == int64(len(x.blocks))
	chosen := choose(all, x.from, d.asked.want-len(d.asked.got))
	switch {
	case len(chosen) > 0:
		d.asked.done = everything && len(chosen) == len(all)
	case everything && len(d.asked.got) > 0:
		d.asked.done = true
	case everything:
		return nil, &provider.FullError{Pool: x.t.Pool, Slots: x.t.Range().Count(), NextEndMS: nextMS}
	default:
		return nil, errMiss
	}
	slices.SortStableFunc(chosen, func(a, b free) int { return cmp.Compare(a.block, b.block) })
	for len(chosen) > 0 {
		n := slices.IndexFunc(chosen, func(f free) bool { return f.block != chosen[0].block })
		if n < 0 {
			n = len(chosen)
		}
		some, err := x.grant(s, d, chosen[:n])
		if err != nil {
			return nil, err
		}
		writes, chosen = append(writes, some...), chosen[n:]
	}
	return writes, nil
}

// grant records grants of machine IDs in one block.
func (x *attempt) grant(s seenPool, d *decision, chosen []free) ([]record.Write, error) {
	block, replaces := chosen[0].block, false
	past, err := s.grants(s.name.past(block))
	if err != nil {
		past = nil // no grant rests on it
	}
	grants := d.seen[block]
	for _, f := range chosen {
		l := x.t.Grant(f.id, s.NowMS, "")
		g := grant{
			start: l.Slot().Start, bitSeq: x.t.BitSeq, created: l.Created, expired: l.Expired, end: l.ReservedUntil,
			nonce: x.nonce, service: x.req.Service, meta: x.meta,
		}
		// This does not rely on the choice of the machine ID.
		if ends := max(s.head.sinceMS, until(grants, g.slot())); ends > s.NowMS {
			return nil, fmt.Errorf("machine ID %d of pool %q was chosen and is taken until %d: nothing is granted", f.id, x.t.Pool, ends)
		}
		if at := find(grants, g.start, g.bitSeq); at >= 0 {
			past, replaces = remember(past, grants[at]), true
			grants[at] = g
		} else {
			grants = append(grants, g)
		}
		d.mine = append(d.mine, g)
	}
	slices.SortFunc(grants, compareGrants)
	boundMeta(grants)
	d.seen[block] = grants
	writes := []record.Write{{Key: s.name.block(block), Value: encode(grants), GrantMS: x.t.LongestMS()}}
	if replaces {
		writes = append(writes, record.Write{Key: s.name.past(block), Value: encode(past), Unlisted: true})
	}
	return writes, nil
}
