package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/kazahana/kazahana/internal/address"
	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/doctor"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/etcd"
	"github.com/kazahana/kazahana/internal/provider/httplease"
	"github.com/kazahana/kazahana/internal/provider/postgres"
	"github.com/kazahana/kazahana/internal/provider/redis"
	"github.com/kazahana/kazahana/internal/provider/sqlite"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/unixsock"
	"github.com/kazahana/kazahana/internal/wire"
)

type doctorCmd struct {
	config.Serve
	JSON bool `name:"json" help:"Print JSON."`
}

// Help is the text that kong prints below the usage line.
func (*doctorCmd) Help() string {
	return `Checks the configuration, the socket, the running daemon, its state, its provider, ` +
		`the clock and the limits of this host, and says what to do. It changes nothing. Run it with the ` +
		`daemon's flags, environment and user. Exits 1 if anything fails.`
}

// doctorTimeout is how long the daemon, and the provider, may take to answer.
const doctorTimeout = 10 * time.Second

// Run checks everything and prints the findings.
func (c *doctorCmd) Run(s *system) error {
	x := &examination{system: s, place: doctor.ProbePlace(s.lookup), clock: doctor.ProbeClock()}
	x.readUnits() // before the socket: a connection starts the service
	var again doctorCmd
	process := s.process()
	process.Environ = x.environ()
	x.settle(&again.Serve, again.Load(&again, s.args[1:], process))
	x.socket()
	x.configuration()
	x.add(doctor.JudgeUnits(x.units, x.status != nil)...)
	x.daemon()
	x.doors()
	x.listeners()
	x.stateDir()
	x.provider()
	x.again()
	x.judgeAccount()
	x.found = append(x.found, doctor.JudgeClock(x.clock)...)
	x.layouts()
	x.files()
	if err := x.print(c.JSON); err != nil {
		return err
	}
	if doctor.Worst(x.found) == doctor.Fail {
		return errors.New("") // the findings have been printed
	}
	return nil
}

// examination is one run of the checks.
type examination struct {
	system   *system
	settings *config.Serve // nil: the configuration cannot be used
	invalid  error         // why
	units    []doctor.Unit
	denied   bool          // another user's daemon runs, and does not let this one in
	url      string        // of the provider, to be looked at; "" = none
	info     provider.Info // of that
	state    doctor.StateDir
	place    doctor.Place
	clock    doctor.Clock
	status   *daemon.Status // nil: no daemon answers
	runs     bool           // a daemon answers, and its user is that of the peer
	next     places         // of a restart
	unlike   bool           // this process could not take the rights of the daemon's user
	peer     unixsock.Peer  // the daemon, as seen from here; of use with a status
	found    []doctor.Finding
}

func (x *examination) add(found ...doctor.Finding) { x.found = append(x.found, found...) }

// settle takes the settings over.
func (x *examination) settle(settings *config.Serve, err error) {
	if err == nil {
		x.settings, x.url = settings, settings.Provider
	}
	x.invalid = err
}

// configuration judges the settings by the checks of serve.
func (x *examination) configuration() {
	read, err := "no file", x.invalid
	if x.settings != nil {
		read = cmp.Or(x.settings.Config, read)
		x.asDaemon(func() {
			for _, one := range []error{mayRead(x.settings.Config), checkNamed(x.settings), checkStore(x.settings)} {
				if doctor.LacksCredential(one) {
					x.add(doctor.UnknownCredential(one))
				} else {
					err = errors.Join(err, one)
				}
			}
		})
	}
	x.found = slices.Insert(x.found, 0, doctor.JudgeConfiguration(read, err))
}

// socketPath is the configured socket or, if that does not exist, the one that a
// client of this user would find.
func (x *examination) socketPath() string {
	path := ""
	if x.settings != nil {
		path = x.settings.Socket
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	if found, err := address.Find(x.system.lookup, x.system.uid); err == nil {
		return found
	}
	return path
}

func (x *examination) socket() {
	path := x.socketPath()
	if path == "" {
		return
	}
	s := doctor.ProbeSocket(path)
	s.Hint = address.DenialHint(path)
	if own := strings.HasPrefix(path, "/run/user/") || path == address.InTmp(x.system.uid); !own || x.settings != nil && x.settings.Given("socket_group") {
		s.ProbeBarrier()
	}
	s.Limited = x.settings != nil && len(x.settings.AllowUIDs)+len(x.settings.AllowGIDs) > 0
	answered := ""
	if s.Exists && s.Mode.Type() == os.ModeSocket {
		x.ask(&s)
	}
	if x.status != nil {
		answered = x.status.Mode
	}
	x.denied = s.Denied
	x.add(doctor.JudgeSocket(s, answered)...)
}

// ask asks the daemon for its status.
func (x *examination) ask(s *doctor.Socket) {
	ctx, cancel := context.WithTimeout(x.system.ctx, doctorTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Path)
	if err != nil {
		s.Denied, s.Refused = errors.Is(err, os.ErrPermission), !errors.Is(err, os.ErrPermission)
		return
	}
	peer, peerErr := unixsock.PeerOf(conn.(*net.UnixConn))
	client := wire.NewClient(conn)
	defer client.Close()
	var status daemon.Status
	err = client.Call(ctx, "Status", &status)
	var refusal *wire.Error
	switch {
	case errors.As(err, &refusal) && refusal.Code == wire.CodePermissionDenied:
		s.Denied, s.Hint = true, "the daemon's allow_uids and allow_gids keep it out"
	case err != nil:
		s.Err = err
	default:
		x.status, x.peer, x.runs = &status, peer, true
		if peer.PID == 1 && status.PID != 1 {
			x.peer = ofProcess(status.PID) // the service manager has opened the socket
		}
		s.Err = peerErr
	}
}

// ofProcess is the process as its peers would see it, as far as this user may read
// that.
func ofProcess(pid int) unixsock.Peer {
	peer := unixsock.Peer{PID: pid}
	if info, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		peer.UID = info.Sys().(*syscall.Stat_t).Uid
	}
	return peer
}

