package metrics

import "github.com/prometheus/client_golang/prometheus"

// The quotas, by configuration key, whose series exist from the start.
var (
	quotas = []string{
		"max_connections", "max_in_flight", "memory_limit",
		"quota_bytes", "quota_connections", "quota_disk", "quota_holds", "quota_keys", "quota_waiting",
	}
	serverQuotas = []string{
		"max_connections", "max_in_flight", "rate_limit",
		"quota_connections", "quota_disk", "quota_holds", "quota_keys", "quota_waiting",
	}
)

func quotaRefusals(name string, known []string) *prometheus.CounterVec {
	vec := counterVec(name, "Requests and connections refused because a quota is used up, by its configuration key.", "quota")
	for _, quota := range known {
		vec.WithLabelValues(quota)
	}
	return vec
}
