package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// other is what limits without a key share. Prometheus stores each series for each host of a
// fleet; the log, health and the status page say which limit it is.
const other = "other"

// The limits, by configuration key, with series from the start, so that a first refusal is an
// increase.
var (
	limits = []string{
		"max_connections", "max_connections_per_user", "max_disk", "max_in_flight", "max_keys", "max_waiting", "memory_limit", other,
	}
	serverLimits = []string{
		"max_connections", "max_connections_per_address", "max_disk", "max_in_flight", "max_keys", "memory_limit", "rate_limit", other,
	}
)

// Memory is what clients hold of the daemon's memory, beside their connections and
// waiting requests.
type Memory struct {
	Reserved   int64  `json:"reserved"`   // bytes, for unfinished messages and unread answers
	Reservable int64  `json:"reservable"` // bytes, at most
	Ended      uint64 `json:"ended"`      // connections that were ended for want of room, since the start
}

// WatchMemory registers what clients hold; ask is called at each scrape.
func (m *Metrics) WatchMemory(ask func() Memory) {
	watchMemory(m.process, "kazahana_memory", "unfinished messages and unread answers", ask)
	ended := desc("kazahana_memory_evictions_total", "Connections ended because what they held was needed.")
	onScrape(m.Registry, func(emit emitter) { emit(ended, prometheus.CounterValue, float64(ask().Ended)) }, ended)
}

// WatchMemory registers the memory of the bodies of requests; ask is called at each scrape.
func (m *LeaseServer) WatchMemory(ask func() Memory) {
	watchMemory(m.process, "kazahana_server_memory", "bodies that are being read", ask)
}

func watchMemory(p process, prefix, of string, ask func() Memory) {
	reserved := desc(prefix+"_reserved_bytes", "Memory of "+of+".")
	reservable := desc(prefix+"_reservable_bytes", "What these may take at most.")
	onScrape(p.Registry, func(emit emitter) {
		now := ask()
		emit(reserved, prometheus.GaugeValue, float64(now.Reserved))
		emit(reservable, prometheus.GaugeValue, float64(now.Reservable))
	}, reserved, reservable)
}

func refusalsOf(name string, known []string) *prometheus.CounterVec {
	vec := counterVec(name, "Requests and connections refused because a limit is reached, by its configuration key; other for limits without one.", "limit")
	for _, limit := range known {
		vec.WithLabelValues(limit)
	}
	return vec
}

// refuse counts a refusal.
func refuse(vec *prometheus.CounterVec, known []string, limit string) {
	if !slices.Contains(known, limit) {
		limit = other
	}
	vec.WithLabelValues(limit).Inc()
}
