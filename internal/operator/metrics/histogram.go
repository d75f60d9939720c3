package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Histogram counts durations, many equal ones at once. The client library's own
// takes them one by one, which would double the cost of a pipelined request. It is
// safe for concurrent use.
type Histogram struct {
	desc   *prometheus.Desc
	bounds []time.Duration // ascending
	counts []atomic.Uint64 // one for each bound, and one for all above
	sum    atomic.Int64    // nanoseconds
}

// newHistogram returns a histogram with bounds that grow from first by the factor.
func newHistogram(name, help string, first time.Duration, factor, bounds int) *Histogram {
	h := &Histogram{desc: prometheus.NewDesc(name, help, nil, nil), counts: make([]atomic.Uint64, bounds+1)}
	for range bounds {
		h.bounds = append(h.bounds, first)
		first *= time.Duration(factor)
	}
	return h
}

// Observe counts n events that took d each.
func (h *Histogram) Observe(d time.Duration, n int) {
	i := 0
	for i < len(h.bounds) && d > h.bounds[i] {
		i++
	}
	h.counts[i].Add(uint64(n))
	h.sum.Add(int64(d) * int64(n))
}

// Count is how many there were.
func (h *Histogram) Count() (n uint64) {
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

// Describe implements prometheus.Collector.
func (h *Histogram) Describe(to chan<- *prometheus.Desc) { to <- h.desc }

// Collect implements prometheus.Collector.
func (h *Histogram) Collect(to chan<- prometheus.Metric) {
	var total uint64
	below := make(map[float64]uint64, len(h.bounds))
	for i, bound := range h.bounds {
		total += h.counts[i].Load()
		below[bound.Seconds()] = total
	}
	total += h.counts[len(h.bounds)].Load()
	to <- prometheus.MustNewConstHistogram(h.desc, total, time.Duration(h.sum.Load()).Seconds(), below)
}
