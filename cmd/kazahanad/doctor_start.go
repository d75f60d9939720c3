package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/doctor"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/sqlite"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// What follows finds out whether serve would start, by the checks that serve makes itself,
// with the rights of the daemon's user, and without their side effects.

func (x *examination) readUnits() {
	ctx, cancel := context.WithTimeout(x.system.ctx, doctorTimeout)
	defer cancel()
	x.units = doctor.ProbeUnits(ctx)
}

// environ is the environment, with the directories that systemd gives the service.
func (x *examination) environ() []string {
	env := x.system.env
	unit, ok := doctor.Service(x.units)
	if !ok || x.system.uid != 0 && uidOf(unit.User) != x.system.uid {
		return env
	}
	for _, more := range unit.Environ() {
		if name, _, _ := strings.Cut(more, "="); !slices.ContainsFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") }) {
			env = append(slices.Clip(env), more)
		}
	}
	return env
}

// mayRead returns why this user cannot read the configuration's file; "" is none.
func mayRead(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("the configuration: %w", err)
	}
	return f.Close()
}

// checkState returns why the daemon could not start with its directories.
func (x *examination) checkState(s doctor.StateDir) error {
	who, ok := x.account()
	if !ok || s.Path == "" {
		return nil
	}
	live := ""
	switch {
	case x.settings != nil && (x.status == nil || x.settings.Given("live_dir")):
		live = issuer.LiveDir(x.settings)
	case s.Live != "":
		live = filepath.Dir(s.Live)
	}
	return state.Check(s.Path, live, who.uid)
}

// checkFile adds why the daemon could not use the provider's file, unless a failure says so.
func (x *examination) checkFile(ctx context.Context, path string, found []doctor.Finding) []doctor.Finding {
	if _, ok := x.account(); !ok || doctor.Worst(found) == doctor.Fail {
		return found
	}
	var err error
	x.asDaemon(func() {
		if err = sqlitefile.CheckFile(path); errors.Is(err, fs.ErrNotExist) {
			err = state.CheckDir(filepath.Dir(path), "name another file")
		}
	})
	if err != nil {
		return append(found, doctor.Unusable("sqlite.unusable", path, err))
	}
	if err := checkPools(ctx, x.url); errors.Is(err, provider.ErrInvalid) {
		found = append(found, doctor.Unusable("sqlite.refused", path, err))
	}
	return found
}

// checkPools compares a file's pools with what the URL asks for.
func checkPools(ctx context.Context, providerURL string) error {
	u, err := url.Parse(providerURL)
	if err != nil {
		return err
	}
	cfg, err := sqlite.ParseURL(u, nil, nil)
	if err != nil {
		return err
	}
	return cfg.Check(ctx)
}

// places are where the configuration would have a daemon that starts again, and the one that
// runs is not; "" where they agree.
type places struct{ provider, state string }

// again examines those, and adds what would keep the daemon from starting there.
func (x *examination) again() {
	next := *x
	next.status, next.found, next.url = nil, nil, x.next.provider
	if x.next.state != "" {
		next.stateDir()
	}
	if next.url != "" {
		next.provider()
	}
	for _, f := range next.found {
		if f.Level == doctor.Fail {
			x.add(f)
		}
	}
}

// listeners checks the socket and the listeners beside it. What a daemon that runs has
// opened is in nobody's way.
func (x *examination) listeners() {
	who, ok := x.account()
	if !ok || x.settings == nil {
		return
	}
	s, opened := x.settings, doctor.OpensSocket(x.units)
	if x.status != nil {
		opened = opened || !s.Given("socket") || s.Socket == x.status.Socket
	}
	if !opened && doctor.Worst(x.found) != doctor.Fail {
		if err := x.checkSocket(s.Socket, unixsock.Options{Group: s.SocketGroup, Private: s.SocketInTmp}, who); err != nil {
			x.add(doctor.Unusable("socket.unusable", s.Socket, err))
		}
	}
	for _, l := range besides(s) {
		var err error
		if path, isPath := strings.CutPrefix(l.address, "unix:"); isPath {
			err = x.checkSocket(path, unixsock.Options{Group: s.SocketGroup, Flag: l.flag()}, who)
		} else if err = tryPort(l.address); x.runs && errors.Is(err, syscall.EADDRINUSE) && doctor.Listens(x.peer.PID, l.address) {
			err = nil
		}
		if err == nil && !x.mayBind(l.address, who) {
			err = fmt.Errorf("listen on %s: user %d may not have a port below %d; choose another, or give the unit AmbientCapabilities=CAP_NET_BIND_SERVICE",
				l.address, who.uid, doctor.FirstPort())
		}
		if err != nil {
			x.add(doctor.Unusable("listen.unusable", l.key, err))
		}
	}
}

// mayBind reports whether the daemon's user may have the port. A process that is that user has
// tried.
func (x *examination) mayBind(address string, who account) bool {
	tcp, err := net.ResolveTCPAddr("tcp", address) // an error for a path
	if err != nil || x.system.uid != 0 || who.uid == 0 || tcp.Port == 0 || tcp.Port >= doctor.FirstPort() {
		return true
	}
	unit, _ := doctor.Service(x.units)
	return slices.Contains(unit.Capabilities, "cap_net_bind_service") || x.runs && doctor.BindsAnyPort(x.peer.PID)
}

func (x *examination) checkSocket(path string, o unixsock.Options, who account) (err error) {
	x.asDaemon(func() {
		err = unixsock.Check(path, o, who.uid, who.groups)
		if used, ok := errors.AsType[*unixsock.InUseError](err); ok && x.runs && used.PID == x.peer.PID {
			err = nil
		}
		if err == nil {
			err = state.CheckDir(filepath.Dir(path), "set another path")
		}
	})
	return err
}
