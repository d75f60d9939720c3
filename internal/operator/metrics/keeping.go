package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// KeyedStores are a daemon's metrics of locks and sequences. The series that alerts read
// exist from the start, so that a first failure is an increase; the others begin with
// the first request, since most hosts use neither.
type KeyedStores struct {
	LockWaiters  prometheus.Gauge // requests that wait for a lock
	LockWait     *Histogram       // from a request for a lock to its grant
	lockRequests *prometheus.CounterVec
	locksLost    *prometheus.CounterVec
	sequences    *prometheus.CounterVec
	storeErrors  prometheus.Counter
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
	lockLosses      = []string{"expired", "taken_over", "refused"}
	lockReleased    = "released" // by another connection of the user, which no alert reads
	sequenceResults = slices.Concat(serverSequenceResults, canceled)
)

// KeyedStores registers the metrics of locks and sequences, once. held returns the number
// of locks that connections hold; it is called at each scrape.
func (m *Metrics) KeyedStores(held func() int) *KeyedStores {
	k := &KeyedStores{
		LockWaiters: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kazahana_lock_waiters", Help: "Requests that wait for a lock."}),
		LockWait: newHistogram("kazahana_lock_wait_seconds", "Time from a request for a lock to its grant.",
			0, 0, 0), // its sum and count will do
		lockRequests: counterVec("kazahana_lock_requests_total", "Requests for locks by operation and result.", "op", "result"),
		sequences:    counterVec("kazahana_sequence_requests_total", "Requests for values of sequences by result.", "result"),
		storeErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kazahana_store_errors_total", Help: "Requests for locks and sequences that the store did not carry out.",
		}),
		values: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kazahana_sequence_values_total", Help: "Values of sequences handed out.",
		}),
	}
	k.lockRequests.WithLabelValues("acquire", "ok")
	lost := counterVec("kazahana_locks_lost_total", "Locks that connections held and lost.", "reason")
	k.locksLost = lost
	for _, reason := range lockLosses {
		lost.WithLabelValues(reason)
	}
	for _, result := range []string{"ok", "exhausted"} {
		k.sequences.WithLabelValues(result)
	}
	heldNow := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kazahana_locks_held", Help: "Locks that connections hold.",
	}, func() float64 { return float64(held()) })
	m.Registry.MustRegister(k.LockWaiters, k.LockWait, k.values, k.lockRequests, lost, k.sequences, k.storeErrors, heldNow)
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

// known returns the result, or "refused" for one that is not in the list.
func known(results []string, result string) string {
	if slices.Contains(results, result) {
		return result
	}
	return "refused"
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
	k.lockRequests.WithLabelValues(op, known(lockResults[op], result)).Inc()
}

// Lost counts a lock that a connection held and lost.
func (k *KeyedStores) Lost(reason string) {
	if reason != lockReleased {
		reason = known(lockLosses, reason)
	}
	k.locksLost.WithLabelValues(reason).Inc()
}

// Sequence counts a request for values, and the values that it got.
func (k *KeyedStores) Sequence(result string, values int) {
	k.failed(result)
	k.sequences.WithLabelValues(known(sequenceResults, result)).Inc()
	k.values.Add(float64(values))
}

// StoreCalled observes how long a call of the store took.
func (m *Metrics) StoreCalled(op string, d time.Duration) {
	m.providerCalls.WithLabelValues(op).Observe(d.Seconds())
}
