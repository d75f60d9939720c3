package main

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/snowflake"
)

type statusCmd struct {
	clientFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// Run shows the running daemon.
func (c *statusCmd) Run(s *system) error {
	var st daemon.Status
	if err := c.ask(s, c.Timeout, "Status", &st); err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, st)
	}
	return showStatus(s.out, st)
}

func showStatus(out io.Writer, st daemon.Status) error {
	w := table(out)
	fmt.Fprintf(w, "mode\t%s\n", st.Mode)
	fmt.Fprintf(w, "scope\t%s: %s\n", st.Scope, st.Promise)
	fmt.Fprintf(w, "provider\t%s\n", st.Provider)
	fmt.Fprintf(w, "socket\t%s\n", st.Socket)
	fmt.Fprintf(w, "state\t%s\n", describeStateDir(st.StateStatus))
	fmt.Fprintf(w, "process\t%d, version %s, up %v\n", st.PID, st.Version, seconds(st.UptimeMS))
	fmt.Fprintf(w, "traffic\t%d connections, %d requests so far, %d waiting\n", st.Connections, st.Requests, st.InFlight)
	fmt.Fprintf(w, "memory\tclients hold %d of %d bytes\n", st.Memory.Reserved, st.Memory.Reservable)
	for _, hit := range st.Overload {
		fmt.Fprintf(w, "overloaded\t%v\n", hit)
	}
	if st.ClockOffMS != 0 {
		fmt.Fprintf(w, "clock\tthe wall clock is %+d ms off its course\n", st.ClockOffMS)
	}
	for _, f := range st.Fences {
		fmt.Fprintf(w, "held back\t%s\n", describeFence(f.File, f.UntilMS, f.Reason, f.Sequences))
	}
	for _, svc := range st.Services {
		showService(w, svc, st.ClockMS)
	}
	return w.Flush()
}

// describeStateDir says where the local state is and which failures it survives.
func describeStateDir(st daemon.StateStatus) string {
	text := cmp.Or(st.StateDir, "none")
	switch {
	case st.SurvivesKill:
		text += "; leases and marks in " + st.LiveDir + ", which survives kill -9"
	case st.LiveError != "":
		text += "; leases do not survive kill -9: " + st.LiveError
	case st.StateDir != "":
		text += "; leases do not survive kill -9: there is no live directory"
	}
	if st.StateStall > 0 {
		text += fmt.Sprintf("; its disk has kept a write waiting for %v", seconds(st.StateStall))
	}
	if st.StateError != "" {
		text += "; " + st.StateError
	}
	return text
}

// describeFence says which requests a fenced file refuses, and until when.
func describeFence(file string, untilMS int64, reason string, sequences bool) string {
	text := file + ": nothing is granted until " + snowflake.FormatMS(untilMS)
	if sequences {
		text += ", and no sequence that was used before goes on until an operator says how"
	}
	return text + ": " + reason
}

func showService(w io.Writer, svc issuer.ServiceStatus, nowMS int64) {
	fmt.Fprintf(w, "\nservice %s\t%s\n", svc.Service, svc.Mode)
	if svc.Cause != "" {
		fmt.Fprintf(w, "  cause\t%s\n", svc.Cause)
	}
	if svc.Failures > 0 {
		fmt.Fprintf(w, "  acquires\t%d failed in a row, next try in %v\n", svc.Failures, seconds(svc.RetryInMS))
	}
	if svc.OfferedEpochMS != nil {
		fmt.Fprintf(w, "  refused\ta lease with epoch %s; see kazahanad state accept-epoch\n", snowflake.FormatMS(*svc.OfferedEpochMS))
	}
	fmt.Fprintf(w, "  IDs\t%d regular, %d cached fallback, %d uncertain cached fallback, %d random fallback\n",
		svc.Issued.Regular, svc.Issued.FallbackCached, svc.Issued.Uncertain, svc.Issued.FallbackRandom)
	fmt.Fprintf(w, "  throughput\t%d of at most %d IDs per ms; %d ms used up\n", svc.Throughput, svc.MaxThroughput, svc.Exhaustions)
	fmt.Fprintf(w, "  clock\t%d times behind; the provider's is %+d ms off\n", svc.ClockBackward, svc.ClockSkewMS)
	fmt.Fprintf(w, "  layout\tepoch %s, %d bits of time, until %s\n",
		snowflake.FormatMS(svc.EpochMS), svc.BitTS, snowflake.FormatMS(svc.ExhaustedMS))
	for _, l := range svc.Leases {
		fmt.Fprintf(w, "  lease\t%s\n", describeLease(l))
	}
	if svc.LeasesUnlisted > 0 {
		fmt.Fprintf(w, "  leases\t%d more; %d in all, %d of them usable, the last of which ends in %v\n",
			svc.LeasesUnlisted, svc.LeasesHeld, svc.LeasesUsable, seconds(max(svc.LeasesEndMS-nowMS, 0)))
	}
	if svc.Cached != nil {
		fmt.Fprintf(w, "  cached lease\t%s\n", describeLease(*svc.Cached))
	}
}

func describeLease(l issuer.LeaseStatus) string {
	state := "ends in " + seconds(l.RemainingMS).String()
	switch {
	case !l.Usable && l.RemainingMS > 0:
		state = "not usable before " + snowflake.FormatMS(l.CreatedMS)
	case !l.Usable:
		state = "ended at " + snowflake.FormatMS(l.ExpiredMS)
	}
	return fmt.Sprintf("machine ID %d (%d/%d bits), %s", l.MachineID, l.BitID, l.BitSeq, state)
}

func seconds(ms int64) time.Duration {
	return (time.Duration(ms) * time.Millisecond).Round(100 * time.Millisecond)
}
