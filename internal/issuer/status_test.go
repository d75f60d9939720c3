package issuer

import (
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
)

// A status lists some leases and counts all, however many there are.
func TestLeasesAreSummedUp(t *testing.T) {
	const now = 1000
	held := func(ended, usable int) (all []lease.Lease) {
		for i := range ended + usable {
			l := lease.Lease{ID: int64(i), Created: 0, Expired: now, BitID: 21, BitSeq: 1}
			if i >= ended {
				l.Expired = now + 1 + int64(i)
			}
			all = append(all, l)
		}
		return all
	}
	for _, c := range []struct{ ended, usable, listed, firstListed int }{
		{0, 0, 0, 0},
		{0, 1, 1, 0},
		{1, 0, 1, 0},
		{3, MaxListedLeases - 3, MaxListedLeases, 0},
		{3, MaxListedLeases - 1, MaxListedLeases, 0}, // an ended one, then the usable ones
		{3, MaxListedLeases, MaxListedLeases, 3},
		{MaxListedLeases + 9, 2, MaxListedLeases, 0},
		{9, 75_000, MaxListedLeases, 9},
	} {
		var st ServiceStatus
		all := held(c.ended, c.usable)
		st.count(all, now)
		if st.LeasesHeld != len(all) || st.LeasesUsable != c.usable || st.Throughput != int64(2*c.usable) ||
			len(st.Leases) != c.listed || st.LeasesUnlisted != len(all)-c.listed {
			t.Errorf("%+v: %d held, %d usable, %d listed, %d unlisted, throughput %d",
				c, st.LeasesHeld, st.LeasesUsable, len(st.Leases), st.LeasesUnlisted, st.Throughput)
		}
		end, usable := int64(0), 0
		if c.usable > 0 {
			end = all[len(all)-1].Expired
		}
		for i, l := range st.Leases {
			if i > 0 && l.MachineID <= st.Leases[i-1].MachineID {
				t.Errorf("%+v: machine ID %d comes after %d", c, l.MachineID, st.Leases[i-1].MachineID)
			}
			if l.Usable {
				usable++
			}
		}
		if c.listed > 0 && st.Leases[0].MachineID != int64(c.firstListed) || usable != min(c.usable, MaxListedLeases) || st.LeasesEndMS != end {
			t.Errorf("%+v: %d usable ones are listed, the last ends at %d: %+v", c, usable, st.LeasesEndMS, st.Leases)
		}
	}
}
