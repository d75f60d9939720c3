package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/term"

	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/systemd"
)

// stopPatience is added to the time of draining and of giving back leases.
const stopPatience = 10 * time.Second

// supervision is how a daemon or a lease server hears its operator and its service manager, if
// there is one: SIGHUP, the state of the process, and the watchdog.
type supervision struct {
	notify  func(assignments ...string) (bool, error)
	hangup  <-chan os.Signal // each signal asks for a reload of the configuration
	level   zap.AtomicLevel  // of the log
	log     *zap.Logger
	status  func() string // the process's work, in one line
	files   []reloadedFile
	refused atomic.Bool // the configuration that was read last
}

// reloadedFile is read again at SIGHUP, as the configuration is.
type reloadedFile interface {
	Reload()
	Refused() bool
}

// supervise takes over SIGHUP, but not where the process has a terminal, since the signal reports
// its loss. stop restores its handling.
func supervise(s *system, log *zap.Logger) (p *supervision, stop func()) {
	p = &supervision{notify: systemd.Notify, level: s.level, log: log}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		return p, func() {}
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	p.hangup = hangup
	return p, func() { signal.Stop(hangup) }
}

// tell notifies the service manager, and reports whether there is one.
func (p *supervision) tell(assignments ...string) bool {
	told, err := p.notify(assignments...)
	if err != nil {
		p.log.Warn("the service manager does not hear", zap.Error(err))
	}
	return told
}

// outdated reports whether the configuration, the tokens or the certificates that were read
// last were refused, so that those from before are in force.
func (p *supervision) outdated() bool {
	return p.refused.Load() || slices.ContainsFunc(p.files, reloadedFile.Refused)
}

// line is what systemctl status shows.
func (p *supervision) line() string {
	if p.outdated() {
		return p.status() + "; the configuration that was read last was refused: see the log"
	}
	return p.status()
}

// manage reports the process's state to the service manager from ready until ctx is done, and
// that the stop may then take as long as draining does. The watchdog is fed while the parts
// work; a stop has a timeout of its own.
func (p *supervision) manage(ctx context.Context, ready <-chan struct{}, parts []systemd.Part, draining time.Duration) {
	select {
	case <-ctx.Done():
	case <-ready:
		if p.tell(systemd.Ready, systemd.Status(p.line())) {
			p.watch(ctx, parts)
		}
	}
	<-ctx.Done()
	p.tell(systemd.Stopping, systemd.Status("stopping: requests under way are answered first"),
		systemd.ExtendTimeout(draining+issuer.CloseTimeout+stopPatience))
}

func (p *supervision) watch(ctx context.Context, parts []systemd.Part) {
	interval, err := systemd.WatchdogInterval()
	if err != nil {
		p.log.Warn("the watchdog that is asked for is not understood", zap.Error(err))
	}
	w := systemd.Watch{Watchdog: interval, Parts: parts, Status: p.line, Notify: p.notify, Log: p.log}
	w.Run(ctx)
}

// reloadable are settings of which a running process can change some.
type reloadable[S any] interface {
	Reload(next S) (S, config.Reload)
}

// reloadOn reads the configuration again at each SIGHUP, until ctx is done. apply puts into force
// the settings that a running process can change.
func reloadOn[S reloadable[S]](ctx context.Context, p *supervision, running S, load func() (S, error), apply func(S)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.hangup:
		}
		p.tell(systemd.Reloading()...)
		for _, file := range p.files {
			file.Reload()
		}
		next, err := load()
		p.refused.Store(err != nil)
		if err != nil {
			p.log.Error("the configuration cannot be read again; what was in force stays in force", zap.Error(err))
		} else {
			var changes config.Reload
			running, changes = running.Reload(next)
			apply(running)
			p.logReload(changes)
		}
		p.tell(systemd.Ready, systemd.Status(p.line()))
	}
}

// setLevel changes the level of the log.
func (p *supervision) setLevel(level string) {
	_ = p.level.UnmarshalText([]byte(level)) // the configuration takes no other words
}

// logReload logs the changes of a reload.
func (p *supervision) logReload(r config.Reload) {
	if len(r.Changed)+len(r.Restart) == 0 {
		p.log.Info("configuration read again: nothing has changed")
		return
	}
	p.log.Info("configuration read again", zap.Strings("changed", r.Changed))
	if len(r.Restart) > 0 {
		p.log.Warn("some keys that were changed take effect only after a restart", zap.Strings("restart_needed", r.Restart))
	}
}
