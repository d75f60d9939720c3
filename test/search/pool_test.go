package search

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/memory"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

// leases is a world of daemons that lease slots: the product's keeper and generator,
// on the product's rules of the pool. Any look at a clock may show any time, so every
// clock is among them. The watched ID is the first of a pair: in each state the world
// asks whether a daemon could make it again.
type leases struct {
	leasesSetting
	now      int64 // what the store's clock shows
	store    *memory.Store
	provider *memory.Provider
	daemons  []*daemon
	late     []message // sent, and not yet there: nobody waits for their answers
	grants   []lease.Lease
	lives    uint64
	forgot   bool       // the store has
	passing  *overheard // the answer to an acquire that went over the wire last
	seen     *watched
	fault    string
}

// overheard is an answer that a proxy may give to another request.
type overheard struct {
	request string
	leases  []lease.Lease
}

// leasesSetting is the bounds of a world.
type leasesSetting struct {
	times      int8  // clocks show 1 to times
	term       int64 // ms
	quarantine int64
	layouts    []int // the bit_seq of each daemon's service
	grants     int   // at most so many are made
	verify     bool  // keepers ask all the time whether the leases are theirs
	forgets    bool  // the store may forget everything, once
	mixes      bool  // a request to acquire may get the answer to another
	off        rule  // the rule that is broken
}

// watched is the ID of which nobody may make another.
type watched struct {
	id   snowflake.ID
	ms   int64
	kind generator.Kind
}

// message is a request on its way. It returns what the store answers.
type message struct {
	text string
	// content stands for it in the fingerprint.
	content any
	send    func() keeper.Event
}

// daemon is one with its live directory.
type daemon struct {
	w       *leases
	name    string
	service string

	live state.Saved // the leases file
	mark int64       // the marks file: the first Unix ms that is still unused
	last snowflake.ID

	gen     *generator.Core // nil: it is down
	core    *keeper.Core
	elapsed time.Duration
	unsaved *state.Saved // with a rule broken: what is written later
	request *message     // under way
	answer  keeper.Event // of the store, on its way back
}

var errLost = errors.New("lost on the way")

func newLeases(s leasesSetting) func() world {
	return func() world {
		w := &leases{leasesSetting: s}
		crand.Reader = w
		timeline := snowflake.Timeline{BitTS: snowflake.ValueBits - 1 - slices.Max(s.layouts)}
		services := provider.Services{Default: provider.DefaultTerms(), Named: map[string]provider.Terms{}}
		for i, bitSeq := range s.layouts {
			t := provider.DefaultTerms()
			t.Timeline = timeline
			t = t.WithBitSeq(bitSeq)
			t.Term, t.Quarantine = ms(s.term), ms(s.quarantine)
			if s.off == quarantineKept {
				t.Quarantine = 0
			}
			d := &daemon{w: w, name: fmt.Sprint("daemon ", i), service: fmt.Sprint("layout-", bitSeq)}
			if s.off == overlapByRange {
				t.Pool = d.service
			}
			d.live = state.Saved{Timeline: timeline, Source: state.SourceLease}
			services.Default, services.Named[d.service] = t, t
			w.daemons = append(w.daemons, d)
		}
		w.store = memory.NewStore(func() int64 { return w.now })
		p, err := memory.New(w.store, services)
		if err != nil {
			panic(err)
		}
		w.provider = p
		for _, d := range w.daemons {
			d.start()
		}
		return w
	}
}

