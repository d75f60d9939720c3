package conformance

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/provider"
)

// required are the checks of parts that a daemon relies on.
var required = []check{
	{"POST /lease grants a lease", firstLease},
	{"the lease's times agree with this host's clock", agrees},
	{"fields that are not known are ignored", unknownFields},
	{"customEpoch and bitTs are the same in all leases", oneTimeline},
	{"each lease has a secret of its own", ownSecrets},
	{"throughputPerMs is reached, with several leases where it takes them", throughput},
	{"a body that is no JSON object is refused", noObject},
	{"DELETE /lease/{id} with a forged signature is refused", forged},
	{"DELETE /lease/{id} with another lease's secret is refused", anothers},
	{"DELETE /lease/{id} signed an hour ago is refused", old},
	{"DELETE /lease/{id} of a machine ID that was never granted is refused", neverGranted},
	{"DELETE /lease/{id} gives the lease back", givesBack},
}

func firstLease(s *suite) (err error) {
	if s.first, err = s.one(); err != nil {
		return fmt.Errorf("%w; %w", err, errCannotGoOn)
	}
	return nil
}

// agrees allows the same difference as a release: half a minute.
func agrees(s *suite) error {
	now := time.Now().UnixMilli()
	if off := s.first.Created - now; max(off, -off) > provider.ReleaseWindow.Milliseconds() {
		return fmt.Errorf("created is %d, and this host's clock shows %d: one of the two clocks is wrong", s.first.Created, now)
	}
	if max(s.first.Term(), s.first.ReservedUntil-s.first.Expired) > provider.MaxTerm.Milliseconds() {
		return fmt.Errorf("it lasts from %d to %d and is reserved until %d: neither may take more than %v",
			s.first.Created, s.first.Expired, s.first.ReservedUntil, provider.MaxTerm)
	}
	return nil
}

func unknownFields(s *suite) error {
	_, err := s.acquire(map[string]any{
		"meta": map[string]string{"host": "conformance"}, "requestId": provider.NewSecret(), "newClient": true, "somethingNew": map[string]any{"x": []int{1}},
	})
	return err
}

func oneTimeline(s *suite) error {
	for _, g := range s.grants {
		if g.lease.Timeline() != s.first.Timeline() {
			return fmt.Errorf("a lease has customEpoch %d and bitTs %d, another one %d and %d",
				s.first.EpochMS, s.first.BitTS, g.lease.EpochMS, g.lease.BitTS)
		}
	}
	return nil
}

func ownSecrets(s *suite) error {
	seen := map[string]bool{}
	for _, g := range s.grants {
		if seen[g.lease.Secret] {
			return errors.New("two leases have the same secret")
		}
		seen[g.lease.Secret] = true
	}
	return nil
}

func throughput(s *suite) error {
	want := s.first.Throughput() + 1
	answer, err := s.acquire(map[string]any{"throughputPerMs": want})
	if err != nil {
		return err
	}
	var sum int64
	for _, l := range answer.Leases {
		sum += l.Throughput()
	}
	if sum < want {
		return fmt.Errorf("%d leases of %d IDs per millisecond together, and %d were asked for (are there not enough free machine IDs?)", len(answer.Leases), sum, want)
	}
	return nil
}

func noObject(s *suite) error {
	return refused(s.send(http.MethodPost, leaseapi.PathLease, []int{}, nil))
}

func forged(s *suite) error {
	return refused(s.release(s.first, time.Now().UnixMilli(), "forged"))
}

func anothers(s *suite) error {
	for _, g := range s.grants {
		if g.lease.ID != s.first.ID {
			return refused(s.release(s.first, time.Now().UnixMilli(), g.lease.Secret))
		}
	}
	return errors.New("no other machine ID was granted")
}

func old(s *suite) error {
	return refused(s.release(s.first, time.Now().Add(-time.Hour).UnixMilli(), s.first.Secret))
}

// neverGranted releases a machine ID of the fallback half, which is never granted.
func neverGranted(s *suite) error {
	never := lease.Lease{ID: 2*s.first.Layout().MachineIDs() - 1, BitSeq: s.first.BitSeq}
	return refused(s.release(never, time.Now().UnixMilli(), s.first.Secret))
}

func givesBack(s *suite) error {
	l, err := s.one()
	if err != nil {
		return err
	}
	if err := s.giveBack(l); err != nil {
		return err
	}
	_, err = s.one() // the server must still work
	return err
}
