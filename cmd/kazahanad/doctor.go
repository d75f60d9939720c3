package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/address"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/folder"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/doctor"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/unixsock"
	"github.com/kazahana/kazahana/internal/wire"
)

type doctorCmd struct {
	config.Serve
	JSON bool `name:"json" help:"Print JSON."`
}

// Help is the text below the usage line.
func (*doctorCmd) Help() string {
	return `Takes the steps of a start one by one, without their effects, and says of each whether it would work, ` +
		`else what to do. Looks at the running daemon and the clock of this host besides. Run it with the ` +
		`daemon's flags, environment and user. Exits 1 if anything fails.`
}

// doctorTimeout is how long the daemon, and the provider, may take to answer.
const doctorTimeout = 10 * time.Second

// Run takes the steps and prints the findings.
func (c *doctorCmd) Run(s *system) error {
	ctx, cancel := context.WithTimeout(s.ctx, doctorTimeout)
	defer cancel()
	x := &examination{system: s, clock: doctor.ProbeClock(), units: doctor.ProbeUnits(ctx)} // before the socket: a connection starts the service
	env := x.environ()
	x.load(env)
	x.askDaemon()
	if st := x.status; st != nil && st.StateDir != "" && x.settings != nil && !x.settings.Given("state_dir") { // its default depends on the user
		x.load(append([]string{"KAZAHANA_STATE_DIR=" + st.StateDir}, env...))
	}
	who, known := x.account()
	x.who, x.stranger = who, !known || who.UID != s.uid
	if known && x.stranger && s.uid == 0 {
		code, err := x.again(env)
		if err == nil {
			return exitStatus{code: code}
		}
		x.unable = err
	}
	x.examine()
	if c.JSON {
		if err := printJSON(s.out, map[string]any{"worst": x.Of(""), "findings": x.Report}); err != nil {
			return err
		}
	} else if err := x.Print(s.out); err != nil {
		return err
	}
	if x.Of("") == doctor.Fail {
		return errors.New("") // the findings have been printed
	}
	return nil
}

// examination is one run.
type examination struct {
	doctor.Report
	system   *system
	settings *config.Serve // nil: the configuration cannot be used
	invalid  error         // why
	units    []doctor.Unit
	clock    doctor.Clock

	path   string         // of the socket that was asked; "" = none
	status *daemon.Status // nil: no daemon answers
	peer   unixsock.Peer  // the daemon, as seen from here; of use with a status
	silent error          // why a daemon does not answer
	denied bool           // a daemon runs, and does not let this user in

	who      doctor.Account // the daemon's user
	stranger bool           // this process has not that user's rights
	unable   error          // why root's doctor cannot run as that user
}

// load reads the configuration.
func (x *examination) load(env []string) {
	var again doctorCmd
	process := x.system.process()
	process.Environ = env
	if x.invalid = again.Load(&again, x.system.args[1:], process); x.invalid == nil {
		x.settings = &again.Serve
	}
}

// again has root's doctor run once more as the daemon's user: the rights of that user decide.
func (x *examination) again(env []string) (code int, err error) {
	cmd, err := x.who.Again(x.system.ctx, x.system.args, env)
	if err == nil {
		err = cmd.Run()
	}
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// examine takes the steps of a start, if this process has the rights of the daemon's user.
func (x *examination) examine() {
	x.configuration()
	x.socket()
	x.daemon()
	switch {
	case x.unable != nil:
		x.Unknown("account", "Run doctor as the daemon's user.", "doctor cannot run as the daemon's user (UID %d): %v", x.who.UID, x.unable)
	case x.stranger && x.Of("account") == doctor.OK:
		x.Unknown("account", "Run doctor as root or as the daemon's user.", "this user cannot find out what the daemon's user may do: whether it would start is not known")
	case !x.stranger && x.settings != nil:
		x.makeSocket()
		x.listeners()
		x.stateDir()
		x.provider()
	}
	x.Clock(x.clock)
}

// account is the daemon's user: the running one's, else the unit's, else this process's.
func (x *examination) account() (who doctor.Account, known bool) {
	unit, installed := doctor.Service(x.units)
	switch {
	case x.denied && int(x.peer.UID) != x.system.uid:
		return who, false
	case x.runs():
		return doctor.AccountOf(x.peer.PID, int(x.peer.UID)), true
	case installed && unit.User != "":
		if who, known = unit.Account(); !known && !unit.Dynamic { // which is there while the service runs
			x.Fail("account", "Make it: systemd-sysusers, or useradd --system; or name another by User= in a drop-in.", "%s runs as user %s, and there is no such user", unit.Name, unit.User)
		}
		return who, known
	}
	return doctor.AccountOf(os.Getpid(), x.system.uid), true
}

// environ is the environment, with what systemd gives the service.
func (x *examination) environ() []string {
	env := x.system.env
	unit, ok := doctor.Service(x.units)
	if who, _ := unit.Account(); !ok || x.system.uid != 0 && who.UID != x.system.uid {
		return env
	}
	for _, more := range unit.Environ() {
		if name, _, _ := strings.Cut(more, "="); !slices.ContainsFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") }) {
			env = append(slices.Clip(env), more)
		}
	}
	return env
}

