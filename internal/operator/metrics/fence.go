package metrics

import "github.com/prometheus/client_golang/prometheus"

// Fence describes a file that may have forgotten grants, for status --json and the
// lease server's page.
type Fence struct {
	File string `json:"file"` // a URL without secrets
	// UntilMS is when grants from the file begin again, in Unix ms; 0 if they are not
	// held back.
	UntilMS int64  `json:"until_ms"`
	Reason  string `json:"reason"`
	// Sequences says that existing sequences hand out nothing until an operator
	// declares how they go on.
	Sequences bool `json:"sequences"`
}

// Fences registers the fences of the files in use; ask is called at each scrape.
func (m *Metrics) Fences(ask func() []Fence) { m.Registry.MustRegister(newFences(ask)) }

// Fences registers the fences of the files in use; ask is called at each scrape.
func (m *LeaseServer) Fences(ask func() []Fence) { m.Registry.MustRegister(newFences(ask)) }

type fences struct {
	ask   func() []Fence
	until *prometheus.Desc
}

func newFences(ask func() []Fence) *fences {
	return &fences{ask, prometheus.NewDesc("kazahana_store_fenced_until_timestamp_seconds",
		"When grants from a file that may have forgotten some begin again; 0 if they are not held back.", []string{"file"}, nil)}
}

// Describe implements prometheus.Collector.
func (f *fences) Describe(ch chan<- *prometheus.Desc) { ch <- f.until }

// Collect implements prometheus.Collector.
func (f *fences) Collect(ch chan<- prometheus.Metric) {
	for _, one := range f.ask() {
		ch <- prometheus.MustNewConstMetric(f.until, prometheus.GaugeValue, float64(one.UntilMS)/1000, one.File)
	}
}
