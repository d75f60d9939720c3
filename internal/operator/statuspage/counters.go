package statuspage

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// ownMetrics is the prefix of the project's metrics.
const ownMetrics = "kazahana_"

// Sample is the value of a metric with its labels.
type Sample struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

// Counters returns the project's own metrics by name, as a scrape would show them
// now: counters, gauges, and the count (NAME_count) and sum (NAME_sum) of
// histograms.
func Counters(g prometheus.Gatherer) (map[string][]Sample, error) {
	families, err := g.Gather()
	if err != nil {
		return nil, err
	}
	out := map[string][]Sample{}
	for _, family := range families {
		name := family.GetName()
		if !strings.HasPrefix(name, ownMetrics) {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			add := func(name string, value float64) { out[name] = append(out[name], Sample{labels, value}) }
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				add(name, m.GetCounter().GetValue())
			case dto.MetricType_GAUGE:
				add(name, m.GetGauge().GetValue())
			case dto.MetricType_HISTOGRAM:
				add(name+"_count", float64(m.GetHistogram().GetSampleCount()))
				add(name+"_sum", m.GetHistogram().GetSampleSum())
			}
		}
	}
	return out, nil
}
