package providertest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// model is what a provider must do, told as simply as can be: one list of
// records, looked through from end to end each time.
//
// It reads no clock. Each grant says when it was made, and the model checks
// that the provider then did the right thing at that time.
type model struct {
	records []*modelRecord // the latest grant of each slot
	cursors map[modelRing]int64
	grants  []*modelGrant // all of them, oldest first
}

type modelRing struct {
	bitSeq int
	ids    provider.IDRange
}

// modelRecord is the latest grant of a slot.
type modelRecord struct{ grant *modelGrant }

type modelGrant struct {
	lease    lease.Lease
	service  string
	request  string
	end      int64
	released bool
}

// end is from when on the slot can be granted: the largest end of the records
// that overlap it.
func (m *model) end(s snowflake.Slot) int64 {
	var end int64
	for _, r := range m.records {
		if r.grant.lease.Slot().Overlaps(s) {
			end = max(end, r.grant.end)
		}
	}
	return end
}

// extend carries out an extension at nowMS, and returns nil, or the error that
// is due. The extended lease is what the provider said.
func (m *model) extend(g *modelGrant, nowMS int64, longer lease.Lease) error {
	r := m.record(g.lease.ID, g.lease.BitSeq)
	if r.grant != g {
		return provider.ErrBadSignature
	}
	if g.released || nowMS >= g.lease.Expired {
		return provider.ErrConflict
	}
	for _, other := range m.records {
		if other != r && other.grant.lease.Slot().Overlaps(g.lease.Slot()) && other.grant.end > nowMS {
			return provider.ErrConflict
		}
	}
	g.lease, g.end = longer, max(g.end, longer.ReservedUntil)
	return nil
}

// record is the latest grant of exactly this slot; nil if it was never granted.
func (m *model) record(id int64, bitSeq int) *modelRecord {
	for _, r := range m.records {
		if r.grant.lease.ID == id && r.grant.lease.BitSeq == bitSeq {
			return r
		}
	}
	return nil
}

// choose is the machine IDs that may be granted next, and their end: the one
// with the least (end, distance), or, in a ring without a cursor, all with the
// least end.
func (m *model) choose(t provider.Terms) (machineIDs []int64, end int64) {
	ids := t.Range()
	cursor, known := m.cursors[modelRing{t.BitSeq, ids}]
	for step := int64(1); step <= ids.Count(); step++ {
		id := step - 1 + ids.Low
		if known {
			id = ids.Low + (cursor-ids.Low+step)%ids.Count()
		}
		e := m.end(t.Layout().Slot(id))
		switch {
		case len(machineIDs) == 0 || e < end:
			machineIDs, end = []int64{id}, e
		case e == end && !known:
			machineIDs = append(machineIDs, id)
		}
	}
	return machineIDs, end
}

// grant carries out a grant that the provider made, or says why it was wrong.
func (m *model) grant(t provider.Terms, g *modelGrant) error {
	l := g.lease
	allowed, end := m.choose(t)
	if end > l.Created {
		return fmt.Errorf("machine ID %d was granted at %d; the first one is free at %d", l.ID, l.Created, end)
	}
	if !slices.Contains(allowed, l.ID) {
		return fmt.Errorf("machine ID %d, free since %d, was granted; it is the turn of %v, free since %d",
			l.ID, m.end(l.Slot()), allowed, end)
	}
	m.cursors[modelRing{t.BitSeq, t.Range()}] = l.ID
	m.grants = append(m.grants, g)
	r := m.record(l.ID, l.BitSeq)
	if r == nil {
		r = &modelRecord{}
		m.records = append(m.records, r)
	}
	g.end = l.ReservedUntil
	r.grant = g
	return nil
}

// asked is the earlier grants of the request, and whether all still live at nowMS.
func (m *model) asked(service, request string, nowMS int64) (grants []*modelGrant, live bool) {
	live = true
	for _, g := range m.grants {
		if g.request != request || g.service != service {
			continue
		}
		grants = append(grants, g)
		r := m.record(g.lease.ID, g.lease.BitSeq)
		live = live && r.grant == g && !g.released && nowMS < g.lease.Expired
	}
	return grants, live
}