func (x *examination) daemon() {
	if x.status == nil {
		return
	}
	d := doctor.Daemon{
		PID: x.status.PID, Version: x.status.Version, Installed: version, Mode: x.status.Mode,
		Provider: x.status.Provider, StateDir: x.status.StateDir, ConfiguredStates: x.status.StateDir,
	}
	for _, svc := range x.status.Services {
		if svc.Cause != "" {
			d.Cause = "service " + svc.Service + ": " + svc.Cause
		}
	}
	for _, hit := range x.status.Overload {
		d.Overload = append(d.Overload, hit.String())
	}
	configured := ""
	if x.settings != nil {
		if p, err := backend.OpenProvider(x.settings.Provider, backend.ProviderOptions{}); err == nil {
			configured = p.Info().URL
			_ = p.Close() // nothing was opened
		}
		// A default depends on who asks: systemd gives the daemon its directory.
		states := x.settings.Given("state_dir")
		if states {
			d.ConfiguredStates = x.settings.StateDir
		}
		if states || x.settings.Given("provider") {
			d.ConfiguredFor = configured
			if configured != d.Provider {
				x.next.provider = x.settings.Provider
			}
		}
		if states && !doctor.SamePlace(x.peer.PID, d.StateDir, d.ConfiguredStates) {
			x.next.state = d.ConfiguredStates
		}
	}
	x.add(doctor.JudgeDaemon(d)...)
	for _, f := range x.status.Fences {
		x.add(doctor.JudgeFence(doctor.Fence{
			File: f.File, UntilMS: f.UntilMS, Reason: f.Reason, Sequences: f.Sequences, NowMS: x.system.now().UnixMilli(),
		})...)
	}
	if d.Provider != configured {
		// The running daemon's word counts. Its URL leaves out secrets, so only that
		// of a file, which has none, can be opened.
		x.url = ""
		if schemeOf(d.Provider) == sqlitefile.Scheme {
			x.url = d.Provider
		}
	}
}

func (x *examination) stateDir() {
	var path string
	switch {
	case x.status != nil:
		path = x.status.StateDir
	case x.settings != nil:
		path = x.settings.StateDir
	default:
		return
	}
	s := doctor.ProbeStateDir(path)
	if x.status != nil {
		s.Stalled, s.WriteError = time.Duration(x.status.StateStall)*time.Millisecond, x.status.StateError
		s.LiveError = x.status.LiveError
	}
	who, _ := x.account()
	s.DaemonUID, s.Known, s.Kubernetes = uint32(who.uid), x.status != nil, x.place.Kubernetes
	s.Lost = s.Known && !s.Exists && doctor.LostTo(x.peer.PID, path)
	if x.denied {
		s.Holder = "" // it answers others
	}
	if s.Exists || !s.Known {
		x.asDaemon(func() { s.Start = x.checkState(s) })
	}
	x.state = s
	x.add(doctor.JudgeStateDir(s)...)
}

func (x *examination) provider() {
	if x.url == "" {
		if x.status == nil {
			return
		}
		x.add(doctor.JudgeScope(x.status.Scope, x.status.Provider, x.place))
		if !slices.Contains([]string{"static", "ip", "memory", "none"}, schemeOf(x.status.Provider)) { // which have no store
			x.add(doctor.Unlooked(x.status.Provider))
		}
		return
	}
	var p provider.Provider
	var err error
	x.asDaemon(func() { p, err = openConfigured(x.url, x.settings) })
	if doctor.LacksCredential(err) {
		x.add(doctor.UnknownCredential(err))
		return
	}
	if err != nil {
		x.add(doctor.InvalidProvider(err))
		return
	}
	defer p.Close()
	x.info = p.Info()
	x.add(doctor.JudgeScope(string(x.info.Scope), x.info.URL, x.place))
	ctx, cancel := context.WithTimeout(x.system.ctx, doctorTimeout)
	defer cancel()
	x.add(x.store(ctx, p)...)
	if terms, err := backend.Terms(x.url); err == nil && x.info.Can.List && x.info.Scope == provider.ScopeShared && takesIDs(x.url) {
		if records, err := p.List(ctx, x.service()); err == nil {
			u := provider.UsageOf(records, &terms, x.system.now().UnixMilli())
			x.add(doctor.JudgePool(x.info.URL, string(u.Fullness()), u.Free, u.Total)...)
		}
	}
}

