package issuer

import (
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
)

// MaxListedLeases is how many leases of a service a Status lists. The rest is
// counted: the status of a service with many thousands would not fit into a
// message.
const MaxListedLeases = 32

// ServiceStatus is one service's part of a Status.
type ServiceStatus struct {
	Service        string        `json:"service"`
	Mode           string        `json:"mode"`
	Cause          string        `json:"cause"` // of the last failed acquire; "" while all is well
	Failures       int           `json:"failures"`
	RetryInMS      int64         `json:"retry_in_ms"`
	EpochMS        int64         `json:"epoch_ms"`
	BitTS          int           `json:"bit_ts"`
	ExhaustedMS    int64         `json:"layout_exhausted_ms"` // when bit_ts runs out
	Throughput     int64         `json:"throughput_per_ms"`   // of the usable leases
	MaxThroughput  int           `json:"max_throughput_per_ms"`
	Fallback       string        `json:"fallback"`
	ClockSkewMS    int64         `json:"clock_skew_ms"`
	OfferedEpochMS *int64        `json:"offered_epoch_ms"` // of a refused lease, else null
	LeasesHeld     int           `json:"leases_held"`
	LeasesUsable   int           `json:"leases_usable"`   // of those held
	LeasesEndMS    int64         `json:"leases_end_ms"`   // when the last of the usable ones ends; 0 without one
	LeasesUnlisted int           `json:"leases_unlisted"` // held, and left out of leases
	Leases         []LeaseStatus `json:"leases"`          // up to MaxListedLeases
	Cached         *LeaseStatus  `json:"cached_lease"`
	Issued         IssuedStatus  `json:"ids_issued"`
	Exhaustions    uint64        `json:"sequence_exhaustions"`
	ClockBackward  uint64        `json:"clock_backward_events"`
}

// LeaseStatus is a lease without its secret.
type LeaseStatus struct {
	MachineID   int64 `json:"machine_id"`
	BitID       int   `json:"bit_id"`
	BitSeq      int   `json:"bit_seq"`
	CreatedMS   int64 `json:"created_ms"`
	ExpiredMS   int64 `json:"expired_ms"`
	ReservedMS  int64 `json:"reserved_until_ms"`
	RemainingMS int64 `json:"remaining_ms"` // until it expires; 0 once it has
	Usable      bool  `json:"usable"`
}

// IssuedStatus counts IDs by kind.
type IssuedStatus struct {
	Regular        uint64 `json:"regular"`
	FallbackCached uint64 `json:"fallback_cached"` // no other holder can make them
	Uncertain      uint64 `json:"fallback_cached_uncertain"`
	FallbackRandom uint64 `json:"fallback_random"`
}

// Status describes the service now.
func (s *Service) Status() (generator.Mode, ServiceStatus) {
	mode, cause := s.gen.Mode()
	stats, now, tl := s.gen.Stats(), s.clock.NowMS(), s.Timeline()
	st := ServiceStatus{
		Service: s.name, Mode: string(mode), EpochMS: tl.EpochMS, BitTS: tl.BitTS, ExhaustedMS: tl.EndMS(),
		MaxThroughput: s.settings.MaxThroughputPerMS, Fallback: string(s.settings.Fallback),
		Leases: []LeaseStatus{},
		Issued: IssuedStatus{
			stats.Issued[generator.Regular], stats.Issued[generator.FallbackCachedID],
			stats.Issued[generator.FallbackCachedUncertainID], stats.Issued[generator.FallbackRandomID],
		},
		Exhaustions: stats.Exhaustions, ClockBackward: stats.BackwardEvents,
	}
	if s.keeper != nil {
		k := s.keeper.Status()
		if cause == nil {
			cause = k.Cause
		}
		st.Failures, st.RetryInMS, st.ClockSkewMS = k.Failures, k.RetryIn.Milliseconds(), k.SkewMS
		if k.Offered != nil {
			st.OfferedEpochMS = &k.Offered.EpochMS
		}
		st.count(k.Held, now)
		if k.Cached != nil {
			cached := leaseStatus(*k.Cached, now)
			st.Cached = &cached
		}
	}
	if cause != nil {
		st.Cause = cause.Error()
	}
	return mode, st
}

// count sums up the leases, and lists the first ones.
func (st *ServiceStatus) count(held []lease.Lease, now int64) {
	for _, l := range held {
		if l.Allows(now) {
			st.LeasesUsable++
			st.LeasesEndMS = max(st.LeasesEndMS, l.Expired)
			st.Throughput += l.Throughput()
		}
	}
	for _, l := range held[:min(len(held), MaxListedLeases)] {
		st.Leases = append(st.Leases, leaseStatus(l, now))
	}
	st.LeasesHeld, st.LeasesUnlisted = len(held), len(held)-len(st.Leases)
}

func leaseStatus(l lease.Lease, now int64) LeaseStatus {
	return LeaseStatus{
		MachineID: l.ID, BitID: l.BitID, BitSeq: l.BitSeq, CreatedMS: l.Created, ExpiredMS: l.Expired,
		ReservedMS: l.ReservedUntil, RemainingMS: max(l.Expired-now, 0), Usable: l.Allows(now),
	}
}
