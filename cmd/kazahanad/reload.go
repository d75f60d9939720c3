package main

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/systemd"
)

// reloadOn reads the configuration again at each SIGHUP until ctx is done.
func (d *daemonParts) reloadOn(ctx context.Context) error {
	running := d.settings
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.sup.hangup:
			running = d.reload(running)
		}
	}
}

// reload applies the settings that a running daemon can change, and returns those that
// apply now.
func (d *daemonParts) reload(running *config.Serve) *config.Serve {
	d.notifier().tell(systemd.Reloading()...)
	merged, r, err := d.readAgain(running)
	d.sup.refused.Store(err != nil)
	if err != nil {
		d.serveLog().Error("the configuration cannot be read again; what was in force stays in force", zap.Error(err))
		merged = running
	} else {
		logReload(d.serveLog(), r)
	}
	d.notifier().tell(systemd.Ready, systemd.Status(d.statusLine()))
	return merged
}

func (d *daemonParts) readAgain(running *config.Serve) (*config.Serve, config.Reload, error) {
	next, err := d.sup.load()
	if err != nil {
		return nil, config.Reload{}, err
	}
	merged, r := running.Reload(next)
	level, err := zapcore.ParseLevel(string(merged.LogLevel))
	if err != nil {
		return nil, r, fmt.Errorf("log_level: %w", err)
	}
	d.server.SetLimits(d.limits(merged))
	d.sup.level.SetLevel(level)
	return merged, r, nil
}

// logReload logs what a reload has changed.
func logReload(log *zap.Logger, r config.Reload) {
	if len(r.Changed)+len(r.Restart) == 0 {
		log.Info("configuration read again: nothing has changed")
		return
	}
	log.Info("configuration read again", zap.Strings("changed", r.Changed))
	if len(r.Restart) > 0 {
		log.Warn("some keys that were changed take effect only after a restart", zap.Strings("restart_needed", r.Restart))
	}
}
