package keeper

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/provider/static"
)

// wantReleased compares the machine IDs of the releases sent so far.
func (r *rig) wantReleased(want ...int64) {
	r.t.Helper()
	var got []int64
	for _, c := range r.remote.of(providertest.OpRelease) {
		got = append(got, c.back.ID)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.t.Errorf("at %v: machine IDs %v were released, want %v", r.elapsed(), got, want)
	}
}

// TestReplacedLeaseIsHandedBackAtOnce follows one lease through its whole life,
// under traffic: it ends with the acquire that replaces it, not a tenth of a
// term later, in which hosts that started together would need two slots each.
func TestReplacedLeaseIsHandedBackAtOnce(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		stop := r.traffic(2*travelTime + maxWait)
		replaced := renewal + 3*travelTime // granted on the way there, due, there and back
		r.until(replaced - 2*time.Millisecond)
		r.wantHeld(0)
		if got := r.machineID(r.stretch(0).last); got != 0 {
			t.Errorf("before the replacement, machine ID %d is used", got)
		}
		r.wantReleased()
		r.until(replaced + time.Second)
		stop()
		r.wantHeld(1) // seed 000-A.1-1
		if got := r.machineID(r.stretch(0).last); got != 1 {
			t.Errorf("after the replacement, machine ID %d is used", got)
		}
		r.wantKinds("regular")

		released := r.remote.of(providertest.OpRelease)
		if len(released) != 1 || !near(released[0].at, replaced) || released[0].err != nil { // seed 000-4.4-2
			t.Fatalf("releases: %+v", released)
		}
		back := released[0].back
		if back.ID != 0 || back.BitSeq != 8 || back.TimestampMS < startMS+replaced.Milliseconds() {
			t.Errorf("the release is %+v", back)
		}
		old := r.remote.records()[0]
		if !old.Released || old.End != back.TimestampMS+1 || r.remote.taken() != 1 {
			t.Errorf("the slot is not free: %+v", old)
		}
		if leases := r.store.leases(); len(leases) != 1 || leases[0].ID != 1 {
			t.Errorf("the store holds %v", leases)
		}
	})
}

// TestPartlyReplacedLeasesAreUsedToTheirEnd: where the pool has not enough for
// the whole throughput, a host has more than it would have left.
func TestPartlyReplacedLeasesAreUsedToTheirEnd(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput, s.terms.IDs.End = 512, 3 }, func(t *testing.T, r *rig) {
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(term)
		r.wantHeld(0, 1, 2)
		r.wantReleased()
		r.until(term + 5*time.Second)
		r.wantReleased(0, 1) // seed 000-5.9-1
		r.until(3 * term)
		r.wantKinds("regular")
	})
}

// TestHandBackWaitsForAUsableSuccessor: a new lease that the clock has not
// reached is nothing to live from, so the old one still serves: for regular IDs,
// and once it has expired for fallback.
func TestHandBackWaitsForAUsableSuccessor(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(renewal)
		r.remote.fail(unreachable)
		r.until(renewal + 25*time.Second)
		r.remote.heal()
		r.remote.jump(55 * time.Second)
		r.until(term + 5*time.Second)
		r.wantHeld(0, 1)
		r.wantReleased()
		r.until(term + 2*time.Minute)
		r.wantHeld(1)
		r.wantReleased(0) // and refused: its clock is too far from the provider's
		r.wantKinds("regular cached regular")
		if got := r.machineID(r.stretch(1).last); got != 0 {
			t.Errorf("fallback from machine ID %d", got)
		}
	})
}

// TestEachLeaseIsHandedBackWhenItIsReplaced: leases that growth brought are of
// another age than the first ones.
// After a release the host counts what it has left.
func TestEachLeaseIsHandedBackWhenItIsReplaced(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput, s.terms.MaxLeasesPerAcquire = 512, 1 }, func(t *testing.T, r *rig) {
		r.start()
		r.until(5 * time.Minute)
		r.ask(5000)
		r.until(renewal - time.Second)
		r.wantHeld(0, 1)
		r.until(renewal + time.Second)
		r.wantHeld(1, 2)
		r.wantReleased(0)
		r.until(5*time.Minute + renewal - time.Second)
		r.wantHeld(1, 2) // seed 000-5.8-4
		r.until(5*time.Minute + renewal + time.Second)
		r.wantHeld(2, 3)
		r.wantReleased(0, 1)
	})
}

// TestReplacementInTheSameSlot: a provider with one machine ID grants it anew.
// The old grant of it is handed back, not the slot.
func TestReplacementInTheSameSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p *static.Provider
		r := newRig(t, func(s *setup) {
			s.plain = true // it cannot verify
			s.open = func(terms provider.Terms, nowMS func() int64) (_ provider.Provider, err error) {
				p, err = static.New(7, terms, nowMS)
				return p, err
			}
		})
		r.start()
		r.traffic(2*travelTime + maxWait)
		for i := range 3 {
			r.until(time.Duration(i+1)*(renewal+travelTime) + time.Second)
			if r.wantHeld(7); t.Failed() {
				return
			}
			released := r.remote.of(providertest.OpRelease)
			if len(released) != i+1 || released[i].err != nil {
				t.Fatalf("released: %v", released)
			}
			held, last := r.keeper.Status().Held[0], r.acquires(i + 2)[i+1]
			if held.Key() != last.leases[0].Key() || held.Expired <= r.host.ms() {
				t.Errorf("held: %v, and the last grant is %v", held, last.leases[0])
			}
			if _, err := p.Acquire(t.Context(), last.ask); err != nil { // the same request
				t.Errorf("the provider has ended the lease that is in use: %v", err)
			}
		}
		r.wantKinds("regular")
	})
}
