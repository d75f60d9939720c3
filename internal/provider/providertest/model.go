package providertest

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// model is the rules of leases in their simplest form: one list of records, searched
// from end to end each time.
//
// It reads no clock. Each grant says when it was made, and the model checks that the
// provider did the right thing at that time.
type model struct {
	records []*modelGrant // the latest grant of each slot
	grants  []*modelGrant // all of them, oldest first
}

type modelGrant struct {
	lease    lease.Lease
	earlier  lease.Lease // as it was before the last extension
	service  string
	request  string
	meta     map[string]string
	end      int64
	keptMS   int64 // until then the request is remembered
	released bool
}

// end is when the slot can be granted: the largest end of the records that overlap it.
func (m *model) end(s snowflake.Slot) int64 {
	var end int64
	for _, r := range m.records {
		if r.lease.Slot().Overlaps(s) {
			end = max(end, r.end)
		}
	}
	return end
}

// latest reports whether the grant is the latest of its slot.
func (m *model) latest(g *modelGrant) bool { return slices.Contains(m.records, g) }

// extend carries out an extension at nowMS, and returns nil, or the error that is due.
func (m *model) extend(g *modelGrant, nowMS int64, longer lease.Lease) error {
	if !m.latest(g) {
		return provider.ErrBadSignature
	}
	if g.released || nowMS >= g.lease.Expired {
		return provider.ErrConflict
	}
	for _, other := range m.records {
		if other != g && other.lease.Slot().Overlaps(g.lease.Slot()) && other.end > nowMS {
			return provider.ErrConflict
		}
	}
	g.earlier, g.lease, g.end = g.lease, longer, max(g.end, longer.ReservedUntil)
	return nil
}

// freeFrom is when the first machine ID of the terms can be granted.
func (m *model) freeFrom(t provider.Terms) int64 {
	first := int64(math.MaxInt64)
	for id := t.Range().Low; id < t.Range().End; id++ {
		first = min(first, m.end(t.Layout().Slot(id)))
	}
	return first
}

// grant carries out a grant that the provider made, or says why it was wrong.
func (m *model) grant(g *modelGrant) error {
	l := g.lease
	if end := m.end(l.Slot()); end > l.Created {
		return fmt.Errorf("machine ID %d was granted at %d; it is free at %d", l.ID, l.Created, end)
	}
	g.end, g.earlier, g.keptMS = l.ReservedUntil, l, l.ReservedUntil
	m.grants = append(m.grants, g)
	m.records = slices.DeleteFunc(m.records, func(r *modelGrant) bool { return r.lease.ID == l.ID && r.lease.BitSeq == l.BitSeq })
	m.records = append(m.records, g)
	return nil
}

// asked returns those leases of the request that live at nowMS, and whether they are all.
func (m *model) asked(service, request string, nowMS int64) (living []lease.Lease, all bool) {
	all = true
	for _, g := range m.grants {
		if g.request != request || g.service != service {
			continue
		}
		if m.latest(g) && !g.released && nowMS < g.lease.Expired {
			living = append(living, g.lease)
		} else {
			all = false
		}
	}
	return living, all
}

// since is how many grants of its slot came after the grant.
func (m *model) since(g *modelGrant) (n int) {
	for _, later := range m.grants[slices.Index(m.grants, g)+1:] {
		if later.lease.Slot() == g.lease.Slot() {
			n++
		}
	}
	return n
}

// replaced reports whether the slot of a lease of the request was granted again.
func (m *model) replaced(service, request string) bool {
	return slices.ContainsFunc(m.grants, func(g *modelGrant) bool {
		return g.request == request && g.service == service && !m.latest(g)
	})
}

// forget has the request not be repeated any more.
func (m *model) forget(service, request string) {
	for _, g := range m.grants {
		if g.service == service && g.request == request {
			g.request = ""
		}
	}
}

