package providertest

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Differential plays random histories on two stores, and compares the answers and records
// of both after each operation. It holds a new pool to the present one.
//
// The clocks of both stores can be set. Their providers look a service's terms up in
// Services.Named at each call: the test narrows IDs there. For one lease either store
// chooses from the whole range, and the other is told the choice (ids=LOW-HIGH). For more
// leases both are told a range that has no more free machine IDs than are asked for. So
// the choice of a slot is not compared, and a pool that is full or nearly full is. In one
// pool, all of one layout, nothing but the number of leases is compared, so that more than
// are due may be free there. A store
// that chooses by chance draws from a fixed seed, or a failed history cannot be made shorter.
//
// Where a store has no Provider.Fence, or no Store.Empty, that fence is not compared.
//
// These things are left open, since a pool need not keep or promise them:
//
//   - which free slot is chosen, and the order of the leases in an answer;
//   - a request that is repeated after its term and quarantine: a store may remember it,
//     or take it for a new one;
//   - a record that a later grant in another layout covers: it has ended, and a store may
//     drop it. Such a lease is neither released, verified nor asked for again, and an
//     extension is refused for any reason;
//   - a second release of a lease: only the same request gets the same answer;
//   - which of two faults a release or an extension is refused for;
//   - more than the last 8 grants of a slot in Locate, with more than the lease and who
//     asked;
//   - the counters of clients and of all requests, which differ already for requests that
//     are refused, and all counters of a store that has forgotten;
//   - layouts whose bit_seq differs by more than 4 from that of the pool's first one,
//     another timeline, and a clock outside the timeline;
//   - a client with a longer term, until it asks for a lease: a store may learn its term
//     earlier;
//   - a fence that begins while the clock is behind an earlier time: it lasts longer by
//     as much as the store remembers of that.
//
// Store.Checks of the second is the number of histories, as in Run.
func Differential(t *testing.T, first, second Factory) {
	histories(t, func(rt *rapid.T) int {
		stores := [2]*suite{newSuite(rt, t, first), newSuite(rt, t, second)}
		d := &differential{T: rt, stores: stores, records: map[string][]provider.Record{}}
		defer func() {
			stores[0].finish()
			stores[1].finish()
			if rt.Failed() {
				rt.Errorf("the history (times in ms from its start):\n%s", strings.Join(d.lines, "\n"))
			}
		}()
		d.main = d.open(1)
		d.set(testTime)
		actions := map[string]func(*rapid.T){
			"acquire": d.acquire, "acquire 2": d.acquire, "acquire 3": d.acquire, "ahead": d.ahead, "repeat": d.repeat, "repeat 2": d.repeat,
			"taken": d.taken, "release": d.release, "release 2": d.release, "extend": d.extend, "extend 2": d.extend, "extend again": d.extendAgain,
			"verify": d.verify, "verify 2": d.verify, "locate": d.locate, "time": d.time, "time 2": d.time, "fence": d.fence, "init": d.init, "": d.compare,
		}
		for range 3 {
			rt.Repeat(actions)
		}
		d.counters(rt)
		return stores[1].store.Checks
	})
}

// pair is something on the first store, and the same on the second.
type pair[T any] [2]T

// differential is a history on two stores.
type differential struct {
	*rapid.T
	stores        pair[*suite]
	main, foreign *pair[*client]               // foreign is nil until a client with longer terms comes
	latest        int64                        // the clock at its most
	counter       int                          // of requests
	twins         []*twin                      // oldest first
	focus         *twin                        // of the latest operation on one
	records       map[string][]provider.Record // of the first store, by pool
	byHand        bool                         // the stores were fenced by hand, and not declared whole since
	lost          bool                         // they have forgotten, at any time
	forgotten     pair[int64]                  // requests that a store no longer knew, and refused as new ones
	lines         []string                     // the history, to be read
	compared      int                          // of these lines: the records are compared after them
}

// twin is one grant on both stores. The leases differ in their secrets.
type twin struct {
	now, before            pair[lease.Lease] // before the latest extension that moved its end
	pool, service, request string
	keptMS                 int64                    // until then the request is remembered
	gone                   bool                     // both stores have forgotten it
	released               *provider.ReleaseRequest // the release that was carried out
}

// Two services have pools of their own. In that of the crowd, slots are not compared.
const (
	elsewhere = "elsewhere"
	crowd     = "crowd"
)

// poolServices has a service of each pool that is compared, and allServices of the others too.
var (
	poolServices = []string{"", elsewhere}
	allServices  = []string{"", elsewhere, crowd}
)

