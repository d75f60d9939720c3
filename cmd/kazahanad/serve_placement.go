package main

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/daemon"
	lockhttp "github.com/kazahana/kazahana/internal/lock/http"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/placement/driver"
)

// placementTenant separates placement's locks from those of clients on the socket,
// so that no client can forge a member. A lease server uses the same name for the
// tenant default.
const placementTenant = "default" + lockhttp.PlacementTenants

// placementLogEvery limits the log of one kind of failure, which each retry repeats.
const placementLogEvery = 10 * time.Second

// openPlacement sets up placement, if it is configured.
func (d *daemonParts) openPlacement() error {
	s := d.settings
	if s.PlacementAuthority == "" {
		return nil
	}
	if d.issuer.KeyedStores == nil {
		return usageError{fmt.Errorf("placement_authority: there is no store to keep memberships in: set store, or a state_dir")}
	}
	log := d.log.With(zap.String("component", "placement"))
	seldom := log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, placementLogEvery, 1, 0)
	}))
	cfg := driver.Config{
		Tenant: placementTenant, Owner: d.issuer.State.Owner(), TTL: s.PlacementTTL, Interval: s.TopologyInterval, IdleTTL: s.PlacementIdleTTL,
		Locks: d.issuer.KeyedStores.Store.Locks, Records: d.issuer.KeyedStores.Store.Placements, Clock: d.issuer.Clock, NowMS: d.issuer.Clock.NowMS,
		Failed: func(what string, err error) { seldom.Warn("placement: "+what+" failed", zap.Error(err)) },
	}
	if s.PlacementAuthority != config.PlacementClient {
		cfg.Authority = s.PlacementAuthority
	}
	d.placement = daemon.NewPlacement(cfg, d.issuer.KeyedStores.Timeout)
	log.Info("placement (experimental)", zap.String("placement_authority", s.PlacementAuthority), zap.String("store", d.issuer.KeyedStores.Store.URL))
	if !d.issuer.KeyedStores.Store.Shared && cfg.Authority != "" {
		log.Warn("no other host uses this store: placement knows only the daemons of this host", zap.String("store", d.issuer.KeyedStores.Store.URL))
	}
	return nil
}

// knownFeatures are the abilities that Status reports to clients.
func (d *daemonParts) knownFeatures() []string {
	known := slices.Clone(features)
	if d.issuer.KeyedStores != nil {
		known = append(known, "locks", "sequences")
	}
	if d.placement != nil {
		known = append(known, "placement", "experimental:placement")
	}
	return known
}
