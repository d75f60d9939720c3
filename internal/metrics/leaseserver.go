package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// LeaseServer is the metrics of one lease server.
type LeaseServer struct {
	Registry *prometheus.Registry

	InFlight      prometheus.Gauge
	acquires      *prometheus.CounterVec
	releases      *prometheus.CounterVec
	requests      *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	providerCalls *prometheus.HistogramVec
}

// The results of an acquire and of a release that are shown from the start.
var (
	serverAcquireResults = []string{"ok", "full", "fenced", "busy", "conflict", "refused", "unavailable", "timeout"}
	serverReleaseResults = []string{"ok", "refused", "unavailable", "timeout"}
)

// NewLeaseServer registers everything that does not need the provider.
func NewLeaseServer(b Build) *LeaseServer {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	seconds := prometheus.ExponentialBuckets(1e-4, 4, 10) // 0.1 ms to 26 s
	m := &LeaseServer{
		Registry: prometheus.NewRegistry(),
		InFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kazahana_server_requests_in_flight", Help: "Requests under way."}),
		acquires: vec("kazahana_server_acquires_total", "Acquires by service (other: not configured) and result.", "service", "result"),
		releases: vec("kazahana_server_releases_total", "Releases by service (other: not configured) and result.", "service", "result"),
		requests: vec("kazahana_server_requests_total", "HTTP requests by route and status.", "route", "status"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kazahana_server_request_duration_seconds", Help: "Time from a request's head to its answer.", Buckets: seconds,
		}, []string{"route"}),
		providerCalls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kazahana_provider_request_duration_seconds", Help: "Duration of provider calls.", Buckets: seconds,
		}, []string{"op"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kazahana_build_info", Help: "1, with what was built as labels.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "go_version": b.GoVersion},
	})
	info.Set(1)
	m.Registry.MustRegister(m.InFlight, m.acquires, m.releases, m.requests, m.duration, m.providerCalls, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Service has all results of the service show as zero, so that a first failure
// is an increase.
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

// Answered counts an HTTP request.
func (m *LeaseServer) Answered(route, status string, d time.Duration) {
	m.requests.WithLabelValues(route, status).Inc()
	m.duration.WithLabelValues(route).Observe(d.Seconds())
}

// Called observes how long a provider call took.
func (m *LeaseServer) Called(op string, d time.Duration) {
	m.providerCalls.WithLabelValues(op).Observe(d.Seconds())
}

// PoolSample is what a provider knows at one moment: how many leases are active
// by service, and how many slots are free by pool.
type PoolSample struct {
	Active map[string]int64
	Free   map[string]int64
}

// Watch registers what is asked of the provider when somebody scrapes. A pool
// that cannot be looked at is left out.
func (m *LeaseServer) Watch(ask func() PoolSample) {
	m.Registry.MustRegister(&poolSampler{
		ask:    ask,
		active: prometheus.NewDesc("kazahana_server_leases_active", "Leases valid now, by service (other: not configured).", []string{"service"}, nil),
		free:   prometheus.NewDesc("kazahana_server_slots_free", "Machine IDs that can be granted now, by pool.", []string{"pool"}, nil),
	})
}

type poolSampler struct {
	ask          func() PoolSample
	active, free *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (s *poolSampler) Describe(ch chan<- *prometheus.Desc) {
	ch <- s.active
	ch <- s.free
}

// Collect implements prometheus.Collector.
func (s *poolSampler) Collect(ch chan<- prometheus.Metric) {
	sample := s.ask()
	for service, n := range sample.Active {
		ch <- prometheus.MustNewConstMetric(s.active, prometheus.GaugeValue, float64(n), service)
	}
	for pool, n := range sample.Free {
		ch <- prometheus.MustNewConstMetric(s.free, prometheus.GaugeValue, float64(n), pool)
	}
}
