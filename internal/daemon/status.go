package daemon

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/refusals"
)

// Identity is the daemon's description of itself.
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
	SocketErr string   `json:"socket_error"` // why new clients do not find it, or a listener beside it; "" if they do
	StateStatus
	Provider    string                 `json:"provider"`
	Scope       string                 `json:"scope"`
	Promise     string                 `json:"promise"`
	Mode        string                 `json:"mode"` // of the service that is worst off
	ClockMS     int64                  `json:"clock_ms"`
	ClockOffMS  int64                  `json:"clock_off_ms"` // wall clock minus its course while it is off it, else 0
	Connections int                    `json:"connections"`
	InFlight    int64                  `json:"in_flight"`
	Requests    uint64                 `json:"requests_total"`
	Services    []issuer.ServiceStatus `json:"services"`
	Fences      []metrics.Fence        `json:"fences"`   // files that are held back
	Overload    []refusals.Count       `json:"overload"` // limits that refused something in the last minute
	Memory      metrics.Memory         `json:"memory"`   // that clients hold
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

// badness orders modes: the daemon shows the mode of its worst service.
var badness = map[generator.Mode]int{
	generator.ModeRegular: 0, generator.ModeStarting: 1, generator.ModeFallbackCached: 2,
	generator.ModeFallbackUncertain: 3, generator.ModeFallbackRandom: 4, generator.ModeUnavailable: 5,
}

func (s *Server) statusCall(_ context.Context, d *responder) error {
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
		Connections: s.connections(), InFlight: s.bounds.inFlight(), Requests: s.metrics.RPCDuration.Count(),
		Overload: s.cfg.Refusals.Recent(), Memory: s.bounds.watched(),
	}
	if err := s.unreachable(); err != nil {
		st.SocketErr = err.Error()
	}
	if st.Fences = []metrics.Fence{}; s.cfg.Fences != nil {
		st.Fences = s.cfg.Fences()
	}
	worst := generator.ModeRegular
	for _, name := range s.names {
		svc := s.services[name]
		mode, one := svc.Status()
		if badness[mode] > badness[worst] {
			worst = mode
		}
		st.Services = append(st.Services, one)
		st.ClockMS, st.ClockOffMS = svc.Clock().NowMS(), svc.Clock().Astray().Milliseconds()
	}
	st.Mode = string(worst)
	return st
}

// Line describes in one line the kind of IDs and the leases behind them.
func (st Status) Line() string {
	if len(st.Services) != 1 {
		return fmt.Sprintf("%d services, the worst of all %s", len(st.Services), st.Mode)
	}
	one := st.Services[0]
	ends := roughly(time.Duration(one.LeasesEndMS-st.ClockMS) * time.Millisecond)
	usable := slices.IndexFunc(one.Leases, func(l issuer.LeaseStatus) bool { return l.Usable })
	switch {
	case usable >= 0 && one.LeasesUsable == 1:
		return fmt.Sprintf("%s: machine ID %d, ends in %s", one.Mode, one.Leases[usable].MachineID, ends)
	case usable >= 0:
		return fmt.Sprintf("%s: %d machine IDs, the last ends in %s", one.Mode, one.LeasesUsable, ends)
	case one.Cause != "":
		return one.Mode + ": no lease: " + one.Cause
	}
	return one.Mode + ": no lease"
}

// roughly rounds down, so that the line changes only when it matters.
func roughly(d time.Duration) string {
	switch {
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/(10*time.Second)*10)
}

// samples returns the services' figures, for the metrics.
func (s *Server) samples() (all []metrics.Sample) {
	for _, name := range s.names {
		svc := s.services[name]
		mode, st := svc.Status()
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