// testModel runs random operations on a store, by two providers, and compares it with
// the model.
func testModel(t *rapid.T, s *suite) {
	services := modelServices(s.store.SetClock != nil)
	if s.store.OneLayout {
		for name, t := range services.Named {
			one := t.WithBitSeq(services.Default.BitSeq)
			if shift := one.BitSeq - t.BitSeq; shift >= 0 { // the same low bits
				one.IDs = provider.IDRange{Low: t.IDs.Low >> shift, End: t.IDs.End >> shift}
			}
			services.Named[name] = one
		}
	}
	c := &checker{suite: s, model: &model{}, client: s.openServices(services), other: s.openServices(services)}
	actions := map[string]func(*rapid.T){
		// Seeds 000-4.1-1, 000-4.2-5, 000-4.4-1, 000-4.4-4, 000-6.2-3, 000-6.4-1, 000-A.12-1 and 001-10.
		"acquire": c.acquire,
		"repeat":  c.repeat,
		"release": c.release, // seeds 000-4.5-2 and 000-7.2-2
		"list":    c.list,    // seeds 000-6.1-1 and 001-21
		"verify":  c.verify,
		"extend":  c.extend,
		"locate":  c.locate,
		"time":    func(t *rapid.T) { s.passes(drawStep(t, s.store.SetClock != nil)) },
		"":        func(*rapid.T) { c.latest = max(c.latest, c.now()) },
	}
	actions["acquire again"] = c.acquire // as often as everything else together
	t.Repeat(actions)
	if s.store.SetClock != nil { // where time costs nothing, longer histories
		t.Repeat(actions)
		t.Repeat(actions)
	}
}

// modelServices is services in one small pool, in layouts with slots that overlap in every way:
// 64 of the finest, 4 of the coarsest.
func modelServices(settable bool) provider.Services {
	base := provider.DefaultTerms()
	base.Timeline.BitTS = snowflake.ValueBits - 7
	base.Term, base.Quarantine = time.Second, 500*time.Millisecond
	if !settable {
		base.Term, base.Quarantine = 20*time.Millisecond, 10*time.Millisecond
	}
	base.MaxLeasesPerAcquire = 5
	short := base.WithBitSeq(2)
	short.Term, short.Quarantine = base.Term/2, 0
	named := map[string]provider.Terms{
		"finest":   base.WithBitSeq(0),
		"coarse":   base.WithBitSeq(3),
		"coarsest": base.WithBitSeq(4),
		"range":    ids(base.WithBitSeq(2), 3, 9),
		"range2":   ids(base.WithBitSeq(1), 8, 20),
		"short":    short,
	}
	return provider.Services{Default: base.WithBitSeq(2), Named: named}
}

// drawRequest draws the n-th request.
func drawRequest(t *rapid.T, services provider.Services, n int) provider.AcquireRequest {
	names := append([]string{""}, slices.Sorted(maps.Keys(services.Named))...)
	some := rapid.Int64Range(0, 24)
	return provider.AcquireRequest{
		Service:         rapid.SampledFrom(names).Draw(t, "service"),
		ThroughputPerMS: rapid.OneOf(some, some, rapid.SampledFrom([]int64{-1, math.MinInt64, 1 << 20})).Draw(t, "throughput"),
		RequestID:       fmt.Sprintf("request-%d", n),
		Meta:            map[string]string{"n": fmt.Sprint(n)},
		Client:          provider.KnownClient, // another provider may repeat it
	}
}

// drawRelease draws a release of the lease: now, nearly now, at the edges of the window,
// or at the lease's end.
func drawRelease(t *rapid.T, service string, l lease.Lease, nowMS int64, settable bool) provider.ReleaseRequest {
	window := provider.ReleaseWindow.Milliseconds()
	off := []int64{0, 0, 0, -700, 700, -2 * window, 2 * window}
	if settable { // else a running clock decides at the edges
		off = append(off, -window, window, -window-1, window+1, 1<<50)
	}
	req := provider.ReleaseRequest{
		Service: service, ID: l.ID, BitSeq: rapid.SampledFrom([]int{l.BitSeq, provider.AnyBitSeq}).Draw(t, "bit_seq"),
		TimestampMS: nowMS + rapid.SampledFrom(off).Draw(t, "off"),
		AtEnd:       rapid.IntRange(0, 3).Draw(t, "at the end if 0") == 0,
	}
	if req.AtEnd {
		req.TimestampMS = l.Expired - rapid.Int64Range(0, 2).Draw(t, "before the end")
	}
	return req
}

// drawStep draws how many ms pass.
func drawStep(t *rapid.T, settable bool) int64 {
	if !settable {
		return rapid.Int64Range(1, 40).Draw(t, "ms")
	}
	hour := time.Hour.Milliseconds()
	return rapid.OneOf(
		rapid.Int64Range(1, 300), rapid.Int64Range(1, 3000), rapid.Int64Range(1, 3000),
		rapid.Int64Range(-2000, 0), rapid.SampledFrom([]int64{hour, -hour}),
	).Draw(t, "ms")
}

