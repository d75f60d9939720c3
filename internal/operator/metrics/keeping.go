package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Keeping is what a daemon counts of locks and sequences. All series show from the
// start, so that a first failure is an increase.
type Keeping struct {
	LockWaiters  prometheus.Gauge // requests that wait for a lock
	LockWait     *Histogram       // from a request for a lock to its grant
	lockRequests map[string]map[string]prometheus.Counter
	locksLost    map[string]prometheus.Counter
	sequences    map[string]prometheus.Counter
	values       prometheus.Counter
}

// The words by which a daemon counts what became of requests: those of the server,
// and one for callers that did not wait for the end.
var (
	canceled    = []string{"canceled"}
	lockResults = map[string][]string{
		"acquire": slices.Concat(serverLockResults["acquire"], []string{"expired"}, canceled),
		"renew":   slices.Concat(serverLockResults["renew"], canceled),
		"release": slices.Concat(serverLockResults["release"], canceled),
		"get":     {"ok", "refused", "unavailable", "timeout", "canceled"},
		"list":    {"ok", "refused", "unavailable", "timeout", "canceled"},
	}
	lockLosses      = []string{"expired", "taken_over", "refused", "released"}
	sequenceResults = slices.Concat(serverSequenceResults, canceled)
)

// Keeping registers what there is to count where a daemon keeps locks and sequences,
// once. held is asked at a scrape for how many locks connections hold.
func (m *Metrics) Keeping(held func() int) *Keeping {
	k := &Keeping{
		LockWaiters: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kazahana_lock_waiters", Help: "Requests that wait for a lock."}),
		LockWait: newHistogram("kazahana_lock_wait_seconds", "Time from a request for a lock to its grant.",
			100*time.Microsecond, 4, 12), // to 419 s
		lockRequests: map[string]map[string]prometheus.Counter{},
		values: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kazahana_sequence_values_total", Help: "Values of sequences handed out.",
		}),
	}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kazahana_lock_requests_total", Help: "Requests for locks by operation and result.",
	}, []string{"op", "result"})
	for op, results := range lockResults {
		k.lockRequests[op] = counters(requests.MustCurryWith(prometheus.Labels{"op": op}), results)
	}
	lost := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kazahana_locks_lost_total", Help: "Locks that connections held and lost.",
	}, []string{"reason"})
	k.locksLost = counters(lost, lockLosses)
	sequences := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kazahana_sequence_requests_total", Help: "Requests for values of sequences by result.",
	}, []string{"result"})
	k.sequences = counters(sequences, sequenceResults)
	heldNow := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kazahana_locks_held", Help: "Locks that connections hold.",
	}, func() float64 { return float64(held()) })
	m.Registry.MustRegister(k.LockWaiters, k.LockWait, k.values, requests, lost, sequences, heldNow)
	return k
}

// counters are those of the results, by result.
func counters(vec *prometheus.CounterVec, results []string) map[string]prometheus.Counter {
	all := make(map[string]prometheus.Counter, len(results))
	for _, result := range results {
		all[result] = vec.WithLabelValues(result)
	}
	return all
}

// count adds one for the result; one that does not occur would be no series, and
// "refused" is the word for what has none of its own.
func count(by map[string]prometheus.Counter, result string) {
	c, ok := by[result]
	if !ok {
		c = by["refused"]
	}
	c.Inc()
}

// Lock counts a request for a lock.
func (k *Keeping) Lock(op, result string) { count(k.lockRequests[op], result) }

// Lost counts a lock that a connection held and lost.
func (k *Keeping) Lost(reason string) { count(k.locksLost, reason) }

// Sequence counts a request for values, and how many it got.
func (k *Keeping) Sequence(result string, values int) {
	count(k.sequences, result)
	k.values.Add(float64(values))
}

// StoreCalled observes how long a call of the store took.
func (m *Metrics) StoreCalled(op string, d time.Duration) {
	m.providerCalls.WithLabelValues(op).Observe(d.Seconds())
}
