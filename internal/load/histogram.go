package load

import (
	"math"
	"math/bits"
)

// A histogram of nanoseconds has buckets with a width of at most 1/128 of their values:
// 128 buckets for each power of two, and exact ones below 256. Its size is fixed, so
// that the cost of recording does not depend on the value.
const (
	bucketBits = 7  // 2^bucketBits buckets for each power of two
	topBits    = 36 // values of more bits, beyond a minute, count as the greatest
	maxLatency = 1<<topBits - 1
	topShift   = topBits - 1 - bucketBits
	buckets    = (topShift + 2) << bucketBits
)

type histogram struct {
	counts [buckets]uint64
	total  uint64
}

func (h *histogram) add(nanoseconds int64) {
	h.counts[bucketOf(nanoseconds)]++
	h.total++
}

// quantile is the q-quantile, as the middle of its bucket; 0 without values.
func (h *histogram) quantile(q float64) int64 {
	if h.total == 0 {
		return 0
	}
	rank := min(max(uint64(math.Ceil(q*float64(h.total))), 1), h.total)
	for i, n := range h.counts {
		if n >= rank {
			return middleOf(i)
		}
		rank -= n
	}
	panic("bench: the histogram's total is not the sum of its counts")
}

func bucketOf(v int64) int {
	v = min(max(v, 0), maxLatency)
	shift := max(bits.Len64(uint64(v))-1-bucketBits, 0)
	return shift<<bucketBits + int(v>>shift)
}

func middleOf(bucket int) int64 {
	shift := max(bucket>>bucketBits-1, 0)
	low := int64(bucket-shift<<bucketBits) << shift
	return low + (int64(1)<<shift-1)/2
}
