package main

import (
	"cmp"
	"context"
	"net/http"
	"os"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/operator/statuspage"
)

// daemonPage is /status.json on the admin listener, which the status page shows: the
// output of status --json, and more.
type daemonPage struct {
	daemon.Status
	Host     string                         `json:"host"`
	History  statuspage.Past                `json:"history"` // counters: requests, and KIND:SERVICE for IDs
	Events   []statuspage.Event             `json:"events"`
	Counters map[string][]statuspage.Sample `json:"counters"` // by the metrics' names

	Placement *daemon.PlacementStatus `json:"placement"` // nil: off
}

// watchForPage samples the counters that the page draws over time.
func (d *daemonParts) watchForPage(ctx context.Context) error {
	d.history.Run(ctx, func() map[string]uint64 {
		st := d.server.Status()
		counts := map[string]uint64{"requests": st.Requests}
		for _, svc := range st.Services {
			counts["regular:"+svc.Service] = svc.Issued.Regular
			counts["fallback_cached:"+svc.Service] = svc.Issued.FallbackCached
			counts["fallback_cached_uncertain:"+svc.Service] = svc.Issued.Uncertain
			counts["fallback_random:"+svc.Service] = svc.Issued.FallbackRandom
		}
		return counts
	})
	return nil
}

func (d *daemonParts) page() any {
	p := daemonPage{Status: d.server.Status(), Host: thisHost(), History: d.history.Past(), Events: d.recent.Events(), Placement: d.placement.Status()}
	var err error
	if p.Counters, err = statuspage.Counters(d.metrics.Registry); err != nil {
		d.serveLog().Warn("the status page lacks the counters", zap.Error(err))
	}
	return p
}

func thisHost() string {
	host, _ := os.Hostname()
	return cmp.Or(host, "unknown")
}

// adminHandler serves the admin listener.
func (d *daemonParts) adminHandler(ctx context.Context) http.Handler {
	return admin.OwnNames(d.beside[keyAdmin].Addr(), d.settings.AdminListen, admin.Handler(admin.Options{
		Registry: d.metrics.Registry, Pprof: d.settings.AdminPprof, Page: statuspage.Daemon(), Status: d.page,
		Ready: func() error { return d.server.Ready(ctx) },
		Alive: func(probe context.Context) error { return d.alive(ctx, probe) },
	}))
}