// checkModel runs random operations on a store and compares it with the model.
func checkModel(t *rapid.T, s *suite) {
	c := &checker{
		suite: s, model: &model{cursors: map[modelRing]int64{}},
		client: s.openServices(modelServices(s.store.SetClock != nil)),
	}
	actions := map[string]func(*rapid.T){
		"acquire": c.acquire,
		"repeat":  c.repeat,
		"release": c.release,
		"time":    c.passes,
		"":        func(*rapid.T) { c.checkSometimes() },
	}
	actions["acquire again"] = c.acquire // as often as everything else together
	if c.client.Info().Can.List {
		actions["list"] = c.list
	}
	if c.client.Info().Can.Verify {
		actions["verify"] = c.verify
	}
	if c.client.Info().Can.Extend {
		actions["extend"] = c.extend
	}
	if c.client.Info().Can.Locate {
		actions["locate"] = c.locate
	}
	t.Repeat(actions)
	if s.store.SetClock != nil { // where time costs nothing, longer histories
		t.Repeat(actions)
		t.Repeat(actions)
	}
	c.check()
}

// modelServices is services in one small pool, in layouts whose slots overlap
// in every way: 64 of the finest, 2 of the coarsest.
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
		"coarsest": base.WithBitSeq(5),
		"range":    ids(base.WithBitSeq(2), 3, 9),
		"range2":   ids(base.WithBitSeq(1), 8, 20),
		"short":    short,
	}
	return provider.Services{Default: base.WithBitSeq(2), Named: named}
}

// checker compares one provider with the model.
type checker struct {
	*suite
	model   *model
	client  *client
	counter int // of requests
	steps   int
}

func (c *checker) services() []string {
	names := slices.Sorted(maps.Keys(c.client.services.Named))
	return append([]string{""}, names...)
}

func (c *checker) acquire(t *rapid.T) {
	c.counter++
	req := provider.AcquireRequest{
		Service:         rapid.SampledFrom(c.services()).Draw(t, "service"),
		ThroughputPerMS: rapid.Int64Range(0, 24).Draw(t, "throughput"),
		RequestID:       fmt.Sprintf("request-%d", c.counter),
	}
	terms := c.client.services.Of(req.Service)
	before := c.now()
	leases, err := c.client.try(req)
	after := c.now()
	var full *provider.FullError
	if errors.As(err, &full) {
		if _, end := c.model.choose(terms); end <= before || full.NextEndMS != end || full.Slots != terms.Range().Count() {
			t.Fatalf("%q at %d: FullError %+v; the first slot is free at %d", req.Service, before, full, end)
		}
		return
	}
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	for _, l := range leases {
		if err := c.model.grant(terms, &modelGrant{lease: l, service: req.Service, request: req.RequestID}); err != nil {
			t.Fatalf("%q: %v", req.Service, err)
		}
	}
	// Fewer than asked for: then nothing else was free.
	if len(leases) < terms.LeaseCount(req.ThroughputPerMS) {
		if _, end := c.model.choose(terms); end <= leases[0].Created {
			t.Fatalf("%q: %d leases of %d were granted, and another one was free since %d",
				req.Service, len(leases), terms.LeaseCount(req.ThroughputPerMS), end)
		}
	}
	if c.store.SetClock != nil && leases[0].Created != before {
		t.Fatalf("created is %d at %d, and %d after", leases[0].Created, before, after)
	}
}

func (c *checker) repeat(t *rapid.T) {
	if len(c.model.grants) == 0 {
		t.Skip("nothing was granted")
	}
	g := c.drawGrant(t)
	before := c.now()
	leases, err := c.client.try(provider.AcquireRequest{Service: g.service, ThroughputPerMS: 1, RequestID: g.request})
	after := c.now()
	grants, live := c.model.asked(g.service, g.request, before)
	if _, still := c.model.asked(g.service, g.request, after); live != still {
		return // it ended meanwhile: either answer is right
	}
	if !live {
		c.want(err, provider.ErrConflict)
		return
	}
	if err != nil || len(leases) != len(grants) {
		t.Fatalf("the repeated request gave %v and the error %v, want %d leases", leases, err, len(grants))
	}
	for i, l := range leases {
		if l != grants[i].lease {
			t.Fatalf("the repeated request gave %v, want %v", l, grants[i].lease)
		}
	}
}