func schemeOf(url string) string {
	scheme, _, _ := strings.Cut(strings.ToLower(url), ":")
	return scheme
}

// store checks the store that the provider keeps its grants in.
func (x *examination) store(ctx context.Context, p provider.Provider) []doctor.Finding {
	ready := func(ctx context.Context) error { return p.Ready(ctx) }
	switch scheme := schemeOf(x.url); {
	case scheme == sqlitefile.Scheme:
		path, _, err := sqlitefile.ParseURL(x.url, "")
		if err != nil {
			return []doctor.Finding{doctor.InvalidProvider(err)}
		}
		if x.state.Stalls() && doctor.OneDisk(path, x.state.Path) {
			return []doctor.Finding{doctor.Stalled(x.url)}
		}
		id, latest := sqlite.Header()
		probed := doctor.ProbeSQLite(ctx, path)
		if x.status != nil {
			probed.Fence = doctor.Fence{} // the daemon's status has it
			return x.checkFile(ctx, path, doctor.JudgeSQLite(probed, id, latest))
		}
		store := doctor.ProbeStoreFence(ctx, sqlitefile.StoreBeside(path))
		return x.checkFile(ctx, path, append(doctor.JudgeSQLite(probed, id, latest), doctor.JudgeFence(store)...))
	case slices.Contains(redis.Schemes(), scheme):
		cfg, err := redis.ParseURL(x.url, nil)
		if err != nil {
			return []doctor.Finding{doctor.InvalidProvider(err)}
		}
		return doctor.JudgeRedis(doctor.ProbeRedis(ctx, cfg.Config, ready, &x.clock))
	case scheme == "etcd":
		cfg, err := etcd.ParseURL(x.url, nil, nil)
		if err != nil {
			return []doctor.Finding{doctor.InvalidProvider(err)}
		}
		return doctor.JudgeEtcd(doctor.ProbeEtcd(ctx, cfg.Config, ready))
	case slices.Contains(postgres.Schemes(), scheme):
		cfg, err := postgres.ParseURL(x.url, nil)
		if err != nil {
			return []doctor.Finding{doctor.InvalidProvider(err)}
		}
		return doctor.JudgePostgres(doctor.ProbePostgres(ctx, cfg.Config, &x.clock))
	case slices.Contains(httplease.Schemes(), scheme):
		cfg, err := httplease.ParseURL(x.url)
		if err != nil {
			return []doctor.Finding{doctor.InvalidProvider(err)}
		}
		// A verification of no leases is the smallest request that needs the token.
		present := func(ctx context.Context) error {
			_, err := provider.Verify(ctx, p, x.service(), nil)
			if errors.Is(err, errors.ErrUnsupported) {
				return nil // it has answered; a daemon works without verification
			}
			return err
		}
		var found []doctor.Finding
		for _, server := range doctor.ProbeHTTP(ctx, cfg.Config, present, &x.clock) {
			found = append(found, doctor.JudgeHTTP(server, x.system.now())...)
		}
		return found
	}
	return nil
}

func (x *examination) service() string {
	if x.settings == nil {
		return "default"
	}
	return x.settings.DefaultService
}

func (x *examination) layouts() {
	now := x.system.now()
	if x.status != nil {
		for _, svc := range x.status.Services {
			x.add(doctor.JudgeLayout(svc.Service, time.UnixMilli(svc.ExhaustedMS), now))
		}
		return
	}
	if x.settings == nil {
		return
	}
	services := x.settings.Services()
	for _, name := range slices.Sorted(maps.Keys(services)) {
		timeline := snowflake.Timeline{EpochMS: services[name].DefaultEpoch.UnixMilli(), BitTS: services[name].BitTS}
		x.add(doctor.JudgeLayout(name, time.UnixMilli(timeline.EndMS()), now))
	}
}

func (x *examination) files() {
	if x.settings == nil {
		return
	}
	if x.status == nil {
		x.add(doctor.JudgeFiles(doctor.ProbeFiles(0, x.settings.MaxConnections)))
		return
	}
	// The peer's process ID, as this PID namespace sees it: the daemon's own number
	// may be from another container.
	x.add(doctor.JudgeFiles(doctor.ProbeFiles(cmp.Or(x.peer.PID, -1), x.settings.MaxConnections)))
}

func (x *examination) print(asJSON bool) error {
	if asJSON {
		return printJSON(x.system.out, map[string]any{"worst": doctor.Worst(x.found), "findings": x.found})
	}
	return printFindings(x.system.out, x.found)
}

func printFindings(out io.Writer, found []doctor.Finding) error {
	counts := map[doctor.Level]int{}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range found {
		counts[f.Level]++
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Code, f.Says)
		if f.Do != "" {
			fmt.Fprintf(w, "\t\t-> %s\n", f.Do)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%d ok, %d unknown, %d warn, %d fail\n", counts[doctor.OK], counts[doctor.Unknown], counts[doctor.Warn], counts[doctor.Fail])
	return err
}
