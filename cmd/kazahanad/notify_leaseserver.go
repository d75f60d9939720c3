package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/systemd"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// leaseSupervision is what a reload of the lease server needs.
type leaseSupervision struct {
	load    func() (*config.LeaseServer, error) // reads the configuration again
	level   zap.AtomicLevel                     // of the log
	refused atomic.Bool                         // the last reload of the configuration was refused
}

// manage reports the lease server's state to the service manager, if there is one,
// until ctx is done. The watchdog watches the accept loop only: every connection has
// a goroutine and deadlines of its own.
func (l *leaseServerParts) manage(ctx context.Context, listener *systemd.Listener) {
	status := func() string {
		line := fmt.Sprintf("serving on %s, from %s", listener.Addr(), l.provider.Info().URL)
		if l.refused() {
			line += refusedStatus
		}
		return line
	}
	n := notifier{systemd.Notify, l.log}
	if n.tell(systemd.Ready, systemd.Status(status())) {
		n.watch(ctx, []systemd.Part{{Name: "accept loop", Turns: listener.Turns, Prod: listener.Prod}}, status)
	}
	<-ctx.Done()
	n.tell(systemd.Stopping, systemd.Status("stopping: requests under way are answered"),
		systemd.ExtendTimeout(l.settings.DrainDelay+l.settings.DrainTimeout+issuer.CloseTimeout+stopPatience))
}

// listenWatched returns a listener that counts the turns of its accept loop.
func (l *leaseServerParts) listenWatched() (*systemd.Listener, error) {
	listener, err := listen(l.settings.Listen, unixsock.Options{Mode: l.settings.SocketMode, Group: l.settings.SocketGroup, Flag: "--listen"})
	if err != nil {
		return nil, err
	}
	return systemd.NewListener(listener, l.settings.MaxConnections), nil
}

// reloadOn reads the credentials and the configuration again at each signal.
func (l *leaseServerParts) reloadOn(hangup <-chan os.Signal, done <-chan struct{}) {
	running, n := l.settings, notifier{systemd.Notify, l.log}
	for {
		select {
		case <-done:
			return
		case <-hangup:
			n.tell(systemd.Reloading()...)
			if l.tls != nil {
				l.tls.Reload()
			}
			if l.tokens != nil {
				l.tokens.Reload()
			}
			running = l.reload(running)
			n.tell(systemd.Ready)
		}
	}
}

// refused reports whether the configuration, the tokens or the certificates that were read
// last were refused, so that those from before are in force.
func (l *leaseServerParts) refused() bool {
	return l.sup.refused.Load() || l.tokens.Refused() || l.tls.Refused()
}

// reload returns the settings that apply from now on.
func (l *leaseServerParts) reload(running *config.LeaseServer) *config.LeaseServer {
	next, err := l.sup.load()
	defer func() { l.sup.refused.Store(err != nil) }()
	if err == nil {
		merged, r := running.Reload(next)
		var level zapcore.Level
		if level, err = zapcore.ParseLevel(string(merged.LogLevel)); err == nil {
			l.sup.level.SetLevel(level)
			logReload(l.log, r)
			return merged
		}
	}
	l.log.Error("the configuration cannot be read again; what was in force stays in force", zap.Error(err))
	return running
}
