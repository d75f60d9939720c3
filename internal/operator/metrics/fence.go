package metrics

import "github.com/prometheus/client_golang/prometheus"

// Fence is what is known of a file that may have forgotten something. It is part of what
// status --json prints and of what the lease server's page shows.
type Fence struct {
	File string `json:"file"` // a URL without secrets
	// UntilMS is when grants from the file begin again, in Unix ms; 0: they are not
	// held back.
	UntilMS int64  `json:"until_ms"`
	Reason  string `json:"reason"`
	// Sequences: those that were used before hand out nothing until an operator says
	// how they go on.
	Sequences bool `json:"sequences"`
}

// Fences registers what is known of the files in use, asked for at a scrape. One
// that is not held back is 0.
func (m *Metrics) Fences(ask func() []Fence) { m.Registry.MustRegister(newFences(ask)) }

// Fences registers what is known of the files in use, asked for at a scrape. One
// that is not held back is 0.
func (m *LeaseServer) Fences(ask func() []Fence) { m.Registry.MustRegister(newFences(ask)) }

type fences struct {
	ask   func() []Fence
	until *prometheus.Desc
}

func newFences(ask func() []Fence) *fences {
	return &fences{ask, prometheus.NewDesc("kazahana_store_fenced_until_timestamp_seconds",
		"When grants from a file that may have forgotten some begin again; 0 where they are not held back.", []string{"file"}, nil)}
}

// Describe implements prometheus.Collector.
func (f *fences) Describe(ch chan<- *prometheus.Desc) { ch <- f.until }

// Collect implements prometheus.Collector.
func (f *fences) Collect(ch chan<- prometheus.Metric) {
	for _, one := range f.ask() {
		ch <- prometheus.MustNewConstMetric(f.until, prometheus.GaugeValue, float64(one.UntilMS)/1000, one.File)
	}
}
