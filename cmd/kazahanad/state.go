package main

import (
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

type stateFlags struct {
	Config   string `name:"config" placeholder:"FILE" help:"The daemon's YAML file; none reads no file (default $KAZAHANA_CONFIG, else /etc/kazahana/kazahanad.yaml, if present)."`
	StateDir string `name:"state-dir" placeholder:"DIR" help:"State directory (default as for serve)."`
	LiveDir  string `name:"live-dir" placeholder:"DIR" help:"Live directory (default $KAZAHANA_LIVE_DIR, else live_dir of the file, else that of the last daemon)."`
}

// place returns the state directory that a daemon started here would have, and the options
// with which a command opens it.
func (f *stateFlags) place(s *system) (dir string, opts state.Options, err error) {
	var settings config.Serve
	err = settings.LoadDirectories(slices.Concat(given("config", f.Config), given("state-dir", f.StateDir), given("live-dir", f.LiveDir)), s.process())
	switch {
	case err != nil:
		return "", opts, usageError{err}
	case settings.StateDir == "":
		return "", opts, usageError{errors.New("state_dir is none: such a daemon keeps no state")}
	}
	return settings.StateDir, state.Options{Live: settings.LiveDir, Log: commandLog(s)}, nil
}

type stateShowCmd struct{ stateFlags }

// Run shows the state.
func (c *stateShowCmd) Run(s *system) error {
	dir, opts, err := c.place(s)
	if err != nil {
		return err
	}
	report, err := state.Inspect(dir, opts)
	if err != nil {
		return err
	}
	w := table(s.out)
	fmt.Fprintf(w, "state\t%s (survives a power failure: identity, timelines, floors)\n", report.Dir)
	fmt.Fprintf(w, "live state\t%s\n", describeLive(report))
	fmt.Fprintf(w, "identity\t%s\n", report.Identity)
	switch {
	case report.Holder != nil:
		fmt.Fprintf(w, "daemon\tprocess %d\n", report.Holder.PID)
	case report.Refusal != "":
		fmt.Fprintf(w, "daemon\tnone runs; leases would not be adopted: %s\n", report.Refusal)
	default:
		fmt.Fprintf(w, "daemon\tnone runs\n")
	}
	for _, svc := range report.Services {
		mark := "none: it never made an ID"
		if svc.Mark > 0 {
			mark = snowflake.FormatMS(svc.Mark)
		}
		fmt.Fprintf(w, "\nservice %s\t\n  mark\t%s\n", svc.Name, mark)
		if 0 < svc.Floor && svc.Floor < svc.Mark { // the floor follows about a second later
			fmt.Fprintf(w, "  floor\t%s, from which IDs would go on after a power failure\n", snowflake.FormatMS(svc.Floor))
		}
		fmt.Fprintf(w, "  epoch\t%s, %d bits of time (set by %s)\n",
			snowflake.FormatMS(svc.Saved.Timeline.EpochMS), svc.Saved.Timeline.BitTS, svc.Saved.Source)
		if o := svc.Saved.Offered; o != nil {
			fmt.Fprintf(w, "  refused\tepoch %s, %d bits of time; see kazahanad state accept-epoch\n", snowflake.FormatMS(o.EpochMS), o.BitTS)
		}
		for _, l := range svc.Saved.Held {
			fmt.Fprintf(w, "  lease\t%v\n", l)
		}
		if svc.Saved.Cached != nil {
			fmt.Fprintf(w, "  cached lease\t%v\n", *svc.Saved.Cached)
		}
	}
	return w.Flush()
}

// describeLive says where the leases and the marks are.
func describeLive(r state.Report) string {
	switch {
	case r.Live == "":
		return "none: the marks are in the state directory, and no lease survives a kill -9"
	case r.Missing:
		return r.Live + " is not there: the machine has booted or an operator has changed the state since, or the folder was removed; no lease is left"
	case r.Damage != nil:
		return r.Damage.Error()
	}
	return r.Live + " (survives a kill -9 and a frozen disk: leases, marks)"
}

type stateAcceptCmd struct {
	stateFlags
	Service string `name:"service" default:"default" placeholder:"NAME" help:"The service."`
	Force   bool   `name:"force" help:"Accept even if new IDs could be smaller than old ones, or equal."`
}

// Run shows the effect of the refused timeline on the service's IDs, and moves the service to it.
func (c *stateAcceptCmd) Run(s *system) error {
	dir, opts, err := c.place(s)
	if err != nil {
		return err
	}
	return state.AcceptTimeline(dir, c.Service, opts, func(svc state.ServiceReport) (snowflake.Timeline, error) {
		if svc.Saved.Offered == nil {
			return snowflake.Timeline{}, fmt.Errorf("service %s has refused no lease: there is nothing to accept", c.Service)
		}
		next := *svc.Saved.Offered
		crossing := svc.Crossing(next)
		fmt.Fprintf(s.out, "old epoch %s, %d bits of time; new epoch %s, %d bits of time\n",
			snowflake.FormatMS(svc.Saved.Timeline.EpochMS), svc.Saved.Timeline.BitTS, snowflake.FormatMS(next.EpochMS), next.BitTS)
		if crossing.HasOld {
			fmt.Fprintf(s.out, "largest old ID   %d\n", crossing.LargestOld)
		}
		if crossing.HasNew {
			fmt.Fprintf(s.out, "smallest new ID  %d\n", crossing.SmallestNew)
		}
		switch {
		case crossing.Ascends():
			fmt.Fprintln(s.out, "accepted: every new ID is greater than every old one")
		case c.Force:
			fmt.Fprintln(s.out, "accepted by force: new IDs can repeat old ones")
		default:
			return next, errors.New("refused: a new ID could repeat an old one; --force accepts that")
		}
		return next, nil
	})
}

type stateResetCmd struct {
	stateFlags
	Service string `name:"service" placeholder:"NAME" help:"The service (default: all)."`
	Yes     bool   `name:"yes" help:"Do it; without this flag the command only says what would happen."`
}

// Run drops the leases and then lowers the mark, for a host that made IDs while its
// clock was ahead.
func (c *stateResetCmd) Run(s *system) error {
	dir, opts, err := c.place(s)
	if err != nil {
		return err
	}
	const what = "all leases are dropped, then the mark is set to now: new IDs may be smaller than those that were dated ahead; " +
		"regular IDs stay unique where the provider coordinates its grants, which static:, ip: and none: do not"
	if !c.Yes {
		return usageError{fmt.Errorf("reset-floor: %s; repeat with --yes to do it", what)}
	}
	floors, err := state.ResetFloor(dir, c.Service, s.now().UnixMilli(), opts)
	if err != nil {
		return err
	}
	for _, f := range floors {
		before := "none"
		if f.Before > 0 {
			before = snowflake.FormatMS(f.Before)
		}
		fmt.Fprintf(s.out, "service %s: mark %s -> %s\n", f.Service, before, snowflake.FormatMS(f.After))
	}
	_, err = fmt.Fprintln(s.out, "note: "+what)
	return err
}

// commandLog is the log of an interactive command: warnings and errors as plain text.
func commandLog(s *system) *zap.Logger {
	encoder := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{
		LevelKey: "level", MessageKey: "message", EncodeLevel: zapcore.LowercaseLevelEncoder, ConsoleSeparator: ": ",
	})
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(s.err), zapcore.WarnLevel))
}
