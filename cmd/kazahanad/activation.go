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

// supervision is what a daemon has of whoever started it.
type supervision struct {
	socket  *unixsock.Listener            // opened in advance; nil: none
	hangup  <-chan os.Signal              // at each the configuration is to be read again
	load    func() (*config.Serve, error) // reads it
	level   zap.AtomicLevel               // of the log
	notify  func(assignments ...string) (bool, error)
	refused atomic.Bool // what was read last is not in force
}

// supervise takes over what the service manager has given to the process. load
// reads the configuration. stop gives SIGHUP back.
func supervise(s *system, settings *config.Serve, load func() (*config.Serve, error)) (sup *supervision, stop func(), err error) {
	socket, err := systemd.Socket()
	if err != nil {
		return nil, nil, err
	}
	if err := adopt(settings, socket); err != nil {
		return nil, nil, usageError{err}
	}
	hangup, stop := hangups()
	return &supervision{
		socket: socket, hangup: hangup, level: s.level, notify: systemd.Notify,
		load: func() (*config.Serve, error) {
			next, err := load()
			if err == nil {
				err = adopt(next, socket)
			}
			return next, err
		},
	}, stop, nil
}

// adopt makes the settings those of a daemon with the socket, if there is one.
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

// samePlace reports whether two paths lead to one file: /var/run is /run.
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

// warnOfIdleKeys says which settings the socket unit has in its place, unless
// they are for a socket of admin_listen.
func warnOfIdleKeys(settings *config.Serve, log *zap.Logger) {
	if network, _ := admin.SplitAddress(settings.AdminListen); network == "unix" {
		return
	}
	for key, directive := range map[string]string{"socket_mode": "SocketMode=", "socket_group": "SocketGroup="} {
		if settings.Given(key) {
			log.Warn(key+" has no effect: the service manager made the socket", zap.String("set_in", settings.Cite(key)), zap.String("use", directive))
		}
	}
}

// hangups catches SIGHUP, unless it means what it did before there were daemons:
// that the terminal is gone; or whoever started the process wants it ignored.
func hangups() (_ <-chan os.Signal, stop func()) {
	if signal.Ignored(syscall.SIGHUP) || term.IsTerminal(int(os.Stdin.Fd())) {
		return nil, func() {}
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	return hangup, func() { signal.Stop(hangup) }
}
