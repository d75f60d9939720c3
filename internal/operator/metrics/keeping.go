package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Keeping are a daemon's metrics of locks and sequences. All series exist from the
// start, so that a first failure is an increase.
type Keeping struct {
	LockWaiters  prometheus.Gauge // requests that wait for a lock
	LockWait     *Histogram       // from a request for a lock to its grant
	lockRequests map[string]map[string]prometheus.Counter
	locksLost    map[string]prometheus.Counter
	sequences    map[string]prometheus.Counter
	values       prometheus.Counter
}

// The results of requests: those of the lease server, and canceled for callers that
// did not wait for the end.
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

// Keeping registers the metrics of locks and sequences, once. held returns the number
// of locks that connections hold; it is called at each scrape.
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
	requests := counterVec("kazahana_lock_requests_total", "Requests for locks by operation and result.", "op", "result")
	for op, results := range lockResults {
		k.lockRequests[op] = counters(requests.MustCurryWith(prometheus.Labels{"op": op}), results)
	}
	lost := counterVec("kazahana_locks_lost_total", "Locks that connections held and lost.", "reason")
	k.locksLost = counters(lost, lockLosses)
	sequences := counterVec("kazahana_sequence_requests_total", "Requests for values of sequences by result.", "result")
	k.sequences = counters(sequences, sequenceResults)
	heldNow := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kazahana_locks_held", Help: "Locks that connections hold.",
	}, func() float64 { return float64(held()) })
	m.Registry.MustRegister(k.LockWaiters, k.LockWait, k.values, requests, lost, sequences, heldNow)
	return k
}

// counters returns the counter of each result.
func counters(vec *prometheus.CounterVec, results []string) map[string]prometheus.Counter {
	all := make(map[string]prometheus.Counter, len(results))
	for _, result := range results {
		all[result] = vec.WithLabelValues(result)
	}
	return all
}

// count adds one for the result. A result without a series counts as "refused".
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

// Sequence counts a request for values, and the values that it got.
func (k *Keeping) Sequence(result string, values int) {
	count(k.sequences, result)
	k.values.Add(float64(values))
}

// StoreCalled observes how long a call of the store took.
func (m *Metrics) StoreCalled(op string, d time.Duration) {
	m.providerCalls.WithLabelValues(op).Observe(d.Seconds())
}