// drawLatest draws one of the latest elements.
func drawLatest[G any](t *rapid.T, all []G) G {
	n := len(all)
	if n == 0 {
		t.Skip("nothing was granted")
	}
	return all[n-1-rapid.IntRange(0, min(n-1, 30)).Draw(t, "grant (0 is the latest)")]
}

func drawForged(t *rapid.T) bool { return rapid.IntRange(0, 9).Draw(t, "forged if 0") == 0 }

// checker compares two providers on one store with the model.
type checker struct {
	*suite
	model         *model
	client, other *client // which take turns
	latest        int64   // the clock at its most
	counter       int     // of requests
}

// turn picks the provider of the next step.
func (c *checker) turn() *client {
	c.client, c.other = c.other, c.client
	return c.client
}

func (c *checker) acquire(t *rapid.T) {
	c.counter++
	req := drawRequest(t, c.client.services, c.counter)
	before := c.now()
	leases, err := c.turn().try(req)
	c.answered(t, req, before, leases, err)
}

// answered compares the answer to a request that is no repetition.
func (c *checker) answered(t *rapid.T, req provider.AcquireRequest, before int64, leases []lease.Lease, err error) {
	terms := c.client.services.Of(req.Service)
	if full, ok := errors.AsType[*provider.FullError](err); ok {
		end := c.model.freeFrom(terms)
		if end <= before || *full != (provider.FullError{Pool: terms.Pool, Slots: terms.Range().Count(), NextEndMS: end}) {
			t.Fatalf("%q at %d: FullError %+v; the first slot is free at %d", req.Service, before, full, end)
		}
		return
	}
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	for _, l := range leases {
		if err := c.model.grant(&modelGrant{lease: l, service: req.Service, request: req.RequestID, meta: req.Meta}); err != nil {
			t.Fatalf("%q: %v", req.Service, err)
		}
	}
	want := terms.LeaseCount(req.ThroughputPerMS)
	// Fewer than requested: then no other one was free.
	if end := c.model.freeFrom(terms); len(leases) > want || len(leases) < want && end <= leases[0].Created {
		t.Fatalf("%q: %d leases of %d were granted, and another one is free at %d", req.Service, len(leases), want, end)
	}
	if c.store.SetClock != nil && leases[0].Created != before {
		t.Fatalf("created is %d at %d", leases[0].Created, before)
	}
}

// repeat repeats a request. A request that may have been forgotten is answered as before, or as a
// new one: after a term and its quarantine, and once another grant has a slot of its leases.
func (c *checker) repeat(t *rapid.T) {
	g := drawLatest(t, c.model.grants)
	if g.request == "" {
		t.Skip("it may have been forgotten")
	}
	req := provider.AcquireRequest{Service: g.service, ThroughputPerMS: 1, RequestID: g.request, Client: provider.KnownClient}
	before := c.now()
	leases, err := c.turn().try(req)
	c.latest = max(c.latest, c.now())
	living, all := c.model.asked(g.service, g.request, before)
	_, still := c.model.asked(g.service, g.request, c.now())
	replaced := c.model.replaced(g.service, g.request)
	switch {
	case err == nil && slices.Equal(leases, living) && (all || replaced):
	case errors.Is(err, provider.ErrConflict) && !still:
	case replaced || c.latest >= g.keptMS:
		c.model.forget(g.service, g.request)
		req.RequestID = "" // from now on it is not repeated
		c.answered(t, req, before, leases, err)
	default:
		t.Fatalf("the repeated request gave %v and the error %v; of its leases live %v, which are all: %v", leases, err, living, all)
	}
}

func (c *checker) release(t *rapid.T) {
	g := drawLatest(t, c.model.grants)
	l, now := g.lease, c.now()
	req := drawRelease(t, g.service, l, now, c.store.SetClock != nil)
	secret := l.Secret
	if drawForged(t) {
		secret = "forged"
	}
	req.Signature = lease.Sign(secret, l.ID, req.TimestampMS)
	err := c.turn().release(l, req)
	window := provider.ReleaseWindow.Milliseconds()
	off := req.TimestampMS - now
	inTime := off >= -window && off <= window || req.AtEnd && req.TimestampMS == l.Expired-1
	switch {
	case !c.model.latest(g) || secret != l.Secret:
		if !errors.Is(err, provider.ErrTimestampSkew) { // which of two faults is reported is open
			c.want(err, provider.ErrBadSignature)
		}
	case g.released: // at any time
		c.must(err)
	case !inTime:
		c.want(err, provider.ErrTimestampSkew)
	default:
		c.must(err)
		g.end, g.released = provider.ReleasedEnd(l.Created, g.end, req.TimestampMS), true
	}
}

