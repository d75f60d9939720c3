package proof

import (
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/test/trace"
)

// diskDevice and memoryDevice are the same on all machines.
const diskDevice, memoryDevice = 1, 2

// setting says which world it is.
type setting struct {
	seed  uint64
	focus rule   // what this rule is about happens often
	off   bool   // and it is switched off
	real  bool   // the provider is the product's, in place of the store with switches
	tell  bool   // keep the story
	whole bool   // with locks, sequences and placement, at a slower pace
	dir   string // in memory, for real files; "": there are none
}

// world is the machines, the daemons, the provider, the true time, and every ID
// so far. Time is the time of the synctest bubble in which a world runs.
type world struct {
	setting
	rnd      *rand.Rand
	timeline snowflake.Timeline
	lowBits  int // few, so that slots are few and collide

	began      time.Time
	skew       int64 // the provider's clock minus the true time; jumps
	provider   provider.Provider
	store      *store // nil: the provider is the product's
	plain      bool   // the provider cannot verify
	machines   []*machine
	daemons    []*daemon
	extenders  []*extender
	depth      int       // calls on their way, one inside the other
	downUntil  int64     // Unix ms until which the provider cannot be reached
	messages   []func()  // on their way
	answers    []answer  // seen on the wire
	stores     []content // of the store
	liveOnDisk bool      // live directories are on the disk, which State.Open refuses
	deadliness int       // one write step in so many is a kill -9
	// deadlyCalls: likewise one call of the provider.
	deadlyCalls int
	alike       bool // the daemons have the same service and the same live directory
	tight       bool // there is about one slot for each daemon
	disasters   int  // how many of the events are
	numbers     int

	backups []backup
	asides  []place // folders that were moved away and may come back
	onDisk  []onDisk

	seen      map[snowflake.ID]origin
	regular   int
	cached    int
	digest    uint64 // of all IDs
	happened  map[string]int
	fallbacks []generator.Fallback
	certain   bool   // no daemon makes random fallback IDs: cached ones are unique without exception
	fault     string // the first violation
	trail     trail
	followed  trace.Result
	story     []string

	together // most of it is for whole worlds
}

// origin is who made an ID, and how.
type origin struct {
	by       string
	kind     generator.Kind
	reserved int64 // for cached fallback IDs: the lease's reservation
}

// without reports whether the rule is switched off.
func (w *world) without(r rule) bool { return w.off && w.focus == r }

func (w *world) nowMS() int64 { return time.Now().UnixMilli() }

func (w *world) count(what string) {
	w.happened[what]++
	if w.whole {
		w.met(what)
	}
	w.tells("%s", what)
}

// tells adds to the story of the world.
func (w *world) tells(format string, args ...any) {
	if w.tell {
		w.story = append(w.story, fmt.Sprintf("%6d ms  ", time.Since(w.began).Milliseconds())+fmt.Sprintf(format, args...))
	}
}

// number returns a new number each time.
func (w *world) number() int {
	w.numbers++
	return w.numbers
}

// randomness replaces the system's, so that a seed repeats a run.
type randomness struct {
	mu  sync.Mutex // hosts name leases
	rnd *rand.Rand
}

func (r *randomness) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range b {
		b[i] = byte(r.rnd.Uint32())
	}
	return len(b), nil
}

