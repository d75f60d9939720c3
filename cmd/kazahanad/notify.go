package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/systemd"
)

// keeperPatience is how much longer than one call of the provider a keeper's turn may take on
// a busy machine.
const keeperPatience = 20 * time.Second

// watched lists the loops that must run for the daemon to work. The provider is not
// among them: a restart would not bring it back.
func (d *daemonParts) watched() []systemd.Part {
	parts := d.loops()
	for name, svc := range d.issuer.Services {
		if turns := svc.KeeperTurns(); turns != nil {
			parts = append(parts, systemd.Part{Name: "keeper of " + name, Turns: turns, Patience: d.settings.ProviderTimeout + keeperPatience})
		}
	}
	return parts
}

// loops are the watched parts that serve the socket.
func (d *daemonParts) loops() []systemd.Part {
	return []systemd.Part{
		{Name: "accept loop", Turns: d.server.AcceptTurns, Prod: d.server.Prod},
		{Name: "event loop", Turns: d.server.FastPathTurns}, // the same prod wakes it
	}
}

// alive reports a loop that has stopped. Before the socket is served, and at a stop,
// which has a timeout, there is none to look at.
func (d *daemonParts) alive(stopping, probe context.Context) error {
	select {
	case <-d.server.Serving():
	default:
		return nil
	}
	if stopping.Err() != nil {
		return nil
	}
	err := systemd.Alive(probe, d.loops())
	if stopping.Err() != nil { // it began meanwhile
		return nil
	}
	return err
}

// statusText describes in one line the kind of IDs and the leases behind them.
func statusText(st daemon.Status) string {
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

// roughly rounds down, so that the status changes only when it matters.
func roughly(d time.Duration) string {
	switch {
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/(10*time.Second)*10)
}
