package main

import (
	"context"
	"time"

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
