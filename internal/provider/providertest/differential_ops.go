package providertest

import (
	"errors"
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

func (d *differential) acquire(t *rapid.T) {
	c := d.turn(t)
	d.counter++
	d.ask(t, c, drawRequest(t, c[0].services, d.counter))
}

// draw draws one of the latest grants that fit: often the one of the operation before, so
// that operations on one grant follow each other, or one that has not ended.
func (d *differential) draw(t *rapid.T, fit func(*twin) bool) *twin {
	which := rapid.SampledFrom([]string{"before", "taken", "any"}).Draw(t, "which")
	if which == "before" && d.focus != nil && fit(d.focus) {
		return d.focus
	}
	var all, taken []*twin
	for _, g := range d.twins {
		if fit(g) {
			all = append(all, g)
			if d.now() < g.now[0].ReservedUntil {
				taken = append(taken, g)
			}
		}
	}
	if which == "taken" && len(taken) > 0 {
		all = taken
	}
	d.focus = drawLatest(t, all)
	return d.focus
}

func anyTwin(*twin) bool { return true }

// ahead sets the clock to the end of a lease, unless it was released, has a slot granted
// that overlaps the lease's, mostly in another layout, and sets the clock back.
func (d *differential) ahead(t *rapid.T) {
	g := d.draw(t, func(g *twin) bool { return g.pool == provider.DefaultPool && !g.gone })
	back, slot := d.now(), g.now[0].Slot()
	if g.released == nil {
		d.set(max(back, g.now[0].ReservedUntil))
		d.say("the clock is set")
	}
	service := rapid.SampledFrom([]string{g.service, "", "finest", "coarse", "coarsest"}).Draw(t, "service")
	bitSeq := d.main[0].services.Of(service).BitSeq
	id := rapid.Int64Range(slot.Start>>bitSeq, (slot.End-1)>>bitSeq).Draw(t, "machine ID")
	d.counter++
	d.askOf(t, d.main, provider.AcquireRequest{Service: service, RequestID: fmt.Sprintf("request-%d", d.counter)}, provider.IDRange{Low: id, End: id + 1})
	d.set(back)
	d.say("the clock is set")
}

// askAll acquires a lease of each pool.
func (d *differential) askAll(t *rapid.T, c *pair[*client]) {
	for _, service := range allServices {
		d.counter++
		d.ask(t, c, provider.AcquireRequest{Service: service, RequestID: fmt.Sprintf("request-%d", d.counter)})
	}
}

// ask sends both a request that was not answered before. The choice of slots is the same
// on both.
func (d *differential) ask(t *rapid.T, c *pair[*client], req provider.AcquireRequest) {
	terms := c[0].services.Of(req.Service)
	told := terms.Range()
	if want := terms.LeaseCount(req.ThroughputPerMS); want > 1 {
		told = d.narrow(t, terms, want)
	}
	d.askOf(t, c, req, told)
}

// askOf asks for leases of a range that has no more free machine IDs than are due, or for one.
func (d *differential) askOf(t *rapid.T, c *pair[*client], req provider.AcquireRequest, told provider.IDRange) (granted bool) {
	terms := c[0].services.Of(req.Service)
	if req.Service == crowd {
		_, _ = both(d, fmt.Sprintf("%sacquire %q, %d IDs/ms", d.by(c), req.Service, req.ThroughputPerMS), func(i int) (int, error) {
			leases, err := c[i].try(req)
			return len(leases), err
		})
		return false
	}
	want, chooser := terms.LeaseCount(req.ThroughputPerMS), 0
	if want == 1 {
		chooser = rapid.IntRange(0, 1).Draw(t, "chooses")
	}
	var leases pair[[]lease.Lease]
	var errs pair[error]
	for _, i := range []int{chooser, 1 - chooser} {
		leases[i], errs[i] = c[i].within(req, told)
		if want == 1 && len(leases[i]) == 1 {
			told = provider.IDRange{Low: leases[i][0].ID, End: leases[i][0].ID + 1}
		}
	}
	what := fmt.Sprintf("%sacquire %q, %q, %d IDs/ms, from ids=%v", d.by(c), req.Service, req.RequestID, req.ThroughputPerMS, told)
	d.same(what, leases[0], errs[0], leases[1], errs[1])
	if errs[0] != nil {
		return false
	}
	b := byID(leases[1])
	for i, a := range byID(leases[0]) {
		both := pair[lease.Lease]{a, b[i]}
		d.twins = append(d.twins, &twin{
			now: both, before: both, pool: terms.Pool, service: req.Service, request: req.RequestID, keptMS: a.ReservedUntil,
		})
	}
	return true
}

// narrow draws a range in which at most so many machine IDs are free.
func (d *differential) narrow(t *rapid.T, terms provider.Terms, want int) provider.IDRange {
	all, now := terms.Range(), d.now()
	low := rapid.Int64Range(all.Low, all.End-1).Draw(t, "lowest machine ID")
	told := provider.IDRange{Low: low, End: low}
	for free := 0; free < want && told.End < all.End; told.End++ {
		slot := terms.Layout().Slot(told.End)
		if !slices.ContainsFunc(d.records[terms.Pool], func(r provider.Record) bool { return r.End > now && r.Lease.Slot().Overlaps(slot) }) {
			free++
		}
	}
	return told
}

// within acquires while the service is narrowed to some machine IDs.
func (c *client) within(req provider.AcquireRequest, told provider.IDRange) ([]lease.Lease, error) {
	whole := c.services.Named[req.Service]
	defer func() { c.services.Named[req.Service] = whole }()
	narrow := whole
	narrow.IDs = told
	c.services.Named[req.Service] = narrow
	return c.try(req)
}

// repeat sends a request ID again, also for another service or throughput, and late.
func (d *differential) repeat(t *rapid.T) {
	g := d.draw(t, d.remembered)
	d.toItsEnd(t, g)
	req := provider.AcquireRequest{
		Service:         rapid.SampledFrom([]string{g.service, g.service, g.service, "", "short", elsewhere}).Draw(t, "service"),
		ThroughputPerMS: rapid.Int64Range(0, 24).Draw(t, "throughput"), RequestID: g.request,
	}
	c := d.turn(t)
	answered, all := d.answered(req)
	switch {
	case len(answered) == 0:
		d.ask(t, c, req)
	case all:
		d.askAgain(t, c, req)
	default:
		t.Skip("a store may not remember it")
	}
}

// answered returns the grants of a request, and whether both stores must remember them all.
func (d *differential) answered(req provider.AcquireRequest) (grants []*twin, all bool) {
	all = true
	for _, g := range d.twins {
		if g.service == req.Service && g.request == req.RequestID && !g.gone {
			grants = append(grants, g)
			all = all && d.remembered(g)
		}
	}
	return grants, all
}

// askAgain repeats a request that both stores must remember.
func (d *differential) askAgain(t *rapid.T, c *pair[*client], req provider.AcquireRequest) {
	answered, _ := d.answered(req)
	what := fmt.Sprintf("%srepeat %q, %q, %d IDs/ms", d.by(c), req.Service, req.RequestID, req.ThroughputPerMS)
	answers, err := both(d, what, func(i int) ([]lease.Lease, error) { return c[i].try(req) })
	for i := 0; i < 2 && err == nil; i++ {
		var want []lease.Lease
		for _, g := range answered {
			want = append(want, g.now[i])
		}
		if got := byID(answers[i]); !slices.Equal(got, byID(want)) {
			t.Fatalf("%s: %s, and before %s", what, shown(got, nil), shown(byID(want), nil))
		}
	}
}

// taken ends a lease, and repeats its request: mostly the slot was granted to another before.
func (d *differential) taken(t *rapid.T) {
	c := d.turn(t)
	g := d.draw(t, func(g *twin) bool { return g.released == nil && !g.gone && !d.covered(g) })
	end := g.now[0].ReservedUntil
	how := rapid.SampledFrom([]string{"released", "released, and granted", "ended, and granted"}).Draw(t, "how")
	if how != "ended, and granted" {
		d.releaseAs(c, g, provider.ReleaseRequest{Service: g.service, BitSeq: g.now[0].BitSeq, TimestampMS: d.now()}, false)
		end = min(end, max(d.now()+1, g.now[0].Created))
	}
	req := provider.AcquireRequest{Service: g.service, RequestID: g.request}
	if how == "released" {
		if _, all := d.answered(req); all {
			d.askAgain(t, c, req)
		}
		d.extendAs(t, c, g, g.now, false)
		return
	}
	d.set(max(d.now(), end))
	d.say("the clock is set")
	d.counter++
	slot := provider.IDRange{Low: g.now[0].ID, End: g.now[0].ID + 1}
	if !d.askOf(t, d.main, provider.AcquireRequest{Service: g.service, RequestID: fmt.Sprintf("request-%d", d.counter)}, slot) {
		return
	}
	if _, all := d.answered(req); all {
		d.askAgain(t, c, req)
		return
	}
	// A store that has forgotten the request finds nothing free for it.
	what := fmt.Sprintf("%srepeat %q, %q, which may be forgotten, from ids=%v", d.by(c), req.Service, req.RequestID, slot)
	d.say("%s", what)
	for i := range 2 {
		leases, err := c[i].within(req, slot)
		_, full := errors.AsType[*provider.FullError](err)
		if full && g.pool == provider.DefaultPool {
			d.forgotten[i]++
		}
		if !full && !errors.Is(err, provider.ErrConflict) {
			t.Fatalf("%s: store %d answers %s; its slot was granted again", what, i+1, shown(leases, err))
		}
	}
}

// remembered reports whether both stores must remember the grant's request, or have
// forgotten all.
func (d *differential) remembered(g *twin) bool {
	return g.gone || d.latest < g.keptMS && !d.covered(g)
}

func (d *differential) release(t *rapid.T) {
	c := d.turn(t)
	again := rapid.IntRange(0, 2).Draw(t, "repeated if 0") == 0
	g := d.draw(t, func(g *twin) bool { return (g.released != nil || !again) && !d.covered(g) })
	forged := rapid.IntRange(0, 9).Draw(t, "forged if 0") == 0
	req := drawRelease(t, g.service, g.now[0], d.now(), true)
	if rapid.IntRange(0, 2).Draw(t, "at the end if 0") == 0 {
		req.AtEnd, req.TimestampMS = true, g.now[0].Expired-rapid.SampledFrom([]int64{1, 1, 0, 2}).Draw(t, "before the end")
	}
	if g.released != nil && !forged {
		req = *g.released
		if rapid.Bool().Draw(t, "late") {
			d.set(max(d.now(), req.TimestampMS+2*provider.ReleaseWindow.Milliseconds()))
			d.say("the clock is set")
		}
	}
	if forged || g.gone {
		req.BitSeq = g.now[0].BitSeq // there may be others with this machine ID
	}
	d.releaseAs(c, g, req, forged)
}

// releaseAs releases the grant with this request, signed, or with a forged signature.
func (d *differential) releaseAs(c *pair[*client], g *twin, req provider.ReleaseRequest, forged bool) {
	req.ID = g.now[0].ID
	what := fmt.Sprintf("%srelease %s at %d (at the end: %v, forged: %v, bit_seq %d)",
		d.by(c), shown(g.now[0], nil), req.TimestampMS-testTime, req.AtEnd, forged, req.BitSeq)
	_, err := both(d, what, func(i int) (string, error) {
		l, signed := g.now[i], req
		if forged {
			l.Secret = "forged"
		}
		signed.Signature = lease.Sign(l.Secret, l.ID, req.TimestampMS)
		return "done", c[i].release(g.now[i], signed)
	})
	if err == nil {
		g.released = &req
	}
}

// extend sometimes knows only what the lease was before the last extension that moved its end.
func (d *differential) extend(t *rapid.T) {
	g := d.draw(t, anyTwin)
	d.toItsEnd(t, g)
	known := rapid.SampledFrom([]*pair[lease.Lease]{&g.now, &g.now, &g.now, &g.before}).Draw(t, "known")
	forged := rapid.IntRange(0, 9).Draw(t, "forged if 0") == 0
	d.extendAs(t, d.turn(t), g, *known, forged)
}

// extendAgain extends a lease while it lives, and repeats the request later.
func (d *differential) extendAgain(t *rapid.T) {
	g := d.draw(t, func(g *twin) bool { return g.released == nil && !g.gone && d.now() < g.now[0].Expired })
	known := g.now
	for range 2 {
		d.set(min(d.now()+rapid.Int64Range(0, 300).Draw(t, "ms"), g.now[0].Expired-1))
		d.say("the clock is set")
		d.extendAs(t, d.turn(t), g, known, false)
	}
}

// extendAs extends the grant by a request that knows this of it.
func (d *differential) extendAs(t *rapid.T, c *pair[*client], g *twin, known pair[lease.Lease], forged bool) {
	ask := func(i int) (lease.Lease, error) {
		l := known[i]
		if forged {
			l.Secret = "forged"
		}
		longer, err := c[i].extend(g.service, l)
		longer.Secret = l.Secret
		return longer, err
	}
	what := fmt.Sprintf("%sextend %s (forged: %v)", d.by(c), shown(known[0], nil), forged)
	if d.covered(g) {
		for i := range 2 {
			if longer, err := ask(i); err == nil {
				t.Fatalf("%s: a later grant covers it, and store %d extended it to %s", what, i+1, shown(longer, nil))
			}
		}
		d.say("%s: a later grant covers it", what)
		return
	}
	longer, err := both(d, what, ask)
	if err != nil {
		return
	}
	if longer[0].Expired != g.now[0].Expired {
		g.before = g.now
	}
	g.now = longer
}

func (d *differential) verify(t *rapid.T) {
	service := rapid.SampledFrom(poolServices).Draw(t, "service")
	c := d.turn(t)
	forged, later := rapid.IntRange(-20, 20).Draw(t, "forged (0 is the latest)"), rapid.Int64Range(0, 1).Draw(t, "later")
	_, err := both(d, d.by(c)+"verify "+service, func(i int) ([]int, error) {
		var claims []provider.Claim
		for _, g := range d.twins[max(0, len(d.twins)-20):] {
			if g.pool == c[i].services.Of(service).Pool && !d.covered(g) {
				claims = append(claims, provider.ClaimOf(g.now[i]))
			}
		}
		if at := len(claims) - 1 - forged; 0 <= forged && 0 <= at {
			claims[at].Signature = "00"
			claims[at].CreatedMS += later // as if the record was older
		}
		ctx, cancel := c[i].suite.ctx()
		defer cancel()
		lost, err := c[i].Verify(ctx, service, claims)
		return append([]int{}, lost...), err
	})
	d.stores[0].must(err)
}

// locate asks about grants that are not long ago.
func (d *differential) locate(t *rapid.T) {
	if !d.can().Locate {
		t.Skip("a store keeps no history")
	}
	g := d.draw(t, anyTwin)
	l := g.now[0]
	low := l.Slot().Start + rapid.Int64Range(0, l.Slot().Size()-1).Draw(t, "in the slot")
	times := []int64{l.Created - 1, l.Created, l.Expired - 1, l.Expired, d.now()}
	if g.released != nil {
		times = []int64{l.Created, g.released.TimestampMS, g.released.TimestampMS + 1, l.Expired - 1}
	}
	at := rapid.SampledFrom(times).Draw(t, "time")
	_, err := both(d, fmt.Sprintf("locate %d at %d", low, at-testTime), func(i int) ([]provider.Record, error) {
		found := []provider.Record{}
		for _, r := range d.main[i].locate(low, at) {
			if d.grantsSince(r.Lease) < 8 {
				r.Lease.ReservedUntil = 0
				found = append(found, provider.Record{Lease: r.Lease, Service: r.Service})
			}
		}
		return found, nil
	})
	d.stores[0].must(err)
}

// grantsSince is how many grants of its slot, in the default pool, were made after the lease's.
func (d *differential) grantsSince(l lease.Lease) (n int) {
	for _, g := range d.twins {
		if other := g.now[0]; g.pool == provider.DefaultPool && other.ID == l.ID && other.BitSeq == l.BitSeq && other.Created > l.Created {
			n++
		}
	}
	return n
}

// time lets time pass, jumps, or goes to a moment at which something ends.
func (d *differential) time(t *rapid.T) {
	at := d.now() + drawStep(t, true)
	var edges []int64
	if fenced := d.main[0].Fenced(); fenced != nil {
		edges = []int64{fenced.UntilMS - 1, fenced.UntilMS, fenced.UntilMS}
	} else if len(d.twins) > 0 {
		l := d.draw(t, anyTwin).now[0]
		edges = []int64{l.Created, l.Expired - 1, l.Expired, l.ReservedUntil - 1, l.ReservedUntil, d.now() + 2*provider.ReleaseWindow.Milliseconds()}
	}
	if len(edges) > 0 && rapid.Bool().Draw(t, "to an edge") {
		at = rapid.SampledFrom(edges).Draw(t, "edge")
	}
	d.set(at)
	d.say("the clock is set")
}

// toItsEnd sometimes sets the clock to the last moment of a lease, or to the one after.
func (d *differential) toItsEnd(t *rapid.T, g *twin) {
	last := g.now[0].Expired - 1
	if g.released == nil && d.now() < last && rapid.IntRange(0, 5).Draw(t, "at its end if 0") == 0 {
		d.set(last + rapid.Int64Range(0, 1).Draw(t, "after its end"))
		d.say("the clock is set")
	}
}

// fence fences both stores: an operator does, or they lose everything.
func (d *differential) fence(t *rapid.T) {
	loses := d.stores[0].store.Empty != nil && d.stores[1].store.Empty != nil
	if !d.can().Fence && !loses || rapid.IntRange(0, 1).Draw(t, "fence if 0") > 0 {
		t.Skip("no fence")
	}
	loses = loses && (!d.can().Fence || rapid.IntRange(0, 2).Draw(t, "loses all if 0") == 0)
	d.set(d.latest)
	if loses {
		d.forget(t)
	} else {
		d.fenceByHand(d.turn(t))
	}
	d.verify(t) // a fenced store says less of leases
}

func (d *differential) fenceByHand(c *pair[*client]) {
	d.byHand = true
	_, err := both(d, d.by(c)+"fence by hand", func(i int) (int64, error) {
		ctx, cancel := c[i].suite.ctx()
		defer cancel()
		fenced, err := c[i].Fence(ctx)
		if err != nil {
			return 0, err
		}
		return fenced.UntilMS - testTime, nil
	})
	d.stores[0].must(err)
}

// forget puts an empty backup in the place of both stores. Their clients are opened anew,
// and each asks, so that the stores know how long its terms are.
func (d *differential) forget(t *rapid.T) {
	d.say("the stores lose everything")
	d.lost, d.records = true, map[string][]provider.Record{}
	for _, g := range d.twins {
		g.gone = true
	}
	for _, s := range d.stores {
		s.closeAll()
		s.must(s.store.Empty())
	}
	d.main = d.open(1)
	clients := []*pair[*client]{d.main}
	if d.foreign != nil {
		d.foreign = d.open(3)
		clients = []*pair[*client]{d.foreign, d.main}
	}
	for i := range d.stores {
		for _, c := range clients {
			for _, service := range allServices {
				c[i].mustBeFenced(provider.AcquireRequest{Service: service})
			}
		}
	}
	d.askAll(t, d.main)
}

// init declares that nothing is missing. Where something is, it would be a lie.
func (d *differential) init(t *rapid.T) {
	if !d.byHand || d.lost || !d.can().Init {
		t.Skip("there is nothing to declare")
	}
	d.byHand = false
	_, err := both(d, "init", func(i int) (string, error) {
		ctx, cancel := d.main[i].suite.ctx()
		defer cancel()
		return "done", d.main[i].Init(ctx, "")
	})
	d.stores[0].must(err)
}
