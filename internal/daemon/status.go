package daemon

import (
	"context"
	"os"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/quota"
)

// MaxListedLeases is how many leases of a service a Status lists. The rest is
// counted: the status of a service with many thousands would not fit into a
// message.
const MaxListedLeases = 32

// Identity is what the daemon tells of itself.
type Identity struct {
	Version, Commit, GoVersion string
	Features                   []string
	Socket                     string
	Provider                   string // URL without secrets
	Scope                      string
	Promise                    string // what the scope means, in a sentence
}

// Status is what `kazahanad status --json` prints and the Status method
// returns. Times are Unix milliseconds.
type Status struct {
	Version   string   `json:"version"`
	Commit    string   `json:"commit"`
	GoVersion string   `json:"go_version"`
	Features  []string `json:"features"`
	PID       int      `json:"pid"`
	StartedMS int64    `json:"started_ms"`
	UptimeMS  int64    `json:"uptime_ms"`
	Socket    string   `json:"socket"`
	StateStatus
	Provider    string          `json:"provider"`
	Scope       string          `json:"scope"`
	Promise     string          `json:"promise"`
	Mode        string          `json:"mode"` // of the service that is worst off
	ClockMS     int64           `json:"clock_ms"`
	ClockOffMS  int64           `json:"clock_off_ms"` // wall clock minus its course while it is off it, else 0
	Connections int             `json:"connections"`
	InFlight    int64           `json:"in_flight"`
	Requests    uint64          `json:"requests_total"`
	Services    []ServiceStatus `json:"services"`
	Fences      []metrics.Fence `json:"fences"`   // files that are held back
	Overload    []quota.Hit     `json:"overload"` // what was refused by quota in the last minute
	Memory      metrics.Memory  `json:"memory"`   // that clients hold
}

// StateStatus says where the local state is, and how it fares.
type StateStatus struct {
	StateDir     string `json:"state_dir"`        // "" = none
	LiveDir      string `json:"live_dir"`         // the folder of the leases and marks; "" = none
	SurvivesKill bool   `json:"survives_kill"`    // leases and marks survive kill -9 and a frozen disk
	LiveError    string `json:"live_error"`       // why they cannot be kept in live_dir; "" if they can
	StateStall   int64  `json:"state_stalled_ms"` // how long the disk has kept a write waiting
	StateError   string `json:"state_error"`      // why the last write to the disk failed; "" if it did not
}

func (s *Server) stateStatus() StateStatus {
	if s.cfg.State == nil {
		return StateStatus{}
	}
	h := s.cfg.State()
	st := StateStatus{StateDir: h.Dir, LiveDir: h.Live, SurvivesKill: h.Live != "" && h.LiveErr == nil, StateStall: h.Stalled.Milliseconds()}
	if h.LiveErr != nil {
		st.LiveError = h.LiveErr.Error()
	}
	if h.Err != nil {
		st.StateError = h.Err.Error()
	}
	return st
}

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

// badness orders modes: the daemon shows that of its worst service.
var badness = map[generator.Mode]int{
	generator.ModeRegular: 0, generator.ModeStarting: 1, generator.ModeFallbackCached: 2,
	generator.ModeFallbackUncertain: 3, generator.ModeFallbackRandom: 4, generator.ModeUnavailable: 5,
}

func (s *Server) statusCall(_ context.Context, d *desk) error {
	if d.conn == nil {
		return errHeavy // it takes locks
	}
	if err := d.req.End(); err != nil {
		return err
	}
	return d.out.ReplyAny(d.req.ID, s.Status())
}

// Status describes the daemon now.
func (s *Server) Status() Status {
	id, now := s.cfg.Identity, time.Now()
	st := Status{
		Version: id.Version, Commit: id.Commit, GoVersion: id.GoVersion, Features: id.Features, PID: os.Getpid(),
		StartedMS: s.started.UnixMilli(), UptimeMS: now.Sub(s.started).Milliseconds(),
		Socket: id.Socket, StateStatus: s.stateStatus(), Provider: id.Provider, Scope: id.Scope, Promise: id.Promise,
		Connections: s.connections(), InFlight: s.inFlight.Load(), Requests: s.requests.Load(),
		Overload: s.cfg.Quotas.Recent(), Memory: s.budget.memory(),
	}
	if st.Fences = []metrics.Fence{}; s.cfg.Fences != nil {
		st.Fences = s.cfg.Fences()
	}
	worst := generator.ModeRegular
	for _, name := range s.names {
		svc := s.services[name]
		mode, one := svc.status()
		if badness[mode] > badness[worst] {
			worst = mode
		}
		st.Services = append(st.Services, one)
		st.ClockMS, st.ClockOffMS = svc.clock.NowMS(), svc.clock.Astray().Milliseconds()
	}
	st.Mode = string(worst)
	return st
}

func (s *Service) status() (generator.Mode, ServiceStatus) {
	mode, cause := s.gen.Mode()
	stats, now, tl := s.gen.Stats(), s.clock.NowMS(), s.present()
	st := ServiceStatus{
		Service: s.name, Mode: string(mode), EpochMS: tl.EpochMS, BitTS: tl.BitTS, ExhaustedMS: tl.EndMS(),
		MaxThroughput: s.settings.Load().MaxThroughputPerMS, Fallback: string(s.settings.Load().Fallback),
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

// count sums up the leases and lists them in their order. Where there are too
// many, usable ones are listed rather than others.
func (st *ServiceStatus) count(held []lease.Lease, now int64) {
	for _, l := range held {
		if l.Allows(now) {
			st.LeasesUsable++
			st.LeasesEndMS = max(st.LeasesEndMS, l.Expired)
			st.Throughput += l.Throughput()
		}
	}
	others := MaxListedLeases - min(st.LeasesUsable, MaxListedLeases)
	for _, l := range held {
		if len(st.Leases) == MaxListedLeases {
			break
		}
		if !l.Allows(now) {
			if others == 0 {
				continue
			}
			others--
		}
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

// samples is what the services know, for the metrics.
func (s *Server) samples() (all []metrics.Sample) {
	for _, name := range s.names {
		svc := s.services[name]
		mode, st := svc.status()
		one := metrics.Sample{
			Service: name, Regular: st.Issued.Regular, FallbackCached: st.Issued.FallbackCached,
			FallbackUncertain: st.Issued.Uncertain, FallbackRandom: st.Issued.FallbackRandom, Exhaustions: st.Exhaustions, BackwardEvents: st.ClockBackward,
			LayoutExhaustedMS: st.ExhaustedMS, ActiveLeases: st.LeasesUsable, LeaseExpiryMS: st.LeasesEndMS,
		}
		one.Fallback = one.ActiveLeases == 0 && mode != generator.ModeStarting
		all = append(all, one)
	}
	return all
}
