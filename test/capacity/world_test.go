package capacity

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// beginMS is what every clock shows when a run begins.
const beginMS = snowflake.DefaultEpochMS + 150*24*60*60*1000

const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// scenario is what happens to the hosts. Times are in milliseconds.
type scenario struct {
	hosts    int
	services int   // of each host, all in one pool
	leases   int64 // of each service
	terms    provider.Terms

	length    int64   // of the run
	startOver int64   // the hosts start evenly within this time
	waves     []wave  // all hosts restart
	restarts  float64 // graceful ones per host and hour, beside the waves
	crashes   float64 // per host and hour
	lost      float64 // share of the crashes that take the durable state with them

	guests      int   // of the hosts, the last ones
	guestsLeave int64 // when they stop for good, all within a minute

	releaseTakes int64 // from when it is sent until the slot is free
	keepReleases bool  // releases do not reach the provider
	stopAtFault  bool
}

// wave is a deployment: every host restarts once, evenly within over from at on.
type wave struct{ at, over int64 }

// calm is hosts on the default terms that stay up for as long as they are
// observed. They start evenly over one period of renewal, so that at any time
// as many are in it as at any other.
func calm(hosts int) scenario {
	t := provider.DefaultTerms()
	return scenario{
		hosts: hosts, services: 1, leases: 1, terms: t, length: day, startOver: period(t), lost: 1,
	}
}

// busy is hosts that start within a quarter of an hour, are restarted now and
// then, and twice all of them within a quarter of an hour.
func busy(hosts int, length int64) scenario {
	s := calm(hosts)
	s.length, s.startOver, s.restarts = length, 15*minute, 0.05
	s.waves = []wave{{at: length * 3 / 8, over: 15 * minute}, {at: length * 3 / 4, over: 15 * minute}}
	return s
}

// period is the time from one renewal to the next.
func period(t provider.Terms) int64 { return t.Term.Milliseconds() * 9 / 10 }

// world is one run: the hosts, the provider, the time.
type world struct {
	scenario
	seed     uint64
	now      int64 // since the beginning
	queue    queue
	queued   uint64
	provider provider.Provider
	all      []*host

	acquires   int
	failed     int    // acquires that brought nothing or less than was asked for
	lastFailed int64  // when the last of them was
	gaps       int    // times that a service had a lease and then none
	lastGap    int64  // when a host was without a lease last
	fault      string // the first of either
}

// newWorld prepares a run, for a provider that is set before it.
func newWorld(seed uint64, s scenario) *world {
	w := &world{scenario: s, seed: seed}
	for i := range s.hosts {
		w.all = append(w.all, newHost(w, i))
	}
	return w
}

func (w *world) nowMS() int64 { return beginMS + w.now }

// run lets the time pass until the scenario ends.
func (w *world) run() {
	for len(w.queue) > 0 && w.queue[0].at <= w.length {
		if w.stopAtFault && w.fault != "" {
			return
		}
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
	}
	w.now = w.length
}

// at has do called at the time. Events of one time happen in the order in which they were asked
// for.
func (w *world) at(t int64, do func()) {
	w.queued++
	heap.Push(&w.queue, event{at: t, order: w.queued, do: do})
}

// blame notes what must not happen.
func (w *world) blame(s *service, what error) {
	if w.fault == "" {
		w.fault = fmt.Sprintf("seed %d: host %d, service %s, after %v: %v",
			w.seed, s.host.number, s.name, time.Duration(w.now)*time.Millisecond, what)
	}
}

type event struct {
	at    int64
	order uint64
	do    func()
}

// queue is a heap of events, the earliest first.
type queue []event

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q *queue) Push(e any) { *q = append(*q, e.(event)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = event{}
	*q = (*q)[:last]
	return e
}

// newRand is a host's own source: its draws depend on no other host.
func newRand(seed uint64, host int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(host)*0x9E3779B97F4A7C15+1))
}