// extend sometimes knows only the lease from before the last extension: then the lease stays as
// it is.
func (c *checker) extend(t *rapid.T) {
	g := drawLatest(t, c.model.grants)
	known := rapid.SampledFrom([]lease.Lease{g.lease, g.lease, g.earlier}).Draw(t, "known")
	if drawForged(t) {
		known.Secret = "forged"
		_, err := c.turn().extend(g.service, known)
		c.want(err, provider.ErrBadSignature)
		return
	}
	terms := c.client.services.Of(g.service)
	before := c.now()
	longer, err := c.turn().extend(g.service, known)
	after := c.now()
	want := g.lease
	if known == g.lease {
		want.Expired = max(want.Expired, before+terms.Term.Milliseconds())
		want.ReservedUntil = max(want.ReservedUntil, want.Expired+terms.Quarantine.Milliseconds())
	}
	if c.store.SetClock == nil {
		if after >= g.lease.Expired || err == nil {
			want = longer // which of two answers is right is a matter of milliseconds
		}
		if after >= g.lease.Expired {
			before = after
			if err == nil {
				before = g.lease.Expired - 1
			}
		}
	}
	if due := c.model.extend(g, before, want); !errors.Is(err, due) || err == nil && longer != want {
		t.Fatalf("Extend gave %+v and the error %v, want %+v and %v", longer, err, want, due)
	}
}

func (c *checker) list(t *rapid.T) {
	records := c.turn().list()
	if len(records) != len(c.model.records) {
		t.Fatalf("List has %d records, want %d", len(records), len(c.model.records))
	}
	for _, r := range records {
		ok := slices.ContainsFunc(c.model.records, func(g *modelGrant) bool {
			l := g.lease
			l.Secret, l.ReservedUntil = "", r.Lease.ReservedUntil
			return l == r.Lease && g.end == r.End && g.released == r.Released && g.service == r.Service && maps.Equal(g.meta, r.Meta)
		})
		if !ok {
			t.Fatalf("List has %+v, which is not as it should be", r)
		}
	}
}

func (c *checker) verify(t *rapid.T) {
	var asked, want []lease.Lease
	forge := rapid.IntRange(0, 40).Draw(t, "forged")
	for i, g := range c.model.grants[max(0, len(c.model.grants)-20):] {
		claimed, forged := g.lease, i == forge
		if forged {
			claimed.Secret = "forged"
		}
		asked = append(asked, claimed)
		if forged || !c.model.latest(g) || g.released {
			want = append(want, claimed)
		}
	}
	ctx, cancel := c.ctx()
	defer cancel()
	lost, err := provider.Verify(ctx, c.turn().Provider, "", asked)
	if err != nil || !slices.Equal(lost, want) {
		t.Fatalf("Verify gave %v and the error %v, want %v", lost, err, want)
	}
}

func (c *checker) locate(t *rapid.T) {
	l := drawLatest(t, c.model.grants).lease
	low := l.Slot().Start + rapid.Int64Range(0, l.Slot().Size()-1).Draw(t, "in the slot")
	at := rapid.SampledFrom([]int64{l.Created - 1, l.Created, l.Expired - 1, l.Expired, c.now()}).Draw(t, "time")
	held := map[int64]bool{} // by created: of two grants that overlap, only one holds the time
	for _, g := range c.model.grants {
		if c.model.since(g) >= provider.KeptGrants {
			continue // it is forgotten
		}
		ended := g.lease.Expired
		if g.released {
			ended = min(ended, g.end)
		}
		if slot := g.lease.Slot(); slot.Start <= low && low < slot.End && g.lease.Created <= at && at < ended {
			held[g.lease.Created] = true
		}
	}
	found := c.turn().locate(low, at)
	for _, r := range found {
		if !held[r.Lease.Created] {
			t.Fatalf("Locate(%d, %d) gave %+v, which did not hold it", low, at, r)
		}
	}
	if len(found) != len(held) {
		t.Fatalf("Locate(%d, %d) gave %+v, want %d grants", low, at, found, len(held))
	}
}
