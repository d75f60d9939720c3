package metrics

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// MaxKinds is how many kinds of actors have series of their own. Processes choose
// the names of kinds, so their number must be limited. All others count as
// OtherKinds.
const (
	MaxKinds   = 50
	OtherKinds = "other"
)

// The values of placement's labels.
var (
	placementStates    = []string{"stopped", "not_ready", "client", "member"}
	resolveResults     = []string{"local", "remote", "pending", "held", "not_ready", "unserved", "overloaded", "canceled", "failed"}
	passivationReasons = []string{"moved", "idle", "released", "stopped", "membership_ended", "unserved", "process_gone", "unanswered", "failed"}
	placementStoreOps  = []string{"membership", "members", "try_acquire", "load", "check_owner", "store", "remove", "release"}
)

// Placement are a daemon's metrics of placement. It is safe for concurrent use.
type Placement struct {
	ResolvedLocal  prometheus.Counter // answered at once, or after an activation
	ResolvedRemote prometheus.Counter
	resolves       map[string]prometheus.Counter
	activationTime *Histogram
	passivations   map[string]prometheus.Counter
	storeErrors    map[string]prometheus.Counter
	activations    *prometheus.CounterVec
	collectors     []prometheus.Collector

	mu    sync.Mutex // guards kinds
	kinds map[string]activationResults
}

// activationResults are the counters of one kind.
type activationResults struct{ ok, held, failed prometheus.Counter }

// PlacementSample is the state of placement at one moment.
type PlacementSample struct {
	State       string
	Members     int
	Activations map[string]int // by kind, also ones being activated
	Executors   map[string]int // processes by the kinds that they have registered for
	Ignored     uint64         // results that came too late
}

// NewPlacement makes the counters. Metrics.Placement registers them.
func NewPlacement() *Placement {
	resolves := counterVec("kazahana_placement_resolves_total", "Requests to resolve an actor by result.", "result")
	passivations := counterVec("kazahana_placement_passivations_total", "Activations that ended by reason.", "reason")
	storeErrors := counterVec("kazahana_placement_store_errors_total", "Operations of the store that failed for placement.", "op")
	p := &Placement{
		resolves: counters(resolves, resolveResults), passivations: counters(passivations, passivationReasons),
		storeErrors: counters(storeErrors, placementStoreOps),
		activations: counterVec("kazahana_placement_activations_total", "Attempts to activate an actor by its kind and result.", "kind", "result"),
		activationTime: newHistogram("kazahana_placement_activation_duration_seconds", "Time from the first request for an actor to its activation.",
			100*time.Microsecond, 4, 10), // to 26 s
		kinds: map[string]activationResults{},
	}
	p.ResolvedLocal, p.ResolvedRemote = p.resolves["local"], p.resolves["remote"]
	p.collectors = []prometheus.Collector{resolves, passivations, storeErrors, p.activations, p.activationTime}
	return p
}

// Placement registers the counters, once; ask is called at each scrape.
func (m *Metrics) Placement(p *Placement, ask func() PlacementSample) {
	m.Registry.MustRegister(p.collectors...)
	state := desc("kazahana_placement_state", "1 for this host's state in placement, 0 for the others.", "state")
	members := desc("kazahana_placement_members", "Hosts that actors are placed on, as this host sees it.")
	activations := desc("kazahana_placement_activations", "Actors that processes of this host run or are starting.", "kind")
	executors := desc("kazahana_placement_executors", "Processes of this host that have registered for a kind.", "kind")
	ignored := desc("kazahana_placement_ignored_results_total", "Results that arrived after the daemon had stopped waiting for them.")
	onScrape(m.Registry, func(emit emitter) {
		now := ask()
		for _, word := range placementStates {
			emit(state, prometheus.GaugeValue, oneIf(word == now.State), word)
		}
		emit(members, prometheus.GaugeValue, float64(now.Members))
		p.byLabel(now.Executors) // registered kinds without activations show 0
		for label, n := range p.byLabel(now.Activations) {
			emit(activations, prometheus.GaugeValue, float64(n), label)
		}
		for label, n := range p.byLabel(now.Executors) {
			emit(executors, prometheus.GaugeValue, float64(n), label)
		}
		emit(ignored, prometheus.CounterValue, float64(now.Ignored))
	}, state, members, activations, executors, ignored)
}

// Resolved counts a request that was answered with an error, by its result.
func (p *Placement) Resolved(result string) { inc(p.resolves, result) }

// Activated counts an activation, and the time since it was first requested.
func (p *Placement) Activated(kind string, took time.Duration) {
	p.kind(kind).ok.Inc()
	p.activationTime.Observe(took, 1)
}

// NotActivated counts a failed attempt; held says that another host has the actor.
func (p *Placement) NotActivated(kind string, held bool) {
	if held {
		p.kind(kind).held.Inc()
		return
	}
	p.kind(kind).failed.Inc()
}

// Passivated counts an activation that ended.
func (p *Placement) Passivated(reason string) { inc(p.passivations, reason) }

// StoreFailed counts a failed operation of the store.
func (p *Placement) StoreFailed(op string) { inc(p.storeErrors, op) }

// inc adds one to the counter of a label value. Unknown values are ignored.
func inc(by map[string]prometheus.Counter, word string) {
	if c, ok := by[word]; ok {
		c.Inc()
	}
}

// Seen creates the series of the kinds, up to MaxKinds.
func (p *Placement) Seen(kinds []string) {
	for _, kind := range kinds {
		p.kind(kind)
	}
}

// label returns the label of a kind. mu is held.
func (p *Placement) label(kind string) string {
	if _, known := p.kinds[kind]; known {
		return kind
	}
	if len(p.kinds) >= MaxKinds {
		kind = OtherKinds
	}
	if _, known := p.kinds[kind]; !known {
		counter := func(result string) prometheus.Counter { return p.activations.WithLabelValues(kind, result) }
		p.kinds[kind] = activationResults{counter("ok"), counter("held"), counter("failed")}
	}
	return kind
}

func (p *Placement) kind(kind string) activationResults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kinds[p.label(kind)]
}

// byLabel adds up the numbers of kinds that share a label. A kind that is gone shows
// 0, since the end of its series would look like a lost scrape.
func (p *Placement) byLabel(byKind map[string]int) map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	sums := map[string]int{}
	for _, kind := range slices.Sorted(maps.Keys(byKind)) {
		sums[p.label(kind)] += byKind[kind]
	}
	for kind := range p.kinds {
		sums[kind] += 0
	}
	return sums
}
