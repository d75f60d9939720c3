package provider

import "slices"

// Held reports whether the record's lease is valid now, by the given time in
// Unix ms.
func (r Record) Held(nowMS int64) bool {
	return !r.Released && r.Lease.Created <= nowMS && nowMS < r.Lease.Expired
}

// Usage is how many machine IDs of a pool are taken at one moment.
type Usage struct {
	Held  int64 // under leases that are valid
	Free  int64 // can be granted
	Total int64 // of the terms' layout and range; the slots neither held nor free are in quarantine

	// The shortest, median and longest time left of the leases held, in seconds;
	// 0 where there are none.
	TTLMin, TTLMid, TTLMax int64
}

// Quarantined is how many machine IDs are neither held nor free: their holders
// were lost, or gave them back as of a time that is still to come.
func (u Usage) Quarantined() int64 { return u.Total - u.Held - u.Free }

// Fullness is how full a pool is.
type Fullness string

// The levels, from good to bad. The alert KazahanaPoolNearlyFull has the same bounds.
const (
	Roomy      Fullness = "roomy"
	NearlyFull Fullness = "nearly_full" // less than LowShare is free
	AlmostFull Fullness = "almost_full" // less than LeastShare is free
	Full       Fullness = "full"        // nothing is free
)

// The shares of a pool that should be free.
const (
	LowShare   = 0.1
	LeastShare = 0.02
)

// WorseThan reports whether the level is worse than another.
func (f Fullness) WorseThan(other Fullness) bool {
	levels := []Fullness{Roomy, NearlyFull, AlmostFull, Full}
	return slices.Index(levels, f) > max(slices.Index(levels, other), 0)
}

// Fullness is how full the pool is. Total must be known.
func (u Usage) Fullness() Fullness {
	switch free := float64(u.Free) / float64(u.Total); {
	case u.Free == 0:
		return Full
	case free < LeastShare:
		return AlmostFull
	case free < LowShare:
		return NearlyFull
	}
	return Roomy
}

// UsageOf counts the records of a pool, which are in the order of List, in machine
// IDs of the terms' layout and range. Without terms, which a server keeps to
// itself, it counts records, and none is free.
func UsageOf(records []Record, terms *Terms, nowMS int64) Usage {
	held := func(r Record) bool { return r.Held(nowMS) }
	taken := func(r Record) bool { return held(r) || nowMS < r.End }
	var u Usage
	if terms != nil {
		u = Usage{Total: terms.Range().Count(), Held: covered(records, *terms, held)}
		u.Free = u.Total - covered(records, *terms, taken)
	}
	var left []int64
	for _, r := range records {
		if terms == nil && taken(r) {
			u.Total++
		}
		if held(r) {
			left = append(left, (r.Lease.Expired-nowMS)/1000)
		}
	}
	if terms == nil {
		u.Held = int64(len(left))
	}
	if n := len(left); n > 0 {
		slices.Sort(left)
		u.TTLMin, u.TTLMid, u.TTLMax = left[0], left[n/2], left[n-1]
	}
	return u
}

// covered is how many machine IDs of the terms' layout and range have a slot that
// a wanted record's slot overlaps. In the order of List slots are nested or
// disjoint.
func covered(records []Record, terms Terms, wanted func(Record) bool) int64 {
	ids := terms.Range()
	count, next := int64(0), ids.Low // below next everything has been counted
	for _, r := range records {
		if !wanted(r) {
			continue
		}
		slot := r.Lease.Slot()
		low, end := max(slot.Start>>terms.BitSeq, next), min((slot.End-1)>>terms.BitSeq+1, ids.End)
		if low < end {
			count += end - low
			next = end
		}
	}
	return count
}