func (c *checker) drawGrant(t *rapid.T) *modelGrant {
	n := len(c.model.grants)
	return c.model.grants[n-1-rapid.IntRange(0, min(n-1, 30)).Draw(t, "grant (0 is the latest)")]
}

func (c *checker) release(t *rapid.T) {
	if len(c.model.grants) == 0 {
		t.Skip("nothing was granted")
	}
	g := c.drawGrant(t)
	l := g.lease
	window := provider.ReleaseWindow.Milliseconds()
	at := c.now() + rapid.SampledFrom([]int64{0, 0, 0, -700, 700, -window, window, -2 * window, 2 * window}).Draw(t, "off")
	if c.store.SetClock == nil {
		at -= at % 2 * 100 // away from the window's edges, where a running clock decides
	}
	secret := l.Secret
	if rapid.IntRange(0, 9).Draw(t, "forged if 0") == 0 {
		secret = "forged"
	}
	bitSeq := rapid.SampledFrom([]int{l.BitSeq, provider.AnyBitSeq}).Draw(t, "bit_seq")
	now := c.now()
	err := c.client.release(l, provider.ReleaseRequest{
		Service: g.service, ID: l.ID, BitSeq: bitSeq, TimestampMS: at, Signature: lease.Sign(secret, l.ID, at),
	})
	r := c.model.record(l.ID, l.BitSeq)
	switch {
	case r.grant != g || secret != l.Secret:
		if !errors.Is(err, provider.ErrTimestampSkew) { // which of two faults is reported is open
			c.want(err, provider.ErrBadSignature)
		}
	case g.released:
		c.must(err)
	case at < now-window || at > now+window:
		c.want(err, provider.ErrTimestampSkew)
	case err != nil && c.store.SetClock == nil && errors.Is(err, provider.ErrTimestampSkew) && at <= now-window+1000:
		// The clock ran on.
	case err != nil:
		t.Fatalf("Release: %v", err)
	default:
		g.end, g.released = provider.ReleasedEnd(l.Created, g.end, at), true
	}
}

func (c *checker) passes(t *rapid.T) {
	if c.store.SetClock == nil {
		time.Sleep(time.Duration(rapid.IntRange(1, 40).Draw(t, "ms")) * time.Millisecond)
		return
	}
	hour := time.Hour.Milliseconds()
	step := rapid.OneOf(
		rapid.Int64Range(1, 300), rapid.Int64Range(1, 3000), rapid.Int64Range(1, 3000),
		rapid.Int64Range(-2000, 0), rapid.SampledFrom([]int64{hour, -hour}),
	).Draw(t, "ms")
	c.set(c.now() + step)
}

func (c *checker) list(t *rapid.T) {
	records := c.client.list()
	if len(records) != len(c.model.records) {
		t.Fatalf("List has %d records, want %d", len(records), len(c.model.records))
	}
	for _, r := range records {
		m := c.model.record(r.Lease.ID, r.Lease.BitSeq)
		if m == nil || m.grant.end != r.End || m.grant.released != r.Released || m.grant.service != r.Service ||
			m.grant.lease.Created != r.Lease.Created || m.grant.lease.Expired != r.Lease.Expired {
			t.Fatalf("List has %+v, want %+v", r, m)
		}
	}
}

func (c *checker) verify(t *rapid.T) {
	var asked, want []lease.Lease
	for _, g := range c.model.grants[max(0, len(c.model.grants)-20):] {
		asked = append(asked, g.lease)
		if r := c.model.record(g.lease.ID, g.lease.BitSeq); r.grant != g || g.released {
			want = append(want, g.lease)
		}
	}
	ctx, cancel := c.ctx()
	defer cancel()
	lost, err := provider.Verify(ctx, c.client.Provider, "", asked)
	if err != nil || !slices.Equal(lost, want) {
		t.Fatalf("Verify gave %v and the error %v, want %v", lost, err, want)
	}
}

// checkSometimes is check after some operations: what is wrong inside a store
// rarely rights itself.
func (c *checker) checkSometimes() {
	if c.steps++; c.steps%8 == 0 {
		c.check()
	}
}

// check asks the store about itself.
func (c *checker) check() {
	if c.store.Check == nil {
		return
	}
	if err := c.store.Check(); err != nil {
		c.Fatalf("the store is inconsistent: %v", err)
	}
}