// Read stands in for the system's randomness: each secret is the number of its grant.
func (w *leases) Read(b []byte) (int, error) {
	clear(b)
	b[0] = byte(len(w.grants) + 1)
	return len(b), nil
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// The moves of a world of leases.
const (
	starts int8 = iota
	isKilled
	watches
	looks
	stops
	hears
	losesAnswer
	storeAnswers
	isNotSent
	isLate
	lateArrives // who: the message
	storeForgets
	mixesUp
)

var leaseMoves = [...]string{
	starts: "%s starts", isKilled: "%s is killed", watches: "%s is asked for the ID to watch", looks: "%s looks what is due", stops: "%s stops",
	hears: "the answer reaches %s", losesAnswer: "the answer is lost", storeAnswers: "the store answers %s", isNotSent: "%s is not sent",
	isLate: "%s is late", lateArrives: "late arrives %s", storeForgets: "the store forgets", mixesUp: "the answer that went over the wire last reaches %s",
}

// moves is every next event.
func (w *leases) moves(all []move) []move {
	if w.fault != "" {
		return all
	}
	always := func(who int, kinds ...int8) {
		for _, kind := range kinds {
			for at := int8(1); at <= w.times; at++ {
				all = append(all, move{kind, int8(who), at})
			}
		}
	}
	for i, d := range w.daemons {
		if d.gen == nil {
			all = append(all, move{starts, int8(i), noClock})
			continue
		}
		once := func(kind int8) { all = append(all, move{kind, int8(i), noClock}) }
		once(isKilled)
		if w.seen == nil && (len(d.live.Held) > 0 || d.live.Cached != nil) {
			always(i, watches)
		}
		switch {
		case d.request == nil:
			always(i, looks, stops)
		case d.answer != nil:
			always(i, hears)
			once(losesAnswer)
		default:
			if w.mayServe(d.request) {
				always(i, storeAnswers)
			}
			once(isLate)
			if _, release := d.request.content.(provider.ReleaseRequest); release {
				once(isNotSent) // for the others that is like a late one that never comes
			}
		}
	}
	for i, d := range w.daemons {
		if w.passing != nil && d.acquires() {
			always(i, mixesUp)
		}
	}
	for i := range w.late {
		always(i, lateArrives)
	}
	if w.forgets && !w.forgot && len(w.grants) > 0 {
		all = append(all, move{storeForgets, 0, noClock})
	}
	return all
}

// acquires reports whether the daemon waits for leases.
func (d *daemon) acquires() bool {
	if d.request == nil {
		return false
	}
	_, acquires := d.request.content.(provider.AcquireRequest)
	return acquires
}

func (w *leases) do(m move) {
	at := int64(m.at) // after a failure before everything, so that all else waits for a look
	if m.kind == lateArrives {
		late := w.late[m.who]
		w.late = slices.Delete(w.late, int(m.who), int(m.who)+1)
		w.now = at
		late.send()
		return
	}
	if m.kind == storeForgets {
		w.forget()
		return
	}
	d := w.daemons[m.who]
	switch m.kind {
	case starts:
		d.start()
	case isKilled: // one that stays down is one that does nothing
		d.kill()
		d.start()
	case watches:
		d.watch(at)
	case looks:
		d.handle(at, keeper.Tick{})
	case stops:
		d.handle(at, keeper.Stop{})
	case hears:
		d.hears(at, d.answer)
	case losesAnswer:
		d.hears(at, d.failure(errLost))
	case storeAnswers:
		w.now = at
		d.answer = d.request.send()
	case isNotSent:
		d.postpone(w.off == sentOnce)
		d.hears(at, d.failure(provider.ErrNotSent))
	case isLate:
		d.postpone(true)
		d.hears(at, d.failure(errLost))
	case mixesUp:
		if d.passes() || w.off == answersEchoed {
			d.hears(at, keeper.Acquired{Leases: w.passing.leases})
		} else {
			d.hears(at, d.failure(errLost))
		}
	}
}

// passes reports whether the answer that went over the wire last is to the daemon's request,
// as the client of lease servers looks at it.
func (d *daemon) passes() bool {
	return d.w.passing != nil && d.acquires() && d.request.content.(provider.AcquireRequest).RequestID == d.w.passing.request
}

// forget has the store lose its records. The fence ends when all has ended that was granted.
func (w *leases) forget() {
	fence := int64(0)
	for _, l := range w.grants {
		fence = max(fence, l.ReservedUntil)
	}
	if w.off == restoredStoreFenced {
		fence = 0
	}
	w.forgot = true
	w.store.Forget(fence)
}

func (w *leases) text(m move) string {
	of := ""
	switch m.kind {
	case storeForgets:
		return leaseMoves[m.kind]
	case lateArrives:
		of = w.late[m.who].text
	case storeAnswers, isNotSent, isLate:
		of = w.daemons[m.who].request.text
	case losesAnswer:
		return leaseMoves[m.kind]
	default:
		of = w.daemons[m.who].name
	}
	return fmt.Sprintf(leaseMoves[m.kind], of)
}

// mayServe keeps the number of grants in bounds.
func (w *leases) mayServe(m *message) bool {
	_, acquire := m.content.(provider.AcquireRequest)
	return !acquire || len(w.grants) < w.leasesSetting.grants
}

// postpone has the request arrive when nobody waits for it. One such message is enough
// for any story.
func (d *daemon) postpone(does bool) {
	if does && len(d.w.late) == 0 && d.w.mayServe(d.request) {
		d.w.late = append(d.w.late, *d.request)
	}
}

func (d *daemon) start() {
	d.w.lives++
	floor := d.mark
	switch {
	case d.w.off == markExclusive && floor > 0:
		floor--
	case d.w.off == markInLiveState:
		floor = 0 // the state file's, which is behind
	}
	cfg := generator.Config{MaxThroughput: 1 << 20, Fallback: generator.FallbackCached, MaxBackwardMS: -1}
	d.gen = generator.NewCore(cfg, d.live.Timeline, floor, nil)
	settings := keeper.Config{Service: d.service, MaxThroughput: 1, RetryInterval: time.Second, RetryMax: time.Second}
	if d.w.verify {
		settings.VerifyEvery = time.Second
	}
	// No two lives use the same request IDs.
	core, first := keeper.NewCore(settings, d.live, rand.New(rand.NewPCG(d.w.lives, 0)), keeper.Moment{})
	d.core, d.elapsed = core, 0
	d.publish(first)
}

func (d *daemon) kill() {
	if d.request != nil && d.answer == nil {
		d.postpone(true)
	}
	d.gen, d.core, d.request, d.answer, d.unsaved = nil, nil, nil, nil, nil
}

func (d *daemon) hears(at int64, e keeper.Event) {
	d.request, d.answer = nil, nil
	d.handle(at, e)
}

// handle lets the keeper act until it waits for the store or for time to pass. On its
// own clock, hours pass in between: whatever waits is due.
func (d *daemon) handle(at int64, e keeper.Event) {
	for e != nil {
		d.elapsed += time.Hour
		last := d.gen.LastMS()
		if d.w.off == releaseCoversLastEmbedded {
			last = 0
		}
		e = d.perform(at, d.core.Handle(keeper.Moment{MS: at, Elapsed: d.elapsed, LastMS: last}, e))
	}
}

func (d *daemon) perform(at int64, a keeper.Action) keeper.Event {
	switch a := a.(type) {
	case keeper.Publish:
		d.publish(a)
		return keeper.Published{}
	case keeper.Save:
		d.save(a.Content)
		return keeper.Saved{}
	case keeper.Rebase:
		return keeper.Rebased{OK: d.gen.Rebase(a.Timeline, at)}
	case keeper.Confirm:
		return keeper.Confirmed{}
	case keeper.Acquire:
		d.request = d.acquire(a.Request)
	case keeper.Verify:
		d.request = d.verification(a.Leases)
	case keeper.Release:
		d.request = d.release(a.Request)
	case keeper.Sleep:
		d.flush()
	case keeper.Done:
		d.flush()
		d.kill()
	}
	return nil
}

func (d *daemon) publish(p keeper.Publish) {
	if d.w.off == sealedBeforeSending && len(p.Held) == 0 {
		return // it goes on
	}
	cached := p.Cached
	if d.w.off == releasedNeverCached && cached == nil && len(p.Held) == 0 && len(d.live.Held) > 0 {
		cached = &d.live.Held[0]
	}
	d.gen.SetLeases(p.Held, cached, p.Cause)
	if p.Cause != nil {
		d.gen.EndStartup()
	}
}

func (d *daemon) save(content state.Saved) {
	if d.w.off == removedBeforeSending {
		d.unsaved = &content
		return
	}
	if d.w.off == releasedNeverCached && content.Cached == nil && len(content.Held) == 0 && len(d.live.Held) > 0 {
		content.Cached = &d.live.Held[0]
	}
	d.live = content
}

func (d *daemon) flush() {
	if d.unsaved != nil {
		d.live, d.unsaved = *d.unsaved, nil
	}
}

func (d *daemon) acquire(req provider.AcquireRequest) *message {
	w := d.w
	return &message{"an acquire of " + d.name, req, func() keeper.Event {
		got, err := w.provider.Acquire(context.Background(), req)
		if w.off == quarantineKept {
			got = slices.Clone(got)
			for i := range got {
				got[i].ReservedUntil += w.quarantine
			}
		}
		if err == nil {
			w.grants = append(w.grants, got...)
			if w.mixes {
				w.passing = &overheard{req.RequestID, got}
			}
		}
		return keeper.Acquired{Leases: got, Err: err}
	}}
}

func (d *daemon) verification(held []lease.Lease) *message {
	return &message{"a verification by " + d.name, held, func() keeper.Event {
		lost, err := provider.Verify(context.Background(), d.w.provider, d.service, held)
		return keeper.Verified{Lost: lost, Err: err}
	}}
}

func (d *daemon) release(req provider.ReleaseRequest) *message {
	return &message{"a release by " + d.name, req, func() keeper.Event {
		return keeper.Released{Err: d.w.release(req)}
	}}
}

// failure is what the daemon takes from a call without an answer.
func (d *daemon) failure(err error) keeper.Event {
	switch d.request.content.(type) {
	case provider.AcquireRequest:
		return keeper.Acquired{Err: err}
	case provider.ReleaseRequest:
		if d.w.off == unknownIsGone {
			err = provider.ErrNotSent
		}
		return keeper.Released{Err: err}
	}
	return keeper.Verified{Err: err}
}

// watch has the daemon make one ID.
func (d *daemon) watch(at int64) {
	if d.w.off == embeddedTimestampChecked {
		d.openLeases()
	}
	d.gen.EndStartup() // the wait for the first lease ends at any time
	r, _ := d.gen.Take(at, 1, true)
	if r.Count == 0 {
		return
	}
	if r.Start <= d.last && d.w.off == noRule {
		d.w.fault = fmt.Sprintf("%s made %d after %d", d.name, r.Start, d.last)
	}
	d.last = r.Start
	d.mark = d.gen.LastMS() + 1
	d.w.seen = &watched{r.Start, d.live.Timeline.UnixMS(r.Start), r.Kind}
}

// openLeases lets a lease be used at any time: at that of a clock read before.
func (d *daemon) openLeases() {
	open := slices.Clone(d.live.Held)
	for i := range open {
		open[i].Created, open[i].Expired, open[i].ReservedUntil = 0, int64(d.w.times)+1, int64(d.w.times)+1
	}
	d.gen.SetLeases(open, nil, nil)
}

// release breaks the rules of the store that are to be broken.
func (w *leases) release(req provider.ReleaseRequest) error {
	if w.off == endBoundAtRelease {
		for _, l := range w.grants {
			if req.Signed(l.Secret) {
				req.TimestampMS = w.now - 1
				req.Signature = lease.Sign(l.Secret, l.ID, req.TimestampMS)
				break
			}
		}
	}
	err := w.provider.Release(context.Background(), req)
	if err == nil && w.off == recordKept {
		w.store.Forget(0)
	}
	return err
}

// broken reports whether a daemon can make the watched ID again.
func (w *leases) broken() string {
	if w.fault != "" || w.seen == nil {
		return w.fault
	}
	for _, d := range w.daemons {
		if d.gen != nil && d.couldMake(*w.seen) {
			return fmt.Sprintf("%s can make the watched ID again: %v", d.name, *w.seen)
		}
	}
	return ""
}

func (d *daemon) couldMake(seen watched) bool {
	d.gen.EndStartup()
	for {
		r, _ := d.gen.Take(seen.ms, 1, true)
		if r.Count == 0 || r.Start > seen.id {
			return false
		}
		if r.Start == seen.id && r.Kind == seen.kind {
			return seen.kind == generator.Regular || seen.kind == generator.FallbackCachedID
		}
	}
}

// unimportant has no influence on what can happen: counters, what is worked out anew,
// and times on the keeper's own clock, on which everything is due.
var unimportant = fieldSet(`
	keeper.Core.cfg keeper.Core.rnd keeper.Core.at keeper.Core.report keeper.Core.cause keeper.Core.failures
	keeper.Core.askedMS keeper.Core.skewMS keeper.Core.notBefore keeper.Core.lastAcquire keeper.Core.growthBefore
	keeper.Core.nextVerify keeper.Core.nextSave keeper.Core.lastAnswer keeper.Core.begun keeper.Core.term
	generator.Core.cfg generator.Core.rnd generator.Core.cause generator.Core.stats generator.Core.recent
	generator.Core.skipped generator.Core.full generator.Core.behind generator.Core.growth
	generator.supply.from generator.supply.until generator.supply.segments generator.supply.room generator.supply.hint
	memory.Store.nowMS memory.Store.mu memory.records.history memory.records.counters pool.Record.Number
	provider.AcquireRequest.RequestID pool.Record.Request`)

// fingerprint does not tell apart worlds in which two daemons have changed places.
func (w *leases) fingerprint() fingerprint {
	s := sum{skip: unimportant, field: w.openRequests}
	s.add(w.store, w.seen != nil, len(w.grants), w.fault != "", w.forgot, w.passing != nil)
	if w.passing != nil {
		s.add(w.passing.leases)
	}
	if w.seen != nil {
		s.add(*w.seen)
	}
	for _, m := range w.late {
		s.add(m.content)
	}
	var each []fingerprint
	for _, d := range w.daemons {
		one := sum{skip: unimportant}
		one.add(d.service, d.live, d.mark, d.last, d.gen != nil, d.request != nil, d.passes())
		if d.gen != nil {
			one.add(d.gen, d.core, d.unsaved, d.answer)
		}
		if d.request != nil {
			one.add(d.request.content)
		}
		each = append(each, one.done())
	}
	slices.SortFunc(each, func(a, b fingerprint) int { return slices.Compare(a[:], b[:]) })
	s.add(each)
	return s.done()
}

// openRequests adds, of the requests that the store remembers, those that can be
// repeated.
func (w *leases) openRequests(name string, v reflect.Value, s *sum) bool {
	if name != "memory.records.requests" {
		return false
	}
	for _, open := range w.open() {
		for it := v.MapRange(); it.Next(); {
			if it.Key().Field(1).String() == open {
				s.value(it.Value())
			}
		}
		s.number(0)
	}
	return true
}

// open is the IDs of the requests that are on their way or may be sent again.
func (w *leases) open() (ids []string) {
	add := func(content any) {
		req, _ := content.(provider.AcquireRequest)
		ids = append(ids, req.RequestID)
	}
	for _, m := range w.late {
		add(m.content)
	}
	for _, d := range w.daemons {
		ids = append(ids, "")
		if d.core != nil {
			if r := reflect.ValueOf(d.core).Elem().FieldByName("request"); !r.IsNil() {
				ids = append(ids, r.Elem().FieldByName("RequestID").String())
			}
		}
		if d.request != nil {
			add(d.request.content)
		}
	}
	return ids
}