// differentialServices is modelServices with terms that are so many times as long. One service of each pool has leases that outlast the
// window for releases: the fence of each pool lasts as long.
func differentialServices(longer time.Duration) provider.Services {
	s := modelServices(true)
	s.Named[""] = s.Default
	s.Named[elsewhere], s.Named[crowd] = s.Named["coarse"], s.Default
	for name, t := range s.Named {
		switch name {
		case elsewhere, crowd:
			t.Pool, t.Term = name, 3*provider.ReleaseWindow
		case "range2":
			t.Term = 3 * provider.ReleaseWindow
		}
		t.Term, t.Quarantine = longer*t.Term, longer*t.Quarantine
		s.Named[name] = t
	}
	return s
}

func (d *differential) open(longer time.Duration) *pair[*client] {
	var clients pair[*client]
	for i, s := range d.stores {
		clients[i] = s.openServices(differentialServices(longer))
	}
	return &clients
}

// turn draws whose turn it is. A client with longer terms begins with an acquire, so that
// the stores know its term.
func (d *differential) turn(t *rapid.T) *pair[*client] {
	if rapid.IntRange(0, 5).Draw(t, "foreign if 0") > 0 {
		return d.main
	}
	if d.foreign == nil {
		d.foreign = d.open(3)
		d.askAll(t, d.foreign)
	}
	return d.foreign
}

// by names the client for the history.
func (d *differential) by(c *pair[*client]) string {
	if c == d.main {
		return ""
	}
	return "the client with longer terms: "
}

func (d *differential) now() int64 { return d.stores[0].now() }

// set sets both clocks.
func (d *differential) set(unixMS int64) {
	for _, s := range d.stores {
		s.set(unixMS)
	}
	d.latest = max(d.latest, unixMS)
}

// say adds a line to the history.
func (d *differential) say(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf("%4d. at %7d: ", len(d.lines)+1, d.now()-testTime)+fmt.Sprintf(format, args...))
}

// both asks both stores, and compares the answers.
func both[T any](d *differential, what string, ask func(i int) (T, error)) (answers pair[T], err error) {
	d.Helper()
	a, errA := ask(0)
	b, errB := ask(1)
	d.same(what, a, errA, b, errB)
	return pair[T]{a, b}, errA
}

// same compares two answers, and notes them.
func (d *differential) same(what string, a any, errA error, b any, errB error) {
	d.Helper()
	a, b = comparable(a), comparable(b)
	d.say("%s: %s", what, shown(a, errA))
	if errA != nil && errB != nil && twoFaults(errA, errB) {
		return
	}
	if d.word(errA) != d.word(errB) || errA == nil && !reflect.DeepEqual(a, b) {
		d.Fatalf("%s: the first answers\n  %s\nand the second\n  %s", what, shown(a, errA), shown(b, errB))
	}
}

// word is as much of an error as both must agree on.
func (d *differential) word(err error) string {
	d.Helper()
	if full, ok := errors.AsType[*provider.FullError](err); ok {
		return fmt.Sprintf("full %+v", *full)
	}
	if fenced, ok := errors.AsType[*provider.FencedError](err); ok {
		return fmt.Sprintf("fenced until %d", fenced.UntilMS)
	}
	for _, known := range []error{provider.ErrConflict, provider.ErrNotFound, provider.ErrBadSignature, provider.ErrTimestampSkew} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if err != nil {
		d.Fatalf("an answer is wrong, or no refusal: %v", err)
	}
	return ""
}

// twoFaults reports whether a release or an extension may be refused for either: a store
// may look at the lease before the time, or before its fence, or after.
func twoFaults(a, b error) bool {
	lease := func(err error) bool {
		return errors.Is(err, provider.ErrNotFound) || errors.Is(err, provider.ErrBadSignature)
	}
	other := func(err error) bool {
		_, fenced := errors.AsType[*provider.FencedError](err)
		return fenced || errors.Is(err, provider.ErrTimestampSkew)
	}
	return lease(a) && other(b) || lease(b) && other(a)
}

// comparable is as much of an answer as both must agree on.
func comparable(answer any) any {
	switch answer := answer.(type) {
	case lease.Lease:
		answer.Secret = ""
		return answer
	case []lease.Lease:
		all := byID(answer)
		for i := range all {
			all[i].Secret = ""
		}
		return all
	}
	return answer
}

