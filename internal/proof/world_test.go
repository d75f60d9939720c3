package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/memory"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

// lowBits is small, so that slots are few and collide.
const (
	lowBits    = 6
	worldEpoch = 1_000_000
	worldStart = worldEpoch + 100_000
)

// world is the hosts, the provider, the true time, and every ID so far.
type world struct {
	seed     uint64
	rnd      *rand.Rand
	broken   rule
	timeline snowflake.Timeline

	now       int64 // true time, Unix ms
	skew      int64 // the provider's clock minus the true time; jumps
	provider  provider.Provider
	hosts     []*host
	depth     int   // calls on their way, one inside the other
	downUntil int64 // true time until which the provider cannot be reached

	seen    map[snowflake.ID]origin
	regular int
	cached  int
	certain bool   // no host makes random fallback IDs: cached ones are unique without exception
	fault   string // the first violation
}

// origin is who made an ID, and how.
type origin struct {
	host     *host
	kind     generator.Kind
	reserved int64 // for cached fallback IDs: the lease's reservation
}

// newWorld draws a world from the seed. real asks for the product's memory
// provider in place of the store with switches.
func newWorld(seed uint64, broken rule, real bool) *world {
	w := &world{
		seed: seed, rnd: newRand(seed), broken: broken, now: worldStart,
		timeline: snowflake.Timeline{EpochMS: worldEpoch, BitTS: snowflake.ValueBits - lowBits},
		seen:     map[snowflake.ID]origin{},
	}
	term := 20 + w.rnd.Int64N(60)
	quarantine := []int64{0, w.rnd.Int64N(40), 3 * term}[w.rnd.IntN(3)]
	fallbacks := []generator.Fallback{generator.FallbackCachedRandom, generator.FallbackCached, generator.FallbackNone}
	if w.certain = w.rnd.IntN(3) == 0; w.certain {
		fallbacks = fallbacks[1:] // nobody goes on beyond a reservation
	}
	switch broken {
	case quarantineKept, releasedNeverCached:
		// These are about fallback in a long reservation.
		quarantine, fallbacks = 3*term, []generator.Fallback{generator.FallbackCachedRandom, generator.FallbackCached}
		w.certain = false
	case embeddedTimestampChecked:
		quarantine = 0 // which would make up for the breach most of the time
	}
	clock := func() int64 { return w.now + w.skew }
	byHost := map[string]terms{}
	named := map[string]provider.Terms{}
	for i := range 3 + w.rnd.IntN(3) {
		bitSeq := 2 + w.rnd.IntN(3)
		h := &host{w: w, name: fmt.Sprint("host", i), offset: w.rnd.Int64N(7) - 3, cfg: generator.Config{
			MaxThroughput: 1 + w.rnd.Int64N(24),
			Fallback:      fallbacks[w.rnd.IntN(len(fallbacks))],
			MaxBackwardMS: []int64{0, 5, 1000, -1}[w.rnd.IntN(4)],
			Spread:        w.rnd.IntN(2) == 0,
		}}
		h.saved = state.Saved{Timeline: w.timeline, Source: state.SourceConfig}
		byHost[h.name] = terms{
			epoch: worldEpoch, bitTS: w.timeline.BitTS, bitSeq: bitSeq, bitID: lowBits - bitSeq, term: term, quarantine: quarantine,
		}
		t := provider.DefaultTerms()
		t.Timeline, t.BitID, t.BitSeq = w.timeline, lowBits-bitSeq, bitSeq
		t.Term, t.Quarantine = time.Duration(term)*time.Millisecond, time.Duration(quarantine)*time.Millisecond
		named[h.name] = t
		w.hosts = append(w.hosts, h)
	}
	w.provider = &store{now: clock, rnd: w.rnd, broken: broken, terms: byHost, requests: map[string][]lease.Lease{}}
	if real {
		services := provider.Services{Default: named["host0"], Named: named}
		p, err := memory.New(memory.NewStore(clock), services)
		if err != nil {
			panic(err)
		}
		w.provider = p
	}
	for _, h := range w.hosts {
		h.start()
	}
	return w
}

// run lets n things happen, and returns the first violation.
func (w *world) run(n int) string {
	for range n {
		if w.fault != "" {
			return w.fault
		}
		w.event()
	}
	return w.fault
}

