package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// storeRequests count the requests for locks and sequences of a daemon or a lease server. Their
// results are words of the packages lock and sequence.
type storeRequests struct {
	locks     *prometheus.CounterVec
	sequences *prometheus.CounterVec
	values    prometheus.Counter
}

// newStoreRequests registers them, with names that begin with the prefix.
func newStoreRequests(r *prometheus.Registry, prefix string) storeRequests {
	s := storeRequests{
		locks:     counterVec(prefix+"lock_requests_total", "Requests for locks by operation and result.", "op", "result"),
		sequences: counterVec(prefix+"sequence_requests_total", "Requests for values of sequences by result.", "result"),
		values:    prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "sequence_values_total", Help: "Values of sequences handed out."}),
	}
	r.MustRegister(s.locks, s.sequences, s.values)
	return s
}

// Lock counts a request for a lock.
func (s storeRequests) Lock(op, result string) { s.locks.WithLabelValues(op, result).Inc() }

// Sequence counts a request for values, and the values that it got.
func (s storeRequests) Sequence(result string, values int) {
	s.sequences.WithLabelValues(result).Inc()
	s.values.Add(float64(values))
}

// KeyedStores are a daemon's metrics of locks and sequences. The series that alerts read
// exist from the start, so that a first failure is an increase; the others begin with
// the first request, since most hosts use neither.
type KeyedStores struct {
	storeRequests

	LockWaiters prometheus.Gauge // requests that wait for a lock
	LockWait    *Histogram       // from a request for a lock to its grant
	locksLost   *prometheus.CounterVec
	storeErrors prometheus.Counter
}

// KeyedStores registers the metrics of locks and sequences, once. held returns the number
// of locks that connections hold; it is called at each scrape.
func (m *Metrics) KeyedStores(held func() int) *KeyedStores {
	k := &KeyedStores{
		storeRequests: newStoreRequests(m.Registry, "kazahana_"),
		LockWaiters:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "kazahana_lock_waiters", Help: "Requests that wait for a lock."}),
		LockWait: newHistogram("kazahana_lock_wait_seconds", "Time from a request for a lock to its grant.",
			0, 0, 0), // its sum and count will do
		locksLost: counterVec("kazahana_locks_lost_total", "Locks that connections held and lost.", "reason"),
		storeErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kazahana_store_errors_total", Help: "Requests for locks and sequences that the store did not carry out.",
		}),
	}
	k.locks.WithLabelValues("acquire", "ok")
	for _, reason := range []string{"expired", "taken_over", "refused"} {
		k.locksLost.WithLabelValues(reason)
	}
	for _, result := range []string{"ok", "exhausted"} {
		k.sequences.WithLabelValues(result)
	}
	heldNow := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kazahana_locks_held", Help: "Locks that connections hold.",
	}, func() float64 { return float64(held()) })
	m.Registry.MustRegister(k.LockWaiters, k.LockWait, k.locksLost, k.storeErrors, heldNow)
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

// failed counts the results that are the store's fault.
func (k *KeyedStores) failed(result string) {
	switch result {
	case "unavailable", "timeout", "fenced":
		k.storeErrors.Inc()
	}
}

// Lock counts a request for a lock.
func (k *KeyedStores) Lock(op, result string) {
	k.failed(result)
	k.storeRequests.Lock(op, result)
}

// Lost counts a lock that a connection held and lost.
func (k *KeyedStores) Lost(reason string) { k.locksLost.WithLabelValues(reason).Inc() }

// Sequence counts a request for values, and the values that it got.
func (k *KeyedStores) Sequence(result string, values int) {
	k.failed(result)
	k.storeRequests.Sequence(result, values)
}

// StoreCalled observes how long a call of the store took.
func (m *Metrics) StoreCalled(op string, d time.Duration) {
	m.providerCalls.WithLabelValues(op).Observe(d.Seconds())
}
