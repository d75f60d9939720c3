package pool

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Key names the record of a slot.
type Key struct {
	Start  int64 // its first low-bit value
	BitSeq int
}

// KeyOf is the key of the lease's slot.
func KeyOf(l lease.Lease) Key { return Key{l.Slot().Start, l.BitSeq} }

// KeyAt is the key of a machine ID, and false where the pool cannot have it.
func KeyAt(timeline snowflake.Timeline, machineID int64, bitSeq int) (Key, bool) {
	if !(provider.Terms{Timeline: timeline}).HasSlot(machineID, bitSeq) {
		return Key{}, false
	}
	return Key{machineID << bitSeq, bitSeq}, true
}

// covering is the key of the slot of that bit_seq that covers the low bits.
func covering(low int64, bitSeq int) Key { return Key{low >> bitSeq << bitSeq, bitSeq} }

// ID is the machine ID.
func (k Key) ID() int64 { return k.Start >> k.BitSeq }

// Slot is the low bits that the record covers.
func (k Key) Slot() snowflake.Slot {
	return snowflake.Slot{Start: k.Start, End: k.Start + 1<<k.BitSeq}
}

// Coarser returns the keys of the slots of coarser bit_seqs that contain the slot.
func (k Key) Coarser(levels []int) []Key {
	var keys []Key
	for _, level := range levels {
		if level > k.BitSeq {
			keys = append(keys, covering(k.Start, level))
		}
	}
	return keys
}

// HasFiner reports whether slots inside this one can have records.
func (k Key) HasFiner(levels []int) bool {
	return slices.ContainsFunc(levels, func(level int) bool { return level < k.BitSeq })
}

// Compare orders keys by start, the coarse before the fine: a slot comes right
// after those that contain it.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Start, other.Start), cmp.Compare(other.BitSeq, k.BitSeq))
}

// Record is the latest grant of a slot.
type Record struct {
	Lease    lease.Lease // with its secret
	End      int64       // Unix ms; from then on the slot can be granted again
	Released bool
	Service  string
	Request  string // the request's ID; empty where it had none
	Meta     map[string]string
	// Number is how many grants of the slot came before. A store may put a number
	// of its own in its place.
	Number int64
}

// Key is the record's key.
func (r Record) Key() Key { return KeyOf(r.Lease) }

// Shown is the record as others may see it.
func (r Record) Shown() provider.Record {
	l := r.Lease
	l.Secret = ""
	return provider.Record{Lease: l, Service: r.Service, Meta: maps.Clone(r.Meta), End: r.End, Released: r.Released}
}

// granted is the record as the rules of leases see it, with its secret.
func (r Record) granted() provider.Record {
	return provider.Record{Lease: r.Lease, End: r.End, Released: r.Released}
}

// with is the record with its grant changed.
func (r Record) with(grant provider.Record) Record {
	r.Lease, r.End, r.Released = grant.Lease, grant.End, grant.Released
	return r
}

// Verify returns the positions of the claims whose lease is no longer the
// claimant's.
func Verify(r Reader, fenced bool, claims []provider.Claim) ([]int, error) {
	p, err := r.Pool()
	if err != nil {
		return nil, err
	}
	var keys []Key
	at := make([]int, len(claims)) // the position of each claim's key
	for i, c := range claims {
		at[i] = -1
		if key, ok := KeyAt(p.Timeline, c.ID, c.BitSeq); ok && p.Exists {
			at[i] = len(keys)
			keys = append(keys, key)
		}
	}
	records, err := r.Records(keys)
	if err != nil {
		return nil, err
	}
	var positions []int
	for i, c := range claims {
		var latest *provider.Record
		if at[i] >= 0 && records[at[i]] != nil {
			latest = new(records[at[i]].granted())
		}
		if c.Lost(latest, fenced) {
			positions = append(positions, i)
		}
	}
	return positions, nil
}

// Locate returns the grants that covered the low bits at that time, the latest
// first.
func Locate(r Reader, low, atMS int64) ([]provider.Record, error) {
	p, err := r.Pool()
	if err != nil || !p.Exists || low < 0 || low >= p.Timeline.FallbackBit() {
		return nil, err
	}
	var keys []Key
	for _, level := range p.Levels {
		keys = append(keys, covering(low, level))
	}
	grants, err := r.History(keys, atMS)
	if err != nil {
		return nil, err
	}
	var found []provider.Record
	for _, g := range grants {
		if g.granted().HeldAt(atMS) {
			found = append(found, g.Shown())
		}
	}
	slices.SortStableFunc(found, func(a, b provider.Record) int { return cmp.Compare(b.Lease.Created, a.Lease.Created) })
	return found, nil
}