// askDaemon asks at the configured socket or, if that does not exist, at the socket that a client
// of this user would find.
func (x *examination) askDaemon() {
	if x.settings != nil {
		x.path = x.settings.Socket
	}
	if _, err := os.Stat(x.path); err != nil {
		if found, err := address.Find(x.system.lookup, x.system.uid); err == nil {
			x.path = found
		}
	}
	ctx, cancel := context.WithTimeout(x.system.ctx, doctorTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", x.path)
	if err != nil {
		x.silent, x.denied = err, errors.Is(err, os.ErrPermission)
		return
	}
	x.peer, _ = unixsock.PeerOf(conn.(*net.UnixConn))
	client := wire.NewClient(conn)
	defer client.Close()
	var status daemon.Status
	if x.silent = client.Call(ctx, "Status", &status); x.silent != nil {
		refusal, is := errors.AsType[*wire.Error](x.silent)
		x.denied = is && refusal.Code == wire.CodePermissionDenied
		return
	}
	x.status = &status
	if x.peer.PID == 1 && status.PID != 1 { // the service manager has opened the socket
		x.peer = unixsock.Peer{PID: status.PID}
		if info, err := os.Stat(fmt.Sprintf("/proc/%d", status.PID)); err == nil {
			x.peer.UID = info.Sys().(*syscall.Stat_t).Uid
		}
	}
}

// configuration reads what serve reads first.
func (x *examination) configuration() {
	const step = "config"
	read, err := "no file", x.invalid
	if x.settings != nil {
		read = cmp.Or(x.settings.Config, read)
		for _, one := range []error{checkNamed(x.settings), checkStore(x.settings)} {
			if doctor.LacksCredential(one) {
				x.lacksCredential(step, one)
			} else {
				err = errors.Join(err, one)
			}
		}
	}
	if err != nil {
		x.Fail(step, "Correct what is named; kazahanad serve --check says the same.", "%v", err)
	} else {
		x.OK(step, "the configuration is valid (%s)", read)
	}
}

func (x *examination) lacksCredential(step string, err error) {
	x.Unknown(step, "Run doctor again while the service runs.", "systemd gives the service its credentials when it starts: %v", err)
}

// socket judges the socket of the running daemon and its permissions.
func (x *examination) socket() {
	const step = "socket"
	info, err := os.Stat(x.path)
	switch {
	case x.denied:
		x.Warn(step, "Let this user connect if it should: put it into the group that is named, or into allow_uids or allow_gids.", "this user may not connect to %s; %s", x.path, address.DenialHint(x.path))
	case x.status != nil && err == nil:
		x.reach(step, info)
	case err == nil && info.Mode().Type() == os.ModeSocket && errors.Is(x.silent, syscall.ECONNREFUSED):
		x.Warn(step, "Start the daemon; it replaces the socket that was left.", "no process listens on %s: the daemon that made it is gone", x.path)
	case err == nil && info.Mode().Type() == os.ModeSocket:
		x.Fail(step, "Look at the daemon's log; restart it.", "%s does not answer: %v", x.path, x.silent)
	case x.path != "" && err != nil:
		x.Warn(step, "Start the daemon: systemctl start kazahanad, or kazahanad serve.", "there is no socket at %s: no daemon runs", x.path)
	}
}

// makeSocket looks whether the daemon could make its socket.
func (x *examination) makeSocket() {
	const step = "socket"
	if doctor.OpensSocket(x.units) || x.status != nil && (!x.settings.Given("socket") || x.settings.Socket == x.status.Socket) {
		return
	}
	err := x.checkSocket(x.settings.Socket, unixsock.Options{Group: x.settings.SocketGroup, Private: x.settings.SocketInTmp})
	if err != nil && x.Of(step) != doctor.Fail {
		x.Fail(step, "Do what the message says, or set another socket.", "%s: %v", x.settings.Socket, err)
	}
}

// reach judges who may connect to a daemon that answers.
func (x *examination) reach(step string, info os.FileInfo) {
	owner, mode, limited := info.Sys().(*syscall.Stat_t), info.Mode().Perm(), x.settings != nil && len(x.settings.AllowUIDs)+len(x.settings.AllowGIDs) > 0
	x.OK(step, "%s answers (%s); mode %04o, user %d, group %d", x.path, x.status.Mode, mode, owner.Uid, owner.Gid)
	everybody := mode&0o002 != 0
	own := strings.HasPrefix(x.path, "/run/user/") || x.path == address.InTmp(x.system.uid) // for its own user only
	if !own || x.settings != nil && x.settings.Given("socket_group") {
		who, group := fmt.Sprintf("group %d", owner.Gid), owner.Gid
		if everybody {
			who, group = "every user", ^uint32(0) // a group that no directory has
		}
		if barrier, closed := folder.Barrier(x.path, group); barrier != "" && (everybody || mode&0o020 != 0 && owner.Gid != 0) {
			x.Warn(step, "Let them enter the directory that is named (chmod o+x, or a group of theirs), or set another socket.",
				"%s may use %s, but may not enter the directory %s (mode %04o)", who, x.path, barrier, closed)
		}
	}
	switch {
	case everybody && !limited:
		x.Warn(step, "Set socket_mode to 0660 and socket_group to the group of the programs that need IDs, or name them in allow_uids and allow_gids.",
			"every user of this host can connect to %s (mode %04o)", x.path, mode)
	case !everybody && owner.Uid == 0 && (owner.Gid == 0 || mode&0o020 == 0):
		x.Warn(step, "Set socket_group to a group of the programs that need IDs.", "only root can connect to %s (mode %04o, group %d)", x.path, mode, owner.Gid)
	}
}

// checkSocket returns the error of a start that makes a socket. The running daemon's own socket
// is not in the way.
func (x *examination) checkSocket(path string, o unixsock.Options) error {
	err := unixsock.Check(path, o, x.who.UID, x.who.Groups)
	if used, ok := errors.AsType[*unixsock.InUseError](err); ok && x.runs() && used.PID == x.peer.PID {
		err = nil
	}
	if err == nil {
		err = state.CheckDir(filepath.Dir(path), "set another path")
	}
	return err
}

// daemon judges the running daemon's description of itself.
func (x *examination) daemon() {
	const step, mend = "daemon", "Mend what keeps leases from being granted; see the findings about the provider. Where no fallback ID may be made twice, set fallback: none until then."
	if x.status == nil {
		return
	}
	st, cause := x.status, "no cause is known"
	for _, svc := range st.Services {
		if svc.Cause != "" {
			cause = "service " + svc.Service + ": " + svc.Cause
		}
	}
	switch st.Mode {
	case "regular":
		x.OK(step, "process %d issues regular IDs", st.PID)
	case "starting":
		x.OK(step, "process %d waits for its first lease", st.PID)
	case "unavailable", "fallback_cached_uncertain": // another host may make the same ones
		x.Fail(step, mend, "process %d has no lease, and is in mode %s: %s", st.PID, st.Mode, cause)
	default:
		x.Warn(step, mend, "process %d issues fallback IDs (%s): %s", st.PID, st.Mode, cause)
	}
	for _, hit := range st.Overload {
		x.Warn(step, "The log says who has used it up; docs/operations.md lists the limits.", "%s", hit)
	}
	for _, f := range st.Fences {
		x.fence(step, f.File, f.UntilMS, f.Reason, f.Sequences)
	}
	if st.Version != version {
		x.Warn(step, "Restart the daemon, so that it runs the version that is installed.", "process %d runs version %s, and %s is installed", st.PID, st.Version, version)
	}
	x.keepsState(st)
}

// differs says how the running daemon's settings differ from these.
func (x *examination) differs(format string, args ...any) {
	x.Warn("config", "Restart the daemon if the configuration was changed; else run doctor with the daemon's flags, environment and user.",
		"the running daemon has other settings: "+format, args...)
}

// listeners opens what listens beside the socket, and closes it.
func (x *examination) listeners() {
	for _, l := range besides(x.settings) {
		var err error
		if path, isPath := strings.CutPrefix(l.address, "unix:"); isPath {
			err = x.checkSocket(path, unixsock.Options{Group: x.settings.SocketGroup, Flag: l.flag()})
		} else {
			err = x.checkPort(l.address)
		}
		if err != nil {
			x.Fail("listen", "Do what the message says, or choose another address.", "%s: %v", l.key, explain(err))
		}
	}
}

// checkPort returns the error of a start that listens on HOST:PORT. While a daemon runs, an
// address that is taken counts as its own; and a service may have a right that its user lacks.
func (x *examination) checkPort(address string) error {
	l, err := listen(address, unixsock.Options{})
	if err == nil {
		return l.Close()
	}
	unit, _ := doctor.Service(x.units)
	if x.runs() && errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) && slices.Contains(unit.Capabilities, "cap_net_bind_service") {
		return nil
	}
	return err
}

// runs reports whether a daemon runs, though it may not let this process in.
func (x *examination) runs() bool { return x.status != nil || x.denied }
