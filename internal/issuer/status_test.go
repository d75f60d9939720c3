package issuer

import (
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
)

// A status lists some leases and counts all, however many there are.
func TestLeasesAreSummedUp(t *testing.T) {
	const now = 1000
	for _, c := range []struct{ usable, ended int }{{0, 0}, {1, 0}, {0, 1}, {MaxListedLeases - 3, 3}, {MaxListedLeases, 3}, {75_000, 9}} {
		var held []lease.Lease
		for i := range c.usable + c.ended {
			l := lease.Lease{ID: int64(i), Created: 0, Expired: now + 1 + int64(i), BitID: 21, BitSeq: 1}
			if i >= c.usable {
				l.Expired = now
			}
			held = append(held, l)
		}
		var st ServiceStatus
		st.count(held, now)
		listed, end := min(len(held), MaxListedLeases), int64(0)
		if c.usable > 0 {
			end = held[c.usable-1].Expired
		}
		if st.LeasesHeld != len(held) || st.LeasesUsable != c.usable || st.Throughput != int64(2*c.usable) || st.LeasesEndMS != end ||
			len(st.Leases) != listed || st.LeasesUnlisted != len(held)-listed {
			t.Errorf("%+v: %d held, %d usable until %d, %d listed, %d unlisted, throughput %d",
				c, st.LeasesHeld, st.LeasesUsable, st.LeasesEndMS, len(st.Leases), st.LeasesUnlisted, st.Throughput)
		}
		for i, l := range st.Leases {
			if l.MachineID != int64(i) || l.Usable != (i < c.usable) {
				t.Errorf("%+v: number %d is %+v", c, i, l)
			}
		}
	}
}
