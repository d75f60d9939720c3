package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestHistogramBuckets(t *testing.T) {
	last := -1
	for _, v := range []int64{0, 1, 2, 127, 128, 255, 256, 257, 258, 511, 512, 1000, 1 << 20, 1<<20 + 1<<13, 1 << 35, maxLatency} {
		bucket := bucketOf(v)
		if bucket < last || bucket >= buckets {
			t.Errorf("%d is in bucket %d of %d, after bucket %d", v, bucket, buckets, last)
		}
		last = bucket
		if off := math.Abs(float64(middleOf(bucket) - v)); off > float64(v)/256 {
			t.Errorf("%d counts as %d", v, middleOf(bucket))
		}
	}
	if last != buckets-1 {
		t.Errorf("the greatest value is in bucket %d, and there are %d", last, buckets)
	}
	for bucket := range buckets {
		if got := bucketOf(middleOf(bucket)); got != bucket {
			t.Errorf("the middle of bucket %d is in bucket %d", bucket, got)
		}
	}
}

func TestHistogramBounds(t *testing.T) {
	var h histogram
	if got := h.quantile(0.5); got != 0 {
		t.Errorf("the median of nothing is %d", got)
	}
	h.add(-5)
	h.add(math.MaxInt64)
	if low, high := h.quantile(0), h.quantile(1); low != 0 || high < maxLatency-maxLatency/128 {
		t.Errorf("from %d to %d", low, high)
	}
}

func TestHistogramQuantiles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var h histogram
	var values []int64
	for range 10_000 {
		v := int64(math.Exp(rnd.Float64() * 20))
		h.add(v)
		values = append(values, v)
	}
	slices.Sort(values)
	for _, q := range []float64{0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1} {
		want := values[int(math.Ceil(q*float64(len(values))))-1]
		if got := h.quantile(q); math.Abs(float64(got-want)) > float64(want)/128 {
			t.Errorf("quantile %v is %d, and the values say %d", q, got, want)
		}
	}
}
