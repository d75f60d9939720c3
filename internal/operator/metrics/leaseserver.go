package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// LeaseServer are the metrics of one lease server.
type LeaseServer struct {
	process
	storeRequests

	InFlight      prometheus.Gauge
	LockWaiters   prometheus.Gauge
	acquires      *prometheus.CounterVec
	releases      *prometheus.CounterVec
	requests      *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	providerCalls *prometheus.HistogramVec
	placements    *prometheus.CounterVec
	refusals      *prometheus.CounterVec
}

// The results with series from the start.
var (
	serverAcquireResults = []string{"ok", "full", "fenced", "busy", "conflict", "refused", "unavailable", "timeout"}
	serverReleaseResults = []string{"ok", "refused", "unavailable", "timeout"}
	serverLockResults    = map[string][]string{
		"acquire": {"ok", "held", "reused", "fenced", "refused", "unavailable", "timeout"},
		"renew":   {"ok", "not_owned", "expired", "reused", "refused", "unavailable", "timeout"},
		"release": {"ok", "not_owned", "expired", "reused", "refused", "unavailable", "timeout"},
	}
	serverSequenceResults  = []string{"ok", "exhausted", "reused", "fenced", "refused", "unavailable", "timeout"}
	serverPlacementResults = map[string][]string{
		"load":   {"ok", "refused", "unavailable", "timeout"},
		"store":  {"ok", "stale", "refused", "unavailable", "timeout"},
		"remove": {"ok", "refused", "unavailable", "timeout"},
	}
)

// NewLeaseServer registers everything that does not need the provider.
func NewLeaseServer(b Build) *LeaseServer {
	seconds := prometheus.ExponentialBuckets(1e-4, 4, 10) // 0.1 ms to 26 s, slowCall among them
	m := &LeaseServer{
		process:  newProcess(b),
		InFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kazahana_server_requests_in_flight", Help: "Requests under way."}),
		acquires: counterVec("kazahana_server_acquires_total", "Acquires by service (other: not configured) and result.", "service", "result"),
		releases: counterVec("kazahana_server_releases_total", "Releases by service (other: not configured) and result.", "service", "result"),
		requests: counterVec("kazahana_server_requests_total", "HTTP requests by route and status.", "route", "status"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kazahana_server_request_duration_seconds", Help: "Time from a request's head to its answer.", Buckets: seconds,
		}, []string{"route"}),
		providerCalls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kazahana_provider_request_duration_seconds", Help: "Duration of provider calls.", Buckets: seconds,
		}, []string{"op"}),
	}
	m.duration.WithLabelValues("/lease")
	for _, status := range []string{"401", "403"} { // of which an alert tells
		m.requests.WithLabelValues("/lease", status)
	}
	m.refusals = refusalsOf("kazahana_server_refusals_total", serverLimits)
	m.LockWaiters = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kazahana_server_lock_waiters", Help: "Requests that wait for a lock."})
	m.storeRequests = newStoreRequests(m.Registry, "kazahana_server_")
	m.placements = counterVec("kazahana_server_placement_requests_total", "Requests for activation records by operation and result.", "op", "result")
	m.Registry.MustRegister(m.InFlight, m.acquires, m.releases, m.requests, m.duration, m.providerCalls,
		m.LockWaiters, m.placements, m.refusals)
	return m
}

// Refused counts a request or a connection that was refused because a limit is reached.
func (m *LeaseServer) Refused(limit string) { refuse(m.refusals, serverLimits, limit) }

// Service creates the series of all results at zero, so that a first failure is an
// increase.
func (m *LeaseServer) Service(name string) {
	for _, result := range serverAcquireResults {
		m.acquires.WithLabelValues(name, result)
	}
	for _, result := range serverReleaseResults {
		m.releases.WithLabelValues(name, result)
	}
}

// Acquired counts an acquire.
func (m *LeaseServer) Acquired(service, result string) {
	m.acquires.WithLabelValues(service, result).Inc()
}

// Released counts a release.
func (m *LeaseServer) Released(service, result string) {
	m.releases.WithLabelValues(service, result).Inc()
}

// KeyedStores creates the series of all results of locks, sequences and activation
// records at zero.
func (m *LeaseServer) KeyedStores() {
	for vec, byOp := range map[*prometheus.CounterVec]map[string][]string{m.locks: serverLockResults, m.placements: serverPlacementResults} {
		for op, results := range byOp {
			for _, result := range results {
				vec.WithLabelValues(op, result)
			}
		}
	}
	for _, result := range serverSequenceResults {
		m.sequences.WithLabelValues(result)
	}
}

// Placement counts a request for an activation record.
func (m *LeaseServer) Placement(op, result string) { m.placements.WithLabelValues(op, result).Inc() }

// Answered counts an HTTP request.
func (m *LeaseServer) Answered(route, status string, d time.Duration) {
	m.requests.WithLabelValues(route, status).Inc()
	m.duration.WithLabelValues(route).Observe(d.Seconds())
}

// Called observes how long a provider call took.
func (m *LeaseServer) Called(op string, d time.Duration) {
	m.providerCalls.WithLabelValues(op).Observe(d.Seconds())
}

// PoolSample is a provider's state at one moment: active leases by service, and the
// slots that each pool has and can grant.
type PoolSample struct {
	Active map[string]int64
	Slots  map[string]int64
	Free   map[string]int64
}

// Watch registers the metrics of the pools; ask is called at each scrape. A pool
// that cannot be read is left out.
func (m *LeaseServer) Watch(ask func() PoolSample) {
	active := desc("kazahana_server_leases_active", "Leases valid now, by service (other: not configured).", "service")
	slots := desc("kazahana_server_slots", "Machine IDs of the layout and range, by pool.", "pool")
	free := desc("kazahana_server_slots_free", "Machine IDs that can be granted now, by pool.", "pool")
	onScrape(m.Registry, func(emit emitter) {
		sample := ask()
		for d, numbers := range map[*prometheus.Desc]map[string]int64{active: sample.Active, slots: sample.Slots, free: sample.Free} {
			for label, n := range numbers {
				emit(d, prometheus.GaugeValue, float64(n), label)
			}
		}
	}, active, slots, free)
}
