package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// scraped is a collector that asks for its numbers at each scrape.
type scraped struct {
	descs []*prometheus.Desc
	read  func(emit emitter)
}

// emitter takes one number of a scrape.
type emitter func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string)

// onScrape registers what read emits, with descs made by desc.
func onScrape(r *prometheus.Registry, read func(emit emitter), descs ...*prometheus.Desc) {
	r.MustRegister(&scraped{descs, read})
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (s *scraped) Describe(to chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *scraped) Collect(to chan<- prometheus.Metric) {
	s.read(func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	})
}

// process is the common part of every process's metrics.
type process struct{ Registry *prometheus.Registry }

func newProcess(b Build) process {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kazahana_build_info", Help: "1, with what was built as labels.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "go_version": b.GoVersion},
	})
	info.Set(1)
	p := process{prometheus.NewRegistry()}
	p.Registry.MustRegister(info,
		collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled()),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return p
}

// WatchLog registers the number of lines that the log has dropped.
func (p process) WatchLog(dropped func() uint64) {
	p.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "kazahana_log_dropped_total", Help: "Log lines that stderr did not take.",
	}, func() float64 { return float64(dropped()) }))
}

// Configuration registers whether the configuration that was read last is in force; refused is
// called at each scrape.
func (p process) Configuration(refused func() bool) {
	p.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kazahana_config_last_reload_successful", Help: "0 if the configuration that was read last was refused.",
	}, func() float64 { return oneIf(!refused()) }))
}

// Fences registers the fences of the files in use; ask is called at each scrape.
func (p process) Fences(ask func() []Fence) {
	until := desc("kazahana_store_fenced_until_timestamp_seconds",
		"When grants from a file that may have forgotten some begin again; 0 if they are not held back.", "file")
	onScrape(p.Registry, func(emit emitter) {
		for _, one := range ask() {
			emit(until, prometheus.GaugeValue, float64(one.UntilMS)/1000, one.File)
		}
	}, until)
}

// Certificates registers when the certificates of the files end, and how long they are valid from
// their beginning. read tells of the first certificate of a file that ends, or zero times if it cannot
// be read. It is called at each scrape, since certificates are renewed while the process runs.
func (p process) Certificates(files []string, read func(file string) (begin, end time.Time)) {
	ends := desc("kazahana_certificate_expiry_timestamp_seconds", "When the first certificate of a file ends; 0 if it cannot be read.", "file")
	lifetimes := desc("kazahana_certificate_lifetime_seconds", "How long that certificate is valid in all; 0 if it cannot be read.", "file")
	onScrape(p.Registry, func(emit emitter) {
		for _, file := range files {
			begin, end := read(file)
			seconds := 0.0
			if !end.IsZero() {
				seconds = float64(end.Unix())
			}
			emit(ends, prometheus.GaugeValue, seconds, file)
			emit(lifetimes, prometheus.GaugeValue, end.Sub(begin).Seconds(), file)
		}
	}, ends, lifetimes)
}

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

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