func (w *world) event() {
	h := w.hosts[w.rnd.IntN(len(w.hosts))]
	switch p := w.rnd.IntN(200); {
	case p < 60:
		w.tick()
	case p < 124:
		h.emit(1+w.rnd.Int64N(30), w.rnd.IntN(3) > 0)
	case p < 164:
		h.step()
	case p < 172:
		h.jump()
	case p < 176:
		w.skew += w.rnd.Int64N(61) - 30
	case p < 181:
		if w.rnd.IntN(2) == 0 {
			h.emit(5, true) // and then the clock is set back, before the release
			h.offset -= w.rnd.Int64N(15)
		}
		h.keeper.Shutdown(context.Background())
		w.maybeTick()
		h.start()
	case p < 187:
		h.crash(w.rnd.IntN(3) == 0)
	case p < 188:
		w.clone(h)
	case p < 189:
		w.downUntil = w.now + w.rnd.Int64N(100)
	case p < 191:
		w.skew = w.rnd.Int64N(5) - 2
	default:
		h.offset = w.rnd.Int64N(5) - 2 // somebody sets it right
	}
}

func (w *world) tick() { w.now += w.rnd.Int64N(5) }

func (w *world) maybeTick() {
	if w.rnd.IntN(2) == 0 {
		w.tick()
	}
}

// step lets the keeper do what is due, and begins the next life if the process
// was killed in the middle of it.
func (h *host) step() {
	h.keeper.Step(context.Background())
	if h.gone {
		h.crash(h.w.rnd.IntN(3) == 0)
	}
}

func (h *host) jump() { h.offset += h.w.rnd.Int64N(61) - 30 }

// clone copies h's disk over that of another host, which then starts from it.
// What another machine left there is not adopted.
func (w *world) clone(from *host) {
	to := w.hosts[w.rnd.IntN(len(w.hosts))]
	if to == from {
		return
	}
	to.saved = from.saved
	to.crash(true)
}

// meanwhile is what happens while h's call is under way.
func (w *world) meanwhile(h *host) {
	switch w.rnd.IntN(8) {
	case 0, 1:
		w.tick()
	case 2, 3, 4:
		h.emit(1+w.rnd.Int64N(10), true)
	case 5:
		h.jump()
	case 6:
		w.skew += w.rnd.Int64N(21) - 10
	case 7:
		other := w.hosts[w.rnd.IntN(len(w.hosts))]
		if other != h && w.depth == 0 { // a host does one thing at a time
			w.depth++
			other.step()
			other.emit(1+w.rnd.Int64N(10), true)
			w.depth--
		}
	}
}

// issued judges a new ID.
func (w *world) issued(h *host, id snowflake.ID, kind generator.Kind) {
	if w.fault != "" {
		return
	}
	at := w.timeline.UnixMS(id)
	o := origin{host: h, kind: kind}
	switch kind {
	case generator.Regular:
		w.regular++
	case generator.FallbackCachedID:
		w.cached++
		o.reserved = h.reservation(w.timeline.Low(id) - w.timeline.FallbackBit())
	case generator.FallbackRandomID:
		// Another host may have made it too: that is why it is the last resort.
		if id <= h.last && w.broken == noRule {
			w.fault = fmt.Sprintf("%s made %d after %d", h.name, id, h.last)
		}
		h.last = id
		return
	}
	before, twice := w.seen[id]
	w.seen[id] = o
	switch {
	case twice && kind == generator.Regular:
		w.fault = fmt.Sprintf("%s and %s made the same regular ID: time %d, low bits %d", before.host.name, h.name, at, w.timeline.Low(id))
	case twice && before.kind == generator.FallbackCachedID && (w.certain || (at < before.reserved && at < o.reserved)):
		w.fault = fmt.Sprintf("%s and %s made the same cached fallback ID before %d: time %d, low bits %d",
			before.host.name, h.name, o.reserved, at, w.timeline.Low(id))
	case id <= h.last && w.broken == noRule: // a breach must lead to a duplicate to count
		w.fault = fmt.Sprintf("%s made %d after %d", h.name, id, h.last)
	}
	h.last = max(h.last, id)
}

// reservation is until when the lease whose slot holds low is reserved.
func (h *host) reservation(low int64) (until int64) {
	leases := h.held
	if h.cached != nil {
		leases = append(leases[:len(leases):len(leases)], *h.cached)
	}
	for _, l := range leases {
		if s := l.Slot(); s.Start <= low && low < s.End {
			until = max(until, l.ReservedUntil)
		}
	}
	return until
}