// newWorld draws a world.
func newWorld(s setting) *world {
	time.Sleep(offGrid)
	w := &world{
		setting: s, rnd: newRand(s.seed), began: time.Now(),
		deadliness: 200, deadlyCalls: 40, seen: map[snowflake.ID]origin{}, happened: map[string]int{},
	}
	crand.Reader = &randomness{rnd: newRand(^s.seed)}
	w.trail = newTrail(w)
	w.pace = 1
	if w.whole {
		w.pace, w.kind = wholePace, w.drawKind()
	}
	term := w.pace * (20 + w.rnd.Int64N(60))
	quarantine := pick(w, []int64{0, w.pace * w.rnd.Int64N(40), 3 * term})
	w.fallbacks = []generator.Fallback{generator.FallbackCachedRandom, generator.FallbackCached, generator.FallbackNone}
	if w.certain = w.rnd.IntN(3) == 0; w.certain {
		w.fallbacks = w.fallbacks[1:] // no daemon goes on beyond a reservation
	}
	w.plain, w.disasters = w.rnd.IntN(8) == 0, pick(w, []int{0, 1, 3, 8, 16})
	w.alike = w.focus >= adoptedFromLiveStateOnly && w.focus <= bootAndMachine && w.rnd.IntN(4) > 0
	switch w.focus {
	case quarantineKept, releasedNeverCached:
		// These are about fallback in a long reservation.
		quarantine, w.fallbacks = 3*term, []generator.Fallback{generator.FallbackCachedRandom, generator.FallbackCached}
		w.certain = false
	case embeddedTimestampChecked, restoredExtendsNothing:
		quarantine = 0 // which would make up for the breach most of the time
	case bitsCompared:
		w.plain, w.tight = true, true // the first verify tells that a lease is gone
	case removedBeforeSending:
		w.deadlyCalls = 6
	case bootAndMachine:
		w.liveOnDisk = true
	}
	if w.focus < markExclusive || w.focus == restoredExtendsNothing { // it is not about the two places
		w.disasters = min(w.disasters, 1)
	}
	w.lowBits = 5
	if !w.tight {
		w.lowBits += w.rnd.IntN(2)
	}
	w.timeline = snowflake.Timeline{EpochMS: w.nowMS() - 100_000, BitTS: snowflake.ValueBits - w.lowBits}
	w.drawDaemons()
	w.drawProvider(term, quarantine)
	w.drawExtenders()
	if w.whole {
		w.join()
	}
	for _, d := range w.daemons {
		d.start()
	}
	return w
}

// serviceNames are the services that the daemons of a world may have; each has a layout of its
// own.
var serviceNames = []string{"a", "b", "c"}

func (w *world) drawDaemons() {
	machines := 1 + w.rnd.IntN(2)
	switch w.focus {
	case identityLocked, folderIdentity:
		machines = 1
	}
	for range machines {
		m := &machine{w: w, name: fmt.Sprint("machine ", len(w.machines)), id: fmt.Sprint("machine ", w.number())}
		m.disk = newFileSystem(w, diskDevice, w.rnd.IntN(2) == 0)
		m.start()
		w.machines = append(w.machines, m)
	}
	for i := range 3 + w.rnd.IntN(3) {
		m := w.machines[i%len(w.machines)]
		d := &daemon{w: w, name: fmt.Sprint("daemon", i), at: m, dir: fmt.Sprint("state", i/len(w.machines)), live: "live", phase: time.Duration(i+1) * 7 * time.Microsecond}
		if p := w.rnd.IntN(8); !w.alike && p == 0 {
			d.live = ""
		} else if !w.alike && p < 3 {
			d.live = fmt.Sprint("live", i)
		}
		d.offset.Store(w.rnd.Int64N(7) - 3)
		for range 1 + w.rnd.IntN(2) {
			name := pick(w, serviceNames)
			if w.alike {
				name = serviceNames[0]
			}
			if len(d.services) > 0 && d.services[0].name == name {
				break
			}
			d.services = append(d.services, &service{name: name, cfg: w.drawConfig()})
		}
		w.daemons = append(w.daemons, d)
	}
}

func (w *world) drawConfig() generator.Config {
	most := pick(w, []int64{4, 8, 24})
	if w.tight {
		most = 4
	}
	return generator.Config{
		MaxThroughput: 1 + w.rnd.Int64N(most),
		Fallback:      pick(w, w.fallbacks),
		MaxBackwardMS: pick(w, []int64{0, 5, 1000, -1}),
		Spread:        w.rnd.IntN(2) == 0,
	}
}

