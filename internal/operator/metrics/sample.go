package metrics

import "github.com/prometheus/client_golang/prometheus"

// Sample is the state of a service at one moment.
type Sample struct {
	Service           string
	Regular           uint64 // IDs issued, by kind
	FallbackCached    uint64
	FallbackUncertain uint64 // cached, beyond the slot's reservation
	FallbackRandom    uint64
	Exhaustions       uint64
	BackwardEvents    uint64
	ActiveLeases      int
	LeaseExpiryMS     int64 // Unix ms at which the last active lease ends; 0 = none
	Fallback          bool
	LayoutExhaustedMS int64 // Unix ms at which the layout's time runs out
}

// sampler asks the services at each scrape.
type sampler struct {
	ask func() []Sample

	issued, active, expiry, fallback, exhaustions, backward, overflow *prometheus.Desc
}

// Watch registers the metrics that services keep themselves; ask is called at each
// scrape.
func (m *Metrics) Watch(ask func() []Sample) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"service"}, labels...), nil)
	}
	m.Registry.MustRegister(&sampler{
		ask:         ask,
		issued:      desc("kazahana_ids_issued_total", "IDs issued.", "kind"),
		active:      desc("kazahana_leases_active", "Leases usable now."),
		expiry:      desc("kazahana_lease_expiry_timestamp_seconds", "When the last usable lease ends; 0 without one."),
		fallback:    desc("kazahana_fallback_active", "1 while no lease is usable."),
		exhaustions: desc("kazahana_sequence_exhaustions_total", "Milliseconds whose sequence numbers were used up."),
		backward:    desc("kazahana_clock_backward_events_total", "Times that the clock was found behind the last ID."),
		overflow:    desc("kazahana_layout_exhaustion_timestamp_seconds", "When the layout's time runs out."),
	})
}

// Describe implements prometheus.Collector.
func (s *sampler) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.issued, s.active, s.expiry, s.fallback, s.exhaustions, s.backward, s.overflow} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *sampler) Collect(ch chan<- prometheus.Metric) {
	for _, v := range s.ask() {
		counter := func(d *prometheus.Desc, n uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{v.Service}, labels...)...)
		}
		gauge := func(d *prometheus.Desc, x float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, v.Service)
		}
		counter(s.issued, v.Regular, "regular")
		counter(s.issued, v.FallbackCached, "fallback_cached")
		counter(s.issued, v.FallbackUncertain, "fallback_cached_uncertain")
		counter(s.issued, v.FallbackRandom, "fallback_random")
		counter(s.exhaustions, v.Exhaustions)
		counter(s.backward, v.BackwardEvents)
		gauge(s.active, float64(v.ActiveLeases))
		gauge(s.expiry, float64(v.LeaseExpiryMS)/1000)
		gauge(s.overflow, float64(v.LayoutExhaustedMS)/1000)
		if v.Fallback {
			gauge(s.fallback, 1)
		} else {
			gauge(s.fallback, 0)
		}
	}
}
