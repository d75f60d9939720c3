package metrics

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// collected is what a scrape sees of a histogram.
func collected(t *testing.T, c prometheus.Collector) *dto.Histogram {
	t.Helper()
	to := make(chan prometheus.Metric, 1)
	c.Collect(to)
	var m dto.Metric
	if err := (<-to).Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram()
}

// After any observations, a scrape sees the same as in the client library's own histogram.
func TestHistogramIsLikeTheLibrarys(t *testing.T) {
	const first, factor, bounds = time.Microsecond, 4, 13
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		ours := newHistogram("a", "b", first, factor, bounds)
		theirs := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "a", Help: "b", Buckets: prometheus.ExponentialBuckets(first.Seconds(), factor, bounds),
		})
		for range rnd.IntN(50) {
			// Any order of magnitude, some a bound or beside one.
			d := time.Duration(rnd.Int64N(1 << rnd.IntN(40)))
			if rnd.IntN(3) == 0 {
				d = first<<(2*rnd.IntN(bounds)) + time.Duration(rnd.IntN(3)-1)
			}
			n := rnd.IntN(5)
			ours.Observe(d, n)
			for range n {
				theirs.Observe(d.Seconds())
			}
		}
		got, want := collected(t, ours), collected(t, theirs)
		if got.GetSampleCount() != want.GetSampleCount() || len(got.GetBucket()) != bounds || len(want.GetBucket()) != bounds {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
		if off := got.GetSampleSum() - want.GetSampleSum(); off > 1e-9 || off < -1e-9 {
			t.Errorf("seed %d: a sum of %v, want %v", seed, got.GetSampleSum(), want.GetSampleSum())
		}
		below := uint64(0)
		for i, b := range got.GetBucket() {
			w := want.GetBucket()[i]
			// The library multiplies floats: its bounds are off by the last digit.
			if off := b.GetUpperBound()/w.GetUpperBound() - 1; off > 1e-12 || off < -1e-12 {
				t.Errorf("seed %d: bound %d is %v, want %v", seed, i, b.GetUpperBound(), w.GetUpperBound())
			}
			if b.GetCumulativeCount() != w.GetCumulativeCount() || b.GetCumulativeCount() < below {
				t.Errorf("seed %d: %d below %v, want %d", seed, b.GetCumulativeCount(), b.GetUpperBound(), w.GetCumulativeCount())
			}
			below = b.GetCumulativeCount()
		}
	}
}

// A count during a scrape is in this scrape or in the next, and every scrape is whole.
func TestHistogramIsScrapedWhileItCounts(t *testing.T) {
	const observers, observations = 4, 5000
	h := newHistogram("a", "b", time.Microsecond, 4, 13)
	var all sync.WaitGroup
	for i := range observers {
		all.Go(func() {
			for j := range observations {
				h.Observe(time.Duration(1+i+j)*time.Microsecond, 2)
			}
		})
	}
	last := uint64(0)
	for range 500 {
		got := collected(t, h)
		buckets := got.GetBucket()
		if n := got.GetSampleCount(); n < last || buckets[len(buckets)-1].GetCumulativeCount() > n {
			t.Fatalf("%v after %d", got, last)
		}
		last = got.GetSampleCount()
	}
	all.Wait()
	if n := collected(t, h).GetSampleCount(); n != 2*observers*observations {
		t.Errorf("%d observations, want %d", n, 2*observers*observations)
	}
}
