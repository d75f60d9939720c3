package pool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

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
	a := &acquire{p: p, t: t, req: req, meta: encodeMeta(req.Meta)}
	a.asked.want = min(t.LeaseCount(req.ThroughputPerMS), mostLeases)
	a.counts[granted] = 1
	if p.isNew(t.Pool, req.Client) {
		a.counts[clients] = 1
	}
	leases, err := a.run(ctx)
	isFull := errors.As(err, new(*provider.FullError))
	if isFull {
		a.counts[granted], a.counts[full] = 0, 1
		p.count(t.Pool, a.counts) // no change has written them
	}
	if isFull || err == nil {
		p.known(t.Pool, req.Client)
	}
	return leases, err
}

// acquire is one request that is carried out.
type acquire struct {
	p    *Provider
	t    provider.Terms
	req  provider.AcquireRequest
	meta []byte

	asked  asked    // as of the last change
	mine   []grant  // of the asked ones, this call's own
	head   head     // as of the last change
	counts counts   // of this request, until a change has written them
	listed *listing // after a miss
	nowMS  int64    // of the last look
}

// errMiss: nothing is free in the blocks that the rule was shown.
var errMiss = errors.New("nothing is free in some blocks")

// maxMisses bounds the changes in a row that grant nothing, since blocks fill up meanwhile. Each
// other change grants a lease that is wanted.
const maxMisses = 20

// run makes changes until the request is answered. After an error the same request gets what was
// granted before.
func (a *acquire) run(ctx context.Context) ([]lease.Lease, error) {
	for misses := 0; misses < maxMisses; {
		err := a.p.based(a.t, func(base head) error { return a.change(ctx, base) })
		missed := errors.Is(err, errMiss)
		if missed {
			misses, err = misses+1, a.list(ctx)
		}
		switch {
		case errors.Is(err, record.ErrUnconfirmed):
			return nil, fmt.Errorf("%w; %s", err, a.unconfirmed(ctx))
		case err != nil:
			if a.req.RequestID == "" {
				_ = a.unconfirmed(ctx) // nobody can ask for them again
			}
			return nil, failure(err)
		case missed:
		case a.asked.over():
			return a.answer(ctx)
		default:
			misses = 0
		}
	}
	return nil, failure(fmt.Errorf("pool %q: %w", a.t.Pool, record.ErrBusy))
}

// list gets a list of the pool after the first miss.
func (a *acquire) list(ctx context.Context) (err error) {
	if a.listed == nil {
		a.listed, err = a.p.ends(ctx, a.t, a.nowMS)
	}
	return err
}

// attempt is one try of a change, with its random draws made beforehand, so that its rule is
// pure.
type attempt struct {
	acquire // as it was before
	base    head
	ring    ring
	blocks  []int64
	last    bool  // by the list, nothing else is free,
	nextMS  int64 // and this is when something will be
	from    int64 // the machine ID that the choice begins with
	nonce   nonce
	fresh   head // of a pool that does not exist yet
}

// decision is the result of one run of an attempt's rule.
type decision struct {
	asked asked
	mine  []grant
	head  head
	seen  map[int64][]grant // the blocks, as they are then
	nowMS int64
}

// attempt makes the random draws for the next change.
func (a *acquire) attempt(base head) *attempt {
	x := &attempt{acquire: *a, base: base, ring: base.ringOf(a.t), fresh: newHead(a.t.Timeline, a.t.BitSeq)}
	rand.Read(x.nonce[:]) // never fails (crypto/rand ends the program instead)
	x.from = x.ring.ids.Low + a.p.cfg.Random(x.ring.ids.Count())
	if a.listed == nil {
		x.blocks = x.ring.pick(x.from)
	} else {
		x.blocks, x.nextMS = a.listed.room(x.ring, a.nowMS, x.from)
		x.last = len(x.blocks) == 0
	}
	return x
}

// change carries out as much of the request as one change can.
func (a *acquire) change(ctx context.Context, base head) error {
	x := a.attempt(base)
	pending := a.p.uncounted(a.t.Pool)
	counted := pending.plus(a.counts)
	last, err := change(ctx, a.p.cfg.Records, x.ask(), func(v record.View) (decision, []record.Write, error) { return x.rule(v, counted) })
	d := last.result
	isDone := last.err == nil && (err == nil || errors.Is(err, record.ErrUnconfirmed))
	switch {
	case isDone && len(d.mine) > 0:
		a.counts = counts{} // they are written, as are the pending ones
	case isDone || keepsCounts(err, last.err):
		a.p.count(a.t.Pool, pending)
	}
	switch {
	case isDone:
		a.asked, a.head, a.mine = d.asked, d.head, append(a.mine, d.mine...)
	case last.err == nil && a.req.RequestID == "" && errors.Is(err, record.ErrOutrun):
		// They are given back if they were granted. Else none has their nonce.
		a.head, a.mine = d.head, append(a.mine, d.mine...)
	}
	if isDone || errors.Is(err, errMiss) && errors.Is(last.err, errMiss) {
		a.nowMS = d.nowMS
		a.listed.update(d.seen)
	}
	if errors.Is(err, errOtherBase) {
		a.listed = nil
	}
	return err
}

func (x *attempt) ask() record.Ask {
	name := x.base.keys(x.t.Pool)
	ask := record.Ask{Fresh: true, Keys: []string{name.head(), name.count(x.p.shard)}}
	if x.req.RequestID != "" {
		ask.Keys = append(ask.Keys, requestKey(x.req.Service, x.req.RequestID))
	}
	for _, block := range x.blocks {
		ask.Keys = append(ask.Keys, name.block(block), name.past(block))
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
				return d, nil, provider.ErrConflict // which leases it has is not known: they end by themselves
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
		writes = append(writes, s.counted(x.p.shard, counted))
		writes = append(writes, s.unmarked()...)
	}
	return d, append(writes, blocks...), nil
}

// take grants in the blocks that are seen, and returns the writes of these blocks.
func (x *attempt) take(s seenPool, d *decision) (writes []record.Write, err error) {
	var all []free
	var damage error
	nextMS := x.nextMS
	for _, block := range x.blocks {
		grants, err := s.grants(s.name.block(block))
		if err != nil { // it is full, and others may not be
			grants, damage = s.head.taken(block), err
		}
		d.seen[block] = grants
		some, next := x.ring.freeIn(block, grants, s.NowMS)
		all = append(all, some...)
		nextMS = earliest(nextMS, next)
	}
	low, end := x.ring.blocks()
	everything := x.last || end-low == int64(len(x.blocks))
	isFull := everything && len(d.asked.got)+len(all) == 0
	chosen := choose(all, x.from, d.asked.want-len(d.asked.got))
	switch {
	case isFull && damage != nil:
		return nil, damage
	case isFull:
		return nil, &provider.FullError{Pool: x.t.Pool, Slots: x.t.Range().Count(), NextEndMS: nextMS}
	case everything && len(chosen) == len(all):
		d.asked.want = len(d.asked.got) + len(chosen) // a repetition gets no more
	case len(chosen) == 0:
		return nil, errMiss
	}
	for _, block := range x.blocks {
		some := slices.DeleteFunc(slices.Clone(chosen), func(f free) bool { return f.block != block })
		if len(some) == 0 {
			continue
		}
		more, err := x.grant(s, d, some)
		if err != nil {
			return nil, err
		}
		writes = append(writes, more...)
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