// byID is the leases of one answer in order.
func byID(leases []lease.Lease) []lease.Lease {
	all := slices.Clone(leases)
	slices.SortFunc(all, func(a, b lease.Lease) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// shown is an answer for the history.
func shown(answer any, err error) string {
	if err != nil {
		return err.Error()
	}
	one := func(l lease.Lease) string {
		return fmt.Sprintf("machine ID %d of bit_seq %d from %d to %d (%d)", l.ID, l.BitSeq, l.Created-testTime, l.Expired-testTime, l.ReservedUntil-testTime)
	}
	switch answer := answer.(type) {
	case lease.Lease:
		return one(answer)
	case []lease.Lease:
		var all []string
		for _, l := range answer {
			all = append(all, one(l))
		}
		return strings.Join(all, ", ")
	case []provider.Record:
		var all []string
		for _, r := range answer {
			all = append(all, fmt.Sprintf("\n    %s of %q, until %d, released %v, %v", one(r.Lease), r.Service, r.End-testTime, r.Released, r.Meta))
		}
		return strings.Join(all, "")
	}
	return fmt.Sprintf("%+v", answer)
}

// compare compares the records, and the fence.
func (d *differential) compare(*rapid.T) {
	if d.compared == len(d.lines) {
		return
	}
	d.compared = len(d.lines)
	for _, service := range poolServices {
		var lists pair[[]provider.Record]
		pool := d.main[0].services.Of(service).Pool
		for i, c := range d.main {
			lists[i] = c.listOf(service)
			if i == 0 {
				d.records[pool] = lists[0]
			}
			lists[i] = slices.DeleteFunc(slices.Clone(lists[i]), func(r provider.Record) bool { return d.coveredRecord(pool, r) })
		}
		if !slices.EqualFunc(lists[0], lists[1], sameRecord) {
			d.Fatalf("pool %s: the records of the first are%s\nand of the second%s", pool, shown(lists[0], nil), shown(lists[1], nil))
		}
	}
	if d.can().Fence {
		var until pair[int64]
		for i, c := range d.main {
			if fenced := c.Fenced(); fenced != nil {
				until[i] = fenced.UntilMS
			}
		}
		// Between its answers a store counts real time, and the clocks of the test stand still.
		soon := d.now() + time.Minute.Milliseconds()
		if until[0] != until[1] && max(until[0], until[1]) > soon {
			d.Fatalf("the fence of the first ends at %d, and of the second at %d", until[0]-testTime, until[1]-testTime)
		}
	}
}

// can is the methods that both have.
func (d *differential) can() provider.Can {
	a, b := d.main[0].Info().Can, d.main[1].Info().Can
	return provider.Can{Locate: a.Locate && b.Locate, Count: a.Count && b.Count, Init: a.Init && b.Init, Fence: a.Fence && b.Fence}
}

// coveredRecord reports whether a later grant in another layout covers the record.
func (d *differential) coveredRecord(pool string, r provider.Record) bool {
	return slices.ContainsFunc(d.records[pool], func(later provider.Record) bool {
		return later.Lease.BitSeq != r.Lease.BitSeq && later.Lease.Created >= r.End && later.Lease.Slot().Overlaps(r.Lease.Slot())
	})
}

// covered reports the same of a lease.
func (d *differential) covered(g *twin) bool {
	l := g.now[0]
	at := slices.Index(d.twins, g)
	return !g.gone && slices.ContainsFunc(d.twins[at+1:], func(later *twin) bool {
		return later.pool == g.pool && later.now[0].BitSeq != l.BitSeq && later.now[0].Slot().Overlaps(l.Slot())
	})
}

// counters compares what was counted, at a time when each client can have a lease: a store
// may write what it has counted with the next grant.
func (d *differential) counters(t *rapid.T) {
	if d.lost || !d.can().Count {
		return
	}
	at := d.latest
	if fenced := d.main[0].Fenced(); fenced != nil {
		at = max(at, fenced.UntilMS)
	}
	d.set(at + time.Hour.Milliseconds())
	for _, c := range []*pair[*client]{d.foreign, d.main} {
		if c != nil {
			d.askAll(t, c)
		}
	}
	a, b := d.main[0].counters(), d.main[1].counters()
	a[provider.CountFull] -= d.forgotten[0]
	b[provider.CountFull] -= d.forgotten[1]
	for _, name := range []string{
		provider.CountGranted, provider.CountFull, provider.CountExtended, provider.CountNotOwner, provider.CountExtendEnded,
	} {
		if a[name] != b[name] {
			d.Fatalf("%s of the first is %d, and of the second %d", name, a[name], b[name])
		}
	}
}
