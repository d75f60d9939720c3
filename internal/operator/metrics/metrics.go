// Package metrics defines the metrics of the daemon and the lease server and
// registers them with Prometheus. Nothing here blocks: counts are atomic, and
// numbers that services keep themselves are read at each scrape.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kazahana/kazahana/internal/wire"
)

// Metrics of one daemon.
type Metrics struct {
	process

	Connections   prometheus.Gauge
	StateErrors   prometheus.Counter
	ClockForward  prometheus.Counter // jumps ahead that were not believed
	ClockAccepted prometheus.Counter // jumps ahead that lasted and were believed then
	RPCDuration   *Histogram
	rpcRequests   *prometheus.CounterVec
	acquires      *prometheus.CounterVec
	lost          *prometheus.CounterVec
	mismatches    *prometheus.CounterVec
	skew          *prometheus.GaugeVec
	providerCalls *prometheus.HistogramVec
	refusals      *prometheus.CounterVec
}

// Build identifies the binary.
type Build struct{ Version, Commit, GoVersion string }

// New registers all metrics that do not depend on a service.
func New(b Build) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		process:       newProcess(b),
		Connections:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "kazahana_connections", Help: "Open client connections."}),
		StateErrors:   counter("kazahana_state_errors_total", "Failed writes of the durable local state."),
		refusals:      refusalsOf("kazahana_refusals_total", limits),
		ClockForward:  counter("kazahana_clock_forward_events_total", "Jumps of the wall clock ahead that were not believed."),
		ClockAccepted: counter("kazahana_clock_forward_accepted_total", "Jumps of the wall clock ahead that lasted for forward_hold and were accepted."),
		RPCDuration: newHistogram("kazahana_rpc_duration_seconds", "Time from a request read to its answer ready to be written.",
			100*time.Microsecond, 16, 4), // to 0.4 s
		rpcRequests: counterVec("kazahana_rpc_requests_total", "Requests answered on the socket, by method and error code (ok for none).", "method", "code"),
		acquires:    counterVec("kazahana_lease_acquires_total", "Acquires by result.", "service", "result"),
		lost:        counterVec("kazahana_leases_lost_total", "Leases lost before their end.", "service", "reason"),
		mismatches:  counterVec("kazahana_epoch_mismatches_total", "Leases refused for another epoch or bit_ts.", "service"),
		skew: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kazahana_clock_skew_seconds", Help: "Provider's clock minus this host's, at the last grant.",
		}, []string{"service"}),
		providerCalls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kazahana_provider_request_duration_seconds", Help: "Duration of provider calls.",
			Buckets: []float64{slowCall},
		}, []string{"op"}),
	}
	m.IDRequests("NextID")
	m.IDRequests("NextIDs")
	m.Registry.MustRegister(m.Connections, m.StateErrors, m.ClockForward, m.ClockAccepted, m.RPCDuration, m.rpcRequests,
		m.acquires, m.lost, m.mismatches, m.skew, m.providerCalls, m.refusals)
	return m
}

// Refused counts a request or a connection that was refused because a limit is reached.
func (m *Metrics) Refused(limit string) { refuse(m.refusals, limits, limit) }

// Requests returns the counter of one method and code. Hot paths keep it.
func (m *Metrics) Requests(method, code string) prometheus.Counter {
	return m.rpcRequests.WithLabelValues(method, code)
}

// idFailures are the codes of requests for IDs that failed without a mistake of the
// client. The objective of availability counts them.
var idFailures = []wire.Code{wire.CodeClockBackward, wire.CodeLeaseAcquisition, wire.CodeTimeout, wire.CodeTimestampOverflow}

// IDRequests returns the counter of a method that hands out IDs. It creates the series
// of all failures at zero, so that a first failure is an increase. The series of other
// methods and codes begin with their first request, since most hosts use few of them.
func (m *Metrics) IDRequests(method string) prometheus.Counter {
	for _, code := range idFailures {
		m.Requests(method, string(code))
	}
	return m.Requests(method, "ok")
}

// slowCall is the limit of the alert KazahanaProviderSlow. It is the only bound here,
// since each operation has a series for each bound on each host; a lease server has more.
const slowCall = 0.4096

// Service are the metrics of one service's keeper.
type Service struct {
	m    *Metrics
	name string
}

// Service returns the counters of the service, with all results at zero, so
// that a first failure shows as an increase.
func (m *Metrics) Service(name string) Service {
	for _, result := range []string{"ok", "refused", "unavailable", "timeout", "fenced", "mismatch"} {
		m.acquires.WithLabelValues(name, result)
	}
	m.lost.WithLabelValues(name, "taken_over")
	m.mismatches.WithLabelValues(name)
	return Service{m, name}
}

// Acquired counts an acquire by its result.
func (s Service) Acquired(result string) { s.m.acquires.WithLabelValues(s.name, result).Inc() }

// Called observes how long a provider call took.
func (s Service) Called(op string, d time.Duration) {
	s.m.providerCalls.WithLabelValues(op).Observe(d.Seconds())
}

// Lost counts a lease that ended before its time.
func (s Service) Lost(reason string) { s.m.lost.WithLabelValues(s.name, reason).Inc() }

// Mismatch counts a lease refused for its epoch or bit_ts.
func (s Service) Mismatch() { s.m.mismatches.WithLabelValues(s.name).Inc() }

// StateFailed counts a failed write of the durable state.
func (s Service) StateFailed() { s.m.StateErrors.Inc() }

// Skew shows the provider's clock against the local one.
func (s Service) Skew(skew time.Duration) {
	s.m.skew.WithLabelValues(s.name).Set(skew.Seconds())
}
