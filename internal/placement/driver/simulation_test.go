package driver

import (
	"container/heap"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

var seeds = flag.Int("placement.seeds", 80, "worlds that TestSimulation looks at")

// The world of the simulation: times in ms of true time.
const (
	simNodes    = 4
	simKeys     = 6
	simTTL      = 5_000 // of memberships and locks
	simPoll     = 250
	simDeadline = 1_000 // of a command, and of what Check promises
	simDrift    = 0.02  // of a host's clock, faster or slower
	simHarm     = 40_000
	simRestart  = 8_000 // until a daemon is back, at most
	simPatience = simTTL + 2_000
	simAfter    = 3_000 // in which all goes on to be well
)

var errNoAnswer = errors.New("no answer in time")

// careless is what a world leaves out, to show that it is needed.
type careless struct {
	trusting    bool // the store says of every owner that its membership has ended
	overwriting bool // it replaces a record by another that is not newer
	forgetting  bool // it keeps nothing of a record that is removed
	optimistic  bool // a membership is counted from the answer on, with no margin
	late        bool // what the membership allowed is done after its end
	generous    bool // a membership is given back while something is activated
	hasty       bool // an unreachable process is taken as having ended all
	unlimited   bool // Check promises more than placement.Passivate waits for
	claiming    bool // a host announces kinds that no process of it has registered for
	patient     bool // a host announces the kinds of a process that does not answer
}

// world is hosts, their processes, and one store that all of them use.
type world struct {
	*testing.T
	careless
	rng       *rand.Rand
	now       int64
	queue     happenings
	serial    int
	nodes     []*node
	locks     map[string]*simLock // keys and members
	records   map[placement.Key]placement.Record
	tokens    int64
	down      bool  // the store does not answer
	quiet     int64 // when the last fault is over
	processes int   // of twelve that there could be
	violated  error
	reserved  map[placement.Key]placement.Record // by the latest activation
	latest    map[placement.Key]placement.Record // likewise, that a process has been asked for
	stats     *stats
}

type stats struct {
	activated, takenOver, waited, lost, failed, resolved, acted, stopped, given int
	left, died, silent, hung, unserved                                          int // of processes; settled without one
}

// broken notes the first thing that must not be.
func (w *world) broken(format string, args ...any) {
	if w.violated == nil {
		w.violated = fmt.Errorf("at %d ms "+format, append([]any{w.now}, args...)...)
	}
}

type simLock struct {
	owner   string
	lease   string // of a membership
	note    string
	token   int64
	expires int64
}

type happening struct {
	at     int64
	serial int
	do     func()
}

type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].serial < h[j].serial
}
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *happenings) Push(x any)   { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func (w *world) after(ms int64, do func()) {
	w.serial++
	heap.Push(&w.queue, happening{w.now + ms, w.serial, do})
}

// until counts a fault that lasts until then, and what follows at once.
func (w *world) until(ms int64) int64 {
	w.quiet = max(w.quiet, ms+50)
	return ms
}

// peaceful reports whether messages come, and at once.
func (w *world) peaceful() bool { return w.now > simHarm }

// unlucky messages are lost.
func (w *world) unlucky() bool { return !w.peaceful() && w.rng.IntN(60) == 0 }

func (w *world) delay() int64 {
	if w.peaceful() {
		return 1 + w.rng.Int64N(10)
	}
	switch w.rng.IntN(20) {
	case 0:
		return w.rng.Int64N(2 * simDeadline) // late
	case 1, 2:
		return w.rng.Int64N(200)
	}
	return 1 + w.rng.Int64N(10)
}

// acquire is the lock service.
func (w *world) acquire(name, owner string) (int64, error) {
	if l := w.locks[name]; l != nil && l.expires > w.now {
		return 0, fmt.Errorf("held by %s", l.owner)
	}
	w.tokens++
	w.locks[name] = &simLock{owner: owner, token: w.tokens, expires: w.now + simTTL}
	return w.tokens, nil
}

func (w *world) release(name string, token int64) {
	if l := w.locks[name]; l != nil && l.token == token {
		l.expires = min(l.expires, w.now)
	}
}

// ended is what placement.CheckOwner asks.
func (w *world) ended(m placement.Member) bool {
	l := w.locks["members/"+m.Authority]
	return w.trusting || l == nil || l.token != m.Token || l.expires <= w.now
}

func (w *world) store(k placement.Key, r placement.Record) (err error) {
	next, err := placement.Put(w.records[k], r)
	if w.overwriting {
		next, err = r, nil
	}
	w.records[k] = next
	if before := w.reserved[k]; err == nil && next.Token != before.Token {
		if next.Token < before.Token || next.Version <= before.Version {
			w.broken("%v is reserved as %+v after %+v", k, next, before)
		}
		w.reserved[k] = next
	}
	return err
}

func (w *world) remove(k placement.Key, r placement.Record, keep bool) {
	next := placement.Drop(w.records[k], r, keep)
	if w.forgetting && next.Owner.Authority == "" {
		next = placement.Record{Snapshot: next.Snapshot}
	}
	w.records[k] = next
}

// harm disturbs a random host, again and again until simHarm.
func (w *world) harm() {
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	switch w.rng.IntN(13) {
	case 0, 1:
		if n.core != nil {
			n.crash()
			w.after(w.until(w.now+w.rng.Int64N(simRestart))-w.now, n.start)
		}
	case 2, 3:
		n.paused = max(n.paused, w.until(w.now+w.rng.Int64N(3*simTTL)))
	case 4:
		n.stop(w.rng.Int64N([]int64{50, 600, 2500, 20_000}[w.rng.IntN(4)]))
	case 5:
		w.down = true
		w.after(w.until(w.now+w.rng.Int64N(4000))-w.now, func() { w.down = false })
	case 6:
		if n.core != nil {
			n.core.follow(n.core.PassivateIdle(time.Second, n.moment()))
			n.run(n.core.effects(n.moment()))
		}
	case 7:
		n.disconnect()
	case 8:
		n.frozen = max(n.frozen, w.until(w.now+w.rng.Int64N(2*simTTL)))
	case 9:
		n.cut = max(n.cut, w.until(w.now+w.rng.Int64N(2*simTTL)))
	case 10:
		n.leave()
	case 11:
		n.die()
	case 12:
		n.clock(1+simDrift*(2*w.rng.Float64()-1), w.rng.Int64N(1e9))
	}
	w.after(w.rng.Int64N(800), w.resolveAll)
	if next := w.rng.Int64N(1500); w.now+next < simHarm {
		w.after(next, w.harm)
	}
}

// simKinds are those of the keys, which take turns.
var simKinds = []string{"cart", "room"}

func simKey(i int64) placement.Key {
	return placement.Key{Kind: simKinds[i%int64(len(simKinds))], Identity: fmt.Sprint(i)}
}

func newWorld(t *testing.T, seed uint64, without careless, sum *stats) *world {
	w := &world{
		T: t, careless: without, stats: sum, rng: rand.New(rand.NewPCG(seed, 8)), locks: map[string]*simLock{}, records: map[placement.Key]placement.Record{}, reserved: map[placement.Key]placement.Record{}, latest: map[placement.Key]placement.Record{},
		quiet: simHarm + 2*simDeadline, // when the last late message has come
	}
	w.processes = []int{2, 6, 11, 11, 12}[w.rng.IntN(5)]
	for i := range simNodes {
		n := &node{world: w, name: fmt.Sprintf("host-%d:1", i), boots: time.Duration(w.rng.Int64N(1e9)) * time.Millisecond, live: map[placement.Key]live{}}
		n.clock(1+simDrift*(2*w.rng.Float64()-1), 0)
		w.nodes = append(w.nodes, n)
		n.chooseKinds()
		n.after(w.rng.Int64N(3000), n.start)
	}
	var ask func()
	ask = func() {
		n := w.nodes[w.rng.IntN(simNodes)]
		_ = n.resolve(simKey(w.rng.Int64N(simKeys)))
		n.act(simKey(w.rng.Int64N(simKeys)))
		w.after(1+w.rng.Int64N(50), ask)
	}
	w.after(1, ask)
	w.after(simTTL, w.harm)
	return w
}

func (w *world) runUntil(end int64) {
	for w.now < end && w.violated == nil {
		h := heap.Pop(&w.queue).(happening)
		w.now = h.at
		h.do()
	}
}

func (w *world) resolveAll() {
	for i := range int64(simNodes * simKeys) {
		_ = w.nodes[i%simNodes].resolve(simKey(i / simNodes))
	}
}

// simulate is the life of a world: harm, and then peace. It adds to the sum what has happened.
func simulate(t *testing.T, seed uint64, without careless, sum *stats) *world {
	w := newWorld(t, seed, without, sum)
	w.runUntil(simHarm)
	w.hang()
	for w.now < w.quiet && w.violated == nil { // it may grow
		w.runUntil(w.quiet)
	}
	// A caller that waits for a key asks for it again and again.
	for ms := int64(0); ms < simPatience+simAfter; ms += 200 {
		w.after(ms, w.resolveAll)
	}
	w.runUntil(w.quiet + simPatience)
	w.settled()
	w.runUntil(w.quiet + simPatience + simAfter)
	w.settled()
	return w
}

// settled judges a world after its last fault: every key of a served kind is resolved from
// everywhere, all agree on where it is, and it is activated there alone.
func (w *world) settled() {
	for i := range int64(simKeys) {
		if w.violated != nil {
			return
		}
		k := simKey(i)
		where := w.nodes[0].authority(k)
		if where == "" {
			w.stats.unserved++
		}
		for _, n := range w.nodes {
			if err := n.resolve(k); err != nil && (where != "" || !errors.Is(err, placement.ErrUnserved)) {
				w.broken("%s does not resolve %v: %v; %+v", n.name, k, err, n.core.Page(placement.Key{}, simKeys, n.moment()))
			} else if authority := n.authority(k); authority != where {
				w.broken("%v is at %s and at %s", k, where, authority)
			}
			n.notice()
			if where == "" && n.serves(k.Kind) && !n.hung || n.name == where && !slices.Contains(n.wants, k.Kind) {
				w.broken("%v belongs to %q, and %s has a process for %v", k, where, n.name, n.registered)
			}
			if _, alive := n.live[k]; alive != (n.name == where) && !(alive && n.hung) {
				w.broken("%v belongs to %s, and on %s it is activated: %v; %+v, the store has %+v", k, where, n.name, alive, n.core.Page(placement.Key{}, simKeys, n.moment()), w.records[k])
			}
			if ignored := n.core.Overview(n.moment()).Ignored; ignored != 0 {
				w.broken("%s got %d results that it had not asked for", n.name, ignored)
			}
		}
	}
}

// TestSimulation: in no world do two processes rely on a key at once, and each
// world finds its way back in time.
func TestSimulation(t *testing.T) {
	ring.WithoutRace(t)
	var sum stats
	for seed := range uint64(*seeds) {
		w := simulate(t, seed, careless{}, &sum)
		if w.violated != nil { // seeds 004-2, 004-4, 004-46 and 004-55
			t.Fatalf("seed %d: %v", seed, w.violated)
		}
	}
	t.Logf("%d worlds: %+v", *seeds, sum)
	if slices.Contains([]int{sum.takenOver, sum.waited, sum.failed, sum.lost, sum.stopped, sum.given, sum.left, sum.died, sum.silent, sum.hung, sum.unserved}, 0) {
		t.Error("the worlds are too peaceful")
	}
}

// TestSimulationWithoutAGuard: without any one of the guards, some world shows the lack.
func TestSimulationWithoutAGuard(t *testing.T) {
	ring.WithoutRace(t)
	const most = 4000 // worlds to look at
	for name, without := range map[string]careless{
		"the old owner's membership has ended":     {trusting: true},
		"a record is replaced by newer ones alone": {overwriting: true}, // seed 004-59
		"a removed record stays removed":           {forgetting: true},
		"a membership is counted from before":      {optimistic: true},
		"nothing is begun after the membership":    {late: true},
		"what is activated keeps the membership":   {generous: true},
		"a silent process may still rely on it":    {hasty: true},
		"a promise ends before the patience":       {unlimited: true},
		"a host without a process owns nothing":    {claiming: true},
		"a frozen process keeps no share":          {patient: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(most) {
				if w := simulate(t, seed, without, &stats{}); w.violated != nil {
					t.Logf("seed %d: %v", seed, w.violated)
					return
				}
			}
			t.Error("no world shows it")
		})
	}
}
