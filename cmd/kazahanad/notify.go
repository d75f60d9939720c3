package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/systemd"
)

const (
	// keeperPatience is how much longer than one call of the provider a keeper's turn
	// may take on a busy machine.
	keeperPatience = 20 * time.Second
	// shownServices and shownLeases keep the status of a large daemon on one line.
	shownServices = 4
	shownLeases   = 4
)

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
	var all []string
	for _, one := range st.Services[:min(len(st.Services), shownServices)] {
		text := one.Mode
		if len(st.Services) > 1 {
			text = one.Service + " " + text
		}
		all = append(all, text+": "+describeLeases(one, st.ClockMS))
	}
	if more := len(st.Services) - shownServices; more > 0 {
		all = append(all, fmt.Sprintf("and %d more services, the worst of all %s", more, st.Mode))
	}
	return strings.Join(all, "; ")
}

func describeLeases(st issuer.ServiceStatus, nowMS int64) string {
	var ids []string
	for _, l := range st.Leases {
		if l.Usable && len(ids) < shownLeases {
			ids = append(ids, fmt.Sprint(l.MachineID))
		}
	}
	if len(ids) == 0 {
		switch cause := st.Cause; {
		case cause != "":
			return "no lease: " + cause
		case st.Mode == string(generator.ModeStarting):
			return "no lease yet"
		}
		return "no lease"
	}
	word := "machine ID "
	if st.LeasesUsable > 1 {
		word = "machine IDs "
	}
	if more := st.LeasesUsable - len(ids); more > 0 {
		ids = append(ids, fmt.Sprintf("%d more", more))
	}
	return word + strings.Join(ids, ", ") + ", ends in " + roughly(time.Duration(st.LeasesEndMS-nowMS)*time.Millisecond)
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
