package placement

import (
	"container/heap"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var seeds = flag.Int("placement.seeds", 80, "worlds that TestSimulation looks at")

// The world of the simulation: times in ms of true time.
const (
	simNodes      = 4
	simKeys       = 6
	simLength     = 75_000
	simTTL        = 5_000 // of memberships and locks
	simRenew      = 1_500
	simMargin     = 500 // of a membership that its holder counts as over
	simPoll       = 400
	simDeadline   = 1_000 // of a command
	simDrift      = 0.02  // of a host's clock, faster or slower
	simPatience   = 32_000
	simQuietAfter = simLength - simPatience // from then on nothing is done to anybody
)

var errNoAnswer = errors.New("no answer in time")

// world is hosts, their processes, and one store that all of them use.
type world struct {
	*testing.T
	rng      *rand.Rand
	now      int64
	queue    happenings
	serial   int
	nodes    []*node
	locks    map[string]*simLock // keys and members
	records  map[Key]Record
	tokens   int64
	trusting bool // the store says of every owner that its membership has ended
	violated error
	down     bool // the store answers nobody
	stats    struct{ activated, takenOver, waited, lost, failed, resolved int }
	lastLive map[Key]int64 // token of the latest activation
}

type simLock struct {
	owner   string
	token   int64
	expires int64
}

// node is a host: a coordinator with its driver, and the process that it serves.
type node struct {
	*world
	name      string
	core      *Core // nil: down
	life      int   // of the daemon: what an earlier one began is not for this one
	rate      float64
	offset    int64
	paused    int64 // until then the daemon does nothing
	member    int64 // token
	requested bool
	live      map[Key]live // of the process
	line      int64        // when the last request on the connection arrives: they are in order
}

// live is an activation as its process knows it. The process does not wait for the
// daemon to tell it that the membership is over.
type live struct {
	token int64
	until time.Duration // on the host's clock
}

func (n *node) boot() time.Duration {
	return time.Duration(float64(n.world.now)*n.rate)*time.Millisecond + time.Duration(n.offset)*time.Millisecond
}

func (n *node) moment() Moment { return Moment{n.boot(), n.world.now} }

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

// on has the node's daemon do something, when it is not paused and still the same.
func (n *node) on(ms int64, do func()) {
	life := n.life
	var try func()
	try = func() {
		switch {
		case n.life != life || n.core == nil:
		case n.paused > n.world.now:
			n.after(n.paused-n.world.now, try)
		default:
			do()
		}
	}
	n.after(ms, try)
}

// unlucky messages are lost.
func (w *world) unlucky() bool { return w.now < simQuietAfter && w.rng.IntN(60) == 0 }

func (w *world) delay() int64 {
	if w.now > simQuietAfter {
		return 1 + w.rng.Int64N(10)
	}
	switch w.rng.IntN(20) {
	case 0:
		return w.rng.Int64N(2 * simDeadline) // late
	case 1, 2, 3:
		return w.rng.Int64N(200)
	}
	return 1 + w.rng.Int64N(10)
}

// call has the store do something for the node: after a delay, and the answer
// comes after another, or in time not at all, and it was done nevertheless or not.
func (n *node) call(do func(), answer func(error)) {
	over := false
	n.on(simDeadline, func() {
		if !over {
			over = true
			answer(errNoAnswer)
		}
	})
	n.after(n.delay(), func() {
		if n.down || n.unlucky() {
			return
		}
		do()
		if n.unlucky() {
			return
		}
		n.on(n.delay(), func() {
			if !over {
				over = true
				answer(nil)
			}
		})
	})
}

// acquire is the lock service.
func (w *world) acquire(name, owner string) (int64, error) {
	if l := w.locks[name]; l != nil && l.expires > w.now {
		return 0, fmt.Errorf("held by %s", l.owner)
	}
	w.tokens++
	w.locks[name] = &simLock{owner, w.tokens, w.now + simTTL}
	return w.tokens, nil
}

func (w *world) release(name string, token int64) {
	if l := w.locks[name]; l != nil && l.token == token {
		l.expires = min(l.expires, w.now)
	}
}

func (n *node) start() {
	n.life++
	n.core, n.member, n.live, n.requested = NewCore(n.name), 0, map[Key]live{}, false
	n.core.SetKinds([]string{"room"})
	n.core.Start()
	n.renew()
	n.poll()
	n.tick()
}

// renew gets or keeps the membership.
func (n *node) renew() {
	from, token := n.boot(), int64(0)
	n.call(func() {
		name := "members/" + n.name
		l := n.locks[name]
		switch {
		case n.member != 0 && l != nil && l.token == n.member && l.expires > n.world.now:
			l.expires, token = n.world.now+simTTL, n.member
		case n.member == 0:
			token, _ = n.acquire(name, n.name)
		}
	}, func(err error) {
		switch {
		case err == nil && token != 0:
			n.member = token
			until := from + (simTTL-simMargin)*time.Millisecond
			n.run(n.core.SetMembership(token, until, n.moment()))
			for k, l := range n.live {
				l.until = until
				n.live[k] = l
			}
		case err == nil:
			n.member = 0
		}
		n.on(simRenew, n.renew)
	})
}

func (n *node) poll() {
	var members []Member
	n.call(func() {
		for _, m := range n.nodes {
			if l := n.locks["members/"+m.name]; l != nil && l.expires > n.world.now {
				members = append(members, Member{m.name, l.token})
			}
		}
	}, func(err error) {
		if err == nil {
			n.run(n.core.UpdateTopology(members, n.moment()))
		}
		n.on(simPoll, n.poll)
	})
}

func (n *node) tick() {
	n.run(n.core.Tick(n.moment()))
	n.on(500, n.tick)
}

func (n *node) run(o Outcome) {
	for _, d := range o.Done {
		switch {
		case errors.Is(d.Err, ErrOwned):
			n.stats.waited++
		case errors.Is(d.Err, ErrLost):
			n.stats.lost++
		case d.Err != nil:
			n.stats.failed++
		}
	}
	for _, c := range o.Commands {
		n.carryOut(c)
	}
}

func (n *node) result(r Result) { n.run(n.core.HandleResult(r, n.moment())) }

func (n *node) carryOut(c Command) {
	r := &Result{ID: c.ID}
	finish := func(err error) {
		if err != nil {
			r.Err, r.Unknown = err, true
		}
		n.result(*r)
	}
	switch c.Op {
	case TryAcquire:
		n.call(func() {
			token, err := n.acquire(c.Key.String(), n.name)
			r.Lease, r.Err = Lease{fmt.Sprint(token), token}, err
		}, finish)
	case Load:
		n.call(func() { r.Record, r.Found = n.records[c.Key], n.records[c.Key].Version > 0 }, finish)
	case CheckOwner:
		n.call(func() {
			l := n.locks["members/"+c.Record.Owner.Authority]
			r.Ended = n.trusting || l == nil || l.token != c.Record.Owner.Token || l.expires <= n.world.now
			if r.Ended {
				n.stats.takenOver++
			}
		}, finish)
	case Store:
		n.call(func() { n.records[c.Key], r.Err = Put(n.records[c.Key], c.Record) }, finish)
	case Remove:
		n.call(func() { n.records[c.Key] = Drop(n.records[c.Key], c.Record, c.Keep) }, finish)
	case Release:
		n.call(func() { n.release(c.Key.String(), c.Lease.Token) }, finish)
	case Ensure:
		if n.boot() >= c.Until {
			r.Err = errors.New("too late")
			n.on(0, func() { n.result(*r) })
			return
		}
		n.toProcess(func() {
			if n.boot() >= c.Until { // the request says until when
				r.Err = errors.New("too late")
				return
			}
			n.live[c.Key] = live{c.Record.Token, c.Until}
			n.judge(c)
			r.PID = fmt.Sprint("pid", c.Record.Token)
		}, finish)
	case Passivate:
		n.toProcess(func() {
			if n.live[c.Key].token == c.Record.Token {
				delete(n.live, c.Key)
			}
			r.Snapshot = []byte{1}
		}, finish)
	}
}

// toProcess is a request on the connection, which is in order and loses nothing,
// but the process may be slow.
func (n *node) toProcess(do func(), answer func(error)) {
	over, life := false, n.life
	n.on(simDeadline, func() {
		if !over {
			over = true
			answer(errNoAnswer)
		}
	})
	n.line = max(n.line, n.world.now+n.delay()/2)
	n.after(n.line-n.world.now, func() {
		if n.life != life {
			return
		}
		do()
		n.on(1, func() {
			if !over {
				over = true
				answer(nil)
			}
		})
	})
}

// judge is called when a process activates a key: nobody else may believe in an
// activation of his, and the token must be the greatest so far.
func (n *node) judge(c Command) {
	n.stats.activated++
	for _, other := range n.nodes {
		if l, ok := other.live[c.Key]; ok && other != n && other.boot() < l.until && n.violated == nil {
			n.violated = fmt.Errorf("at %d ms %s activates %v with token %d, and %s still has token %d", n.world.now, n.name, c.Key, c.Record.Token, other.name, l.token)
		}
	}
	if c.Record.Token <= n.lastLive[c.Key] && n.violated == nil {
		n.violated = fmt.Errorf("at %d ms %s activates %v with token %d after %d", n.world.now, n.name, c.Key, c.Record.Token, n.lastLive[c.Key])
	}
	n.lastLive[c.Key] = c.Record.Token
}

// crash ends the daemon; its process notices that at once, because the connection
// ends.
func (n *node) crash() {
	n.life++
	n.core, n.live = nil, map[Key]live{}
}

func (w *world) harm() {
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	switch w.rng.IntN(8) {
	case 0, 1:
		if n.core != nil {
			n.crash()
			n.after(w.rng.Int64N(8000), n.start)
		}
	case 2, 3:
		n.paused = max(n.paused, w.now+w.rng.Int64N(3*simTTL))
	case 4:
		if n.core != nil { // politely
			n.run(n.core.Stop(n.moment()))
			n.on(2000, func() {
				n.release("members/"+n.name, n.member)
				n.crash()
				n.after(w.rng.Int64N(8000), n.start)
			})
		}
	case 5:
		w.down = true
		w.after(w.rng.Int64N(4000), func() { w.down = false })
	case 6:
		if n.core != nil {
			n.run(n.core.PassivateIdle(time.Second, n.moment()))
		}
	case 7:
		for _, k := range keysOf(n.live) { // the connection breaks, and is made again
			l := n.live[k]
			delete(n.live, k)
			n.on(1, func() { n.run(n.core.Ended(k, l.token, n.moment())) })
		}
	}
	if w.now < simQuietAfter-8000 {
		w.after(w.rng.Int64N(1500), w.harm)
	}
}

func keysOf(m map[Key]live) []Key {
	var keys []Key
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int { return int(a.hash()>>1) - int(b.hash()>>1) })
	return keys
}

