package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/term"

	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/systemd"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// supervision is the daemon's connection to its service manager: the socket that
// the manager opened, and SIGHUP.
type supervision struct {
	socket  *unixsock.Listener            // opened in advance; nil: none
	hangup  <-chan os.Signal              // each signal asks for a reload of the configuration
	load    func() (*config.Serve, error) // reads the configuration
	level   zap.AtomicLevel               // of the log
	notify  func(assignments ...string) (bool, error)
	refused atomic.Bool // the last reload was refused
}

// supervise takes over SIGHUP, and the service manager's socket if there is one. stop
// restores the handling of SIGHUP.
func supervise(s *system, settings *config.Serve) (sup *supervision, stop func(), err error) {
	socket := s.socket
	if err := adopt(settings, socket); err != nil {
		return nil, nil, usageError{err}
	}
	hangup, stop := hangups()
	return &supervision{
		socket: socket, hangup: hangup, level: s.level, notify: systemd.Notify,
		load: func() (*config.Serve, error) {
			next, err := loadServe(s)
			if err == nil {
				err = adopt(next, socket)
			}
			return next, err
		},
	}, stop, nil
}

// adopt sets the socket path to that of the service manager's socket, if there is
// one.
func adopt(settings *config.Serve, socket *unixsock.Listener) error {
	if socket == nil {
		return nil
	}
	if settings.Given("socket") && !samePlace(settings.Socket, socket.Path()) {
		return fmt.Errorf("%s is %s, and the socket that the service manager opened is %s: leave out socket, or make it the ListenStream= of the socket unit",
			settings.Cite("socket"), settings.Socket, socket.Path())
	}
	settings.Socket, settings.SocketInTmp = socket.Path(), false
	return nil
}

// samePlace reports whether two paths name one file, as /var/run/x and /run/x do.
func samePlace(a, b string) bool {
	if a == b {
		return true
	}
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// warnOfIdleKeys warns of settings that the socket unit overrides. Those that also
// apply to the socket of another listener are not idle.
func warnOfIdleKeys(settings *config.Serve, log *zap.Logger) {
	for _, address := range []string{settings.AdminListen, settings.MemcachedListen, settings.HTTPListen} {
		if network, _ := admin.SplitAddress(address); network == "unix" {
			return
		}
	}
	for key, directive := range map[string]string{"socket_mode": "SocketMode=", "socket_group": "SocketGroup="} {
		if settings.Given(key) {
			log.Warn("a key has no effect: the service manager made the socket", zap.String("key", key), zap.String("set_in", settings.Cite(key)), zap.String("use", directive))
		}
	}
}

// hangups catches SIGHUP. It does not where the process has a terminal, whose loss
// the signal reports, or was started with SIGHUP ignored.
func hangups() (_ <-chan os.Signal, stop func()) {
	if signal.Ignored(syscall.SIGHUP) || term.IsTerminal(int(os.Stdin.Fd())) {
		return nil, func() {}
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	return hangup, func() { signal.Stop(hangup) }
}