func (w *world) drawProvider(term, quarantine int64) {
	clock := func() int64 { return w.nowMS() + w.skew }
	byService, named := map[string]terms{}, map[string]provider.Terms{}
	for _, name := range serviceNames {
		bitSeq := 2 + w.rnd.IntN(2)
		if w.tight {
			bitSeq = 2
		}
		byService[name] = terms{
			epoch: w.timeline.EpochMS, bitTS: w.timeline.BitTS, bitSeq: bitSeq, bitID: w.lowBits - bitSeq, term: term, quarantine: quarantine,
		}
		t := provider.DefaultTerms()
		t.Timeline, t.BitID, t.BitSeq = w.timeline, w.lowBits-bitSeq, bitSeq
		t.Term, t.Quarantine = time.Duration(term)*time.Millisecond, time.Duration(quarantine)*time.Millisecond
		named[name] = t
	}
	if !w.real {
		w.store = &store{now: clock, w: w, terms: byService, content: content{requests: map[string][]lease.Lease{}}}
		w.provider = noted{w.store, &w.trail}
		return
	}
	services := provider.Services{Default: named[serviceNames[0]], Named: named}
	switch {
	case w.whole && w.kind == onSQLite:
		w.provider = w.openLeases(services, clock)
	case w.whole:
		w.provider = w.openPool(services, clock)
	default:
		p, err := pool.New(pool.Config{
			Records: memory.NewArea(pool.AreaOf(services), clock), Services: services, Info: provider.Info{Name: "memory"}, Random: w.rnd.Int64N,
		})
		must(err, nil)
		w.provider = p
	}
	w.provider = noted{w.provider, &w.trail}
	if w.whole && w.rnd.IntN(2) == 0 {
		w.serve(w.provider, services, clock)
	}
}

// run lets n things happen, unless a promise is broken before. It ends all processes.
func (w *world) run(n int) {
	for range n {
		if w.fault != "" {
			break
		}
		w.event()
		for _, x := range w.extenders {
			x.act()
		}
		if w.whole {
			w.eventTogether()
		}
	}
	for _, d := range w.daemons {
		d.kill()
	}
	if w.whole {
		w.part()
	}
	w.follow()
}

// issued judges a new ID, which its caller got after the answer that ended in
// before, and asked for when the trail had from steps.
func (w *world) issued(s *stream, id snowflake.ID, kind generator.Kind, before snowflake.ID, from int) {
	if w.fault != "" {
		return
	}
	at, by := w.timeline.UnixMS(id), s.name()
	ms := at - w.began.UnixMilli()
	if id <= before && !w.off { // a breach must lead to a duplicate to count
		w.fault = fmt.Sprintf("%s made %d after %d, at %d ms", by, id, before, ms)
	}
	o := origin{by: by, kind: kind}
	switch kind {
	case generator.Regular:
		w.regular++
		w.trail.emits(s, w.timeline, id, kind, from)
	case generator.FallbackCachedID:
		w.cached++
		w.trail.emits(s, w.timeline, id, kind, from)
		o.reserved = s.reservation(w.timeline.Low(id)-w.timeline.FallbackBit(), at)
	}
	w.judge(id, o)
}

// judge says whether the ID may be equal to one before it.
func (w *world) judge(id snowflake.ID, o origin) {
	w.digest = (w.digest ^ uint64(id)) * 1099511628211
	at, low := w.timeline.UnixMS(id), w.timeline.Low(id)
	ms := at - w.began.UnixMilli()
	w.tells("%s makes (%d ms, %d)", o.by, ms, low)
	first, twice := w.seen[id]
	w.seen[id] = o
	switch {
	case twice && (o.kind == generator.Regular || first.kind == generator.Regular):
		w.fault = fmt.Sprintf("%s and %s made the same regular ID: %d ms, low bits %d", first.by, o.by, ms, low)
	case o.kind == generator.FallbackRandomID: // another daemon may have made it too: that is why it is the last resort
		if twice {
			w.seen[id] = first
		}
	case twice && first.kind == generator.FallbackCachedID && (w.certain || (at < first.reserved && at < o.reserved)):
		w.fault = fmt.Sprintf("%s and %s made the same cached fallback ID before %d ms: %d ms, low bits %d",
			first.by, o.by, o.reserved-w.began.UnixMilli(), ms, low)
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9E3779B97F4A7C15)) }