func simulate(t *testing.T, seed uint64, trusting bool) *world {
	w := &world{
		T: t, rng: rand.New(rand.NewPCG(seed, 8)), locks: map[string]*simLock{}, records: map[Key]Record{}, lastLive: map[Key]int64{}, trusting: trusting,
	}
	for i := range simNodes {
		n := &node{world: w, name: fmt.Sprintf("host-%d:1", i), rate: 1 + simDrift*(2*w.rng.Float64()-1), offset: w.rng.Int64N(1e6)}
		w.nodes = append(w.nodes, n)
		n.after(w.rng.Int64N(3000), n.start)
	}
	var ask func()
	ask = func() {
		w.resolve(w.nodes[w.rng.IntN(simNodes)], w.rng.Int64N(simKeys))
		w.after(1+w.rng.Int64N(60), ask)
	}
	w.after(1, ask)
	for i := range int64(5 * simKeys * simNodes) {
		w.after(simLength-3000+20*i, func() { w.resolve(w.nodes[i%simNodes], i/simNodes%simKeys) })
	}
	w.after(5000, w.harm)
	for w.now < simLength && w.violated == nil {
		h := heap.Pop(&w.queue).(happening)
		w.now = h.at
		h.do()
	}
	return w
}

func (w *world) resolve(n *node, key int64) {
	if n.core == nil || n.paused > w.now {
		return
	}
	r, o, err := n.core.Resolve(Key{"room", fmt.Sprint(key)}, n.moment())
	n.run(o)
	if err == nil && r.Locality == Local {
		w.stats.resolved++
	}
}

