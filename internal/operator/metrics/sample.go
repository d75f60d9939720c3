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

// Watch registers the metrics that services keep themselves; ask is called at each
// scrape.
func (m *Metrics) Watch(ask func() []Sample) {
	issued := desc("kazahana_ids_issued_total", "IDs issued.", "service", "kind")
	active := desc("kazahana_leases_active", "Leases usable now.", "service")
	expiry := desc("kazahana_lease_expiry_timestamp_seconds", "When the last usable lease ends; 0 without one.", "service")
	fallback := desc("kazahana_fallback_active", "1 while no lease is usable.", "service")
	exhaustions := desc("kazahana_sequence_exhaustions_total", "Milliseconds whose sequence numbers were used up.", "service")
	backward := desc("kazahana_clock_backward_events_total", "Times that the clock was found behind the last ID.", "service")
	overflow := desc("kazahana_layout_exhaustion_timestamp_seconds", "When the layout's time runs out.", "service")
	onScrape(m.Registry, func(emit emitter) {
		for _, v := range ask() {
			counter := func(d *prometheus.Desc, n uint64, labels ...string) {
				emit(d, prometheus.CounterValue, float64(n), append([]string{v.Service}, labels...)...)
			}
			gauge := func(d *prometheus.Desc, x float64) { emit(d, prometheus.GaugeValue, x, v.Service) }
			counter(issued, v.Regular, "regular")
			counter(issued, v.FallbackCached, "fallback_cached")
			counter(issued, v.FallbackUncertain, "fallback_cached_uncertain")
			counter(issued, v.FallbackRandom, "fallback_random")
			counter(exhaustions, v.Exhaustions)
			counter(backward, v.BackwardEvents)
			gauge(active, float64(v.ActiveLeases))
			gauge(expiry, float64(v.LeaseExpiryMS)/1000)
			gauge(overflow, float64(v.LayoutExhaustedMS)/1000)
			gauge(fallback, oneIf(v.Fallback))
		}
	}, issued, active, expiry, fallback, exhaustions, backward, overflow)
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
