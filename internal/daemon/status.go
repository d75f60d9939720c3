package daemon

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/metrics"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Identity is what the daemon tells of itself.
type Identity struct {
	Version, Commit, GoVersion string
	Features                   []string
	Socket                     string
	StateDir                   string // "" = none
	Provider                   string // URL without secrets
	Scope                      string
	Promise                    string // what the scope means, in a sentence
}

// Status is what `kazahanad status --json` prints and the Status method
// returns. Times are Unix milliseconds.
type Status struct {
	Version     string          `json:"version"`
	Commit      string          `json:"commit"`
	GoVersion   string          `json:"go_version"`
	Features    []string        `json:"features"`
	PID         int             `json:"pid"`
	StartedMS   int64           `json:"started_ms"`
	UptimeMS    int64           `json:"uptime_ms"`
	Socket      string          `json:"socket"`
	StateDir    string          `json:"state_dir"`
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
	Leases         []LeaseStatus `json:"leases"`
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
	FallbackCached uint64 `json:"fallback_cached"`
	FallbackRandom uint64 `json:"fallback_random"`
}

// badness orders modes: the daemon shows that of its worst service.
var badness = map[generator.Mode]int{
	generator.ModeRegular: 0, generator.ModeStarting: 1, generator.ModeFallbackCached: 2,
	generator.ModeFallbackRandom: 3, generator.ModeUnavailable: 4,
}

func (s *Server) statusCall(_ context.Context, c *conn) error {
	if err := c.req.End(); err != nil {
		return err
	}
	return c.wire.ReplyAny(c.req.ID, s.Status())
}

// Status describes the daemon now.
func (s *Server) Status() Status {
	id, now := s.cfg.Identity, time.Now()
	st := Status{
		Version: id.Version, Commit: id.Commit, GoVersion: id.GoVersion, Features: id.Features, PID: os.Getpid(),
		StartedMS: s.started.UnixMilli(), UptimeMS: now.Sub(s.started).Milliseconds(),
		Socket: id.Socket, StateDir: id.StateDir, Provider: id.Provider, Scope: id.Scope, Promise: id.Promise,
		Connections: s.connections(), InFlight: s.inFlight.Load(), Requests: s.requests.Load(),
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
			stats.Issued[generator.Regular], stats.Issued[generator.FallbackCachedID], stats.Issued[generator.FallbackRandomID],
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
		for _, l := range k.Held {
			st.Leases = append(st.Leases, leaseStatus(l, now))
			if l.Allows(now) {
				st.Throughput += l.Throughput()
			}
		}
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
			FallbackRandom: st.Issued.FallbackRandom, Exhaustions: st.Exhaustions, BackwardEvents: st.ClockBackward,
			LayoutExhaustedMS: st.ExhaustedMS,
		}
		for _, l := range st.Leases {
			if l.Usable {
				one.ActiveLeases++
				one.LeaseExpiryMS = max(one.LeaseExpiryMS, l.ExpiredMS)
			}
		}
		one.Fallback = one.ActiveLeases == 0 && mode != generator.ModeStarting
		all = append(all, one)
	}
	return all
}

// Describe says in a line what the service starts with, for the log.
func (s *Service) Describe() string {
	tl := s.present()
	return fmt.Sprintf("epoch %s, bit_ts %d (time runs out at %s)",
		snowflake.FormatMS(tl.EpochMS), tl.BitTS, snowflake.FormatMS(tl.EndMS()))
}