// settled reports what is wrong with a world that was left alone for long: every
// key that is asked for is activated, on the host that all agree on.
func (w *world) settled() error {
	for i := range simKeys {
		k := Key{"room", fmt.Sprint(i)}
		where := ""
		for _, n := range w.nodes {
			if state := n.core.State(n.moment()); state != StateMember {
				return fmt.Errorf("%s is %s", n.name, state)
			}
			authority, _ := n.core.topology.Authority(k)
			if where == "" {
				where = authority
			}
			if authority != where {
				return fmt.Errorf("%v is at %s and at %s", k, where, authority)
			}
		}
		for _, n := range w.nodes {
			if _, alive := n.live[k]; alive != (n.name == where) {
				return fmt.Errorf("%v belongs to %s, and on %s it is activated: %v; %+v, the store has %+v", k, where, n.name, alive, n.core.Snapshot(n.moment()), n.records[k])
			}
		}
	}
	return nil
}

// TestSimulation: in no world do two processes have a key activated at once, and
// each world finds its way back.
func TestSimulation(t *testing.T) {
	var sum world
	for seed := range uint64(*seeds) {
		w := simulate(t, seed, false)
		if w.violated != nil {
			t.Fatalf("seed %d: %v", seed, w.violated)
		}
		if err := w.settled(); err != nil {
			t.Fatalf("seed %d: at the end %v", seed, err)
		}
		sum.stats.activated += w.stats.activated
		sum.stats.takenOver += w.stats.takenOver
		sum.stats.waited += w.stats.waited
		sum.stats.lost += w.stats.lost
		sum.stats.failed += w.stats.failed
		sum.stats.resolved += w.stats.resolved
	}
	t.Logf("%d worlds: %+v", *seeds, sum.stats)
	if sum.stats.takenOver == 0 || sum.stats.waited == 0 || sum.stats.failed == 0 || sum.stats.lost == 0 {
		t.Error("the worlds are too peaceful")
	}
}

// TestSimulationWithoutTheCheck: whoever takes over without asking whether the old
// owner's membership has ended is found out.
func TestSimulationWithoutTheCheck(t *testing.T) {
	for seed := range uint64(100) {
		if w := simulate(t, seed, true); w.violated != nil {
			t.Logf("seed %d: %v", seed, w.violated)
			return
		}
	}
	t.Error("no world shows it")
}
