package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/doctor"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/kubernetes"
	"github.com/kazahana/kazahana/internal/state"
)

const (
	// markAhead is how far ahead of the clock a mark must be to be reported.
	markAhead = time.Hour
	// stallNoticed is how long a write may take before the disk counts as stalled.
	stallNoticed = 5 * time.Second
)

// keepsState judges the running daemon's words about its state.
func (x *examination) keepsState(st *daemon.Status) {
	const step = "state"
	if x.stalled() {
		x.Fail(step, "Find out why that disk does not answer. IDs go on meanwhile.",
			"the disk of %s has kept a write waiting for %v", st.StateDir, (time.Duration(st.StateStall) * time.Millisecond).Round(time.Second))
	} else if st.StateError+st.LiveError != "" {
		x.Fail(step, "Do what the message says. IDs go on meanwhile; a crash or a power failure may cost leases and the order of IDs.", "the daemon cannot keep its state: %s", cmp.Or(st.StateError, st.LiveError))
	}
}

// stateDir opens the state directory of the next start.
func (x *examination) stateDir() {
	if st := x.status; st != nil && st.StateDir != x.settings.StateDir {
		x.differs("its state is in %s, the configuration says %s", cmp.Or(st.StateDir, "none"), cmp.Or(x.settings.StateDir, "none"))
	}
	switch path := x.settings.StateDir; {
	case x.stalled():
	case path == "":
		x.Warn("state", "Set state_dir, unless the daemon may forget its leases and the order of its IDs at every restart.", "there is no state directory")
	default:
		x.judgeState(path, issuer.LiveDir(x.settings))
	}
}

// stalled reports whether a disk keeps the running daemon waiting. A probe of it would wait, too.
func (x *examination) stalled() bool {
	return x.status != nil && time.Duration(x.status.StateStall)*time.Millisecond > stallNoticed
}

// judgeState opens a directory as a start does, without writing.
func (x *examination) judgeState(path, live string) {
	const step = "state"
	before := len(x.Report)
	used, err := state.Check(path, live, x.who.UID)
	if err != nil {
		x.Fail(step, "Do what the message says: a daemon that starts now ends with it. docs/operations.md has a section on the state directory.", "%v", err)
		return
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o002 != 0 {
		x.Warn(step, "Run chmod o-w on it: any user who can write there can give the daemon leases.", "every user may write to %s (mode %04o)", path, info.Mode().Perm())
	}
	room := x.Room(step, path)
	if !used {
		if len(x.Report) == before {
			x.OK(step, "%s is new (%s)", path, room)
		}
		return
	}
	report, err := state.Inspect(path, state.Options{})
	if err != nil {
		x.Fail(step, "Follow what the message says; docs/operations.md has a section on the state directory.", "%v", err)
		return
	}
	x.judgeReport(report)
	if len(x.Report) == before {
		x.OK(step, "%s: %s; leases and marks in %s", path, room, cmp.Or(report.Live, "no live directory"))
	}
}

// judgeReport judges the content of the state directory.
func (x *examination) judgeReport(report state.Report) {
	const step = "state"
	switch {
	case report.Damage != nil && !x.runs():
		x.Fail(step, "Nothing, where the message says that it is made anew; find out what writes to live_dir, which belongs to the daemon alone.", "%v", report.Damage)
	case report.Live == "":
		x.Warn(step, "Set live_dir to a directory on a file system in memory (tmpfs), for example /run/kazahana-live.", "leases and marks of %s do not survive a kill -9: there is no live directory", report.Dir)
	}
	if report.Holder != nil && !x.runs() {
		x.Fail(step, "Stop that process, or find out why it does not answer; else set another state_dir.", "%s belongs to %s, which does not answer on the socket", report.Dir, report.Holder)
	}
	for _, service := range report.Services {
		if time.Until(time.UnixMilli(service.Mark)) > markAhead {
			x.Fail(step, "Set this host's clock right; if it is right, stop the daemon and run kazahanad state reset-floor, which gives up the order against those IDs.",
				"service %s made IDs that are dated more than %v ahead of this host's clock, and makes none until then", service.Name, markAhead)
		}
	}
}

// provider opens the provider, as far as that changes nothing.
func (x *examination) provider() {
	const step = "provider"
	p, err := openConfigured(x.settings)
	if doctor.LacksCredential(err) {
		x.lacksCredential(step, err)
		return
	}
	if err != nil {
		x.Fail(step, "Correct the provider URL, or the terms in services.", "%v", err)
		return
	}
	defer p.Close()
	if st := x.status; st != nil && st.Provider != p.Info().URL {
		x.differs("it leases from %s, the configuration names %s", st.Provider, p.Info().URL)
	}
	_, inPod := x.system.lookup("KUBERNETES_SERVICE_HOST")
	x.Scope(string(p.Info().Scope), p.Info().URL, inPod)
	x.store(p)
}

// store reaches the store that the provider keeps its grants in.
func (x *examination) store(p provider.Provider) {
	const step = "provider"
	ctx, cancel := context.WithTimeout(x.system.ctx, doctorTimeout)
	defer cancel()
	rawURL, info := x.settings.Provider, p.Info()
	var err error
	switch scheme := schemeOf(rawURL); {
	case scheme == sqlitefile.Scheme:
		x.file(rawURL)
		return
	case slices.Contains(httpconn.Schemes(), scheme):
		cfg, _ := httpconn.ParseURL(rawURL) // the provider has read it
		if !x.LeaseServers(ctx, cfg, &x.clock) {
			return
		}
		// A verification of no leases is the smallest request that needs the token.
		if _, err = provider.Verify(ctx, p, x.settings.DefaultService, nil); errors.Is(err, errors.ErrUnsupported) {
			err = nil // it has answered; a daemon works without verification
		}
	case slices.Contains(kubernetes.Schemes(), scheme):
		if err = checkRights(ctx, rawURL); err == nil {
			err = p.Ready(ctx)
		}
	default:
		err = p.Ready(ctx)
	}
	if err != nil {
		x.Fail(step, "Bring it back, correct the provider URL, or do what the message says; docs/providers has a page for each.", "%v", err)
		return
	}
	x.OK(step, "%s can be used", info.URL)
	if f := p.Fenced(); f != nil {
		x.fence(step, info.URL, f.UntilMS, f.Reason, false)
	}
}

// checkRights asks an API server for each right that the provider needs.
func checkRights(ctx context.Context, rawURL string) error {
	cfg, _, err := kubeconn.ParseURL(rawURL, provider.TermsParams())
	if err != nil {
		return err
	}
	client := kubeconn.New(cfg)
	defer client.Close()
	return client.CheckRights(ctx)
}

// file looks at the file of a provider on SQLite.
func (x *examination) file(rawURL string) {
	const step, do = "provider", "Do what the message says, let the daemon's user read and write the file and its directory, or name another file; docs/providers/sqlite.md has more."
	path, _, err := sqlitefile.ParseURL(rawURL, "")
	switch {
	case err != nil:
		x.Fail(step, "Correct the provider URL.", "%v", err)
		return
	case x.stalled():
		x.Unknown(step, "Run doctor again when the disk answers that keeps the daemon waiting.", "%s is not checked: it may be on that disk", rawURL)
		return
	}
	ctx, cancel := context.WithTimeout(x.system.ctx, doctorTimeout)
	defer cancel()
	err = sqlitefile.CheckFile(path)
	isNew := errors.Is(err, fs.ErrNotExist)
	if isNew {
		err = state.CheckDir(filepath.Dir(path), "name another file")
	}
	room := x.Room(step, path)
	switch {
	case err != nil:
		x.Fail(step, do, "%s: %v", path, err)
	case isNew:
		x.OK(step, "%s is not there yet: the first lease makes it (%s)", path, room)
	default:
		x.content(ctx, path, do)
		if x.Of(step) == doctor.OK {
			x.OK(step, "%s can be used (%s)", path, room)
		}
	}
}

// content judges the content of a provider's file, and its fence.
func (x *examination) content(ctx context.Context, path, do string) {
	const step = "provider"
	if err := checkLeaseFile(ctx, x.settings); sqlitefile.Busy(err) || sqlitefile.Unrecovered(err) {
		x.Unknown(step, "Run doctor again after the next start.", "%s cannot be checked: it is not yet recovered from a crash, which the next start does, or a process has locked it", path)
		return
	} else if err != nil {
		x.Fail(step, do, "%s: %v", path, err)
		return
	}
	if x.runs() {
		return // it says which fences hold
	}
	switch fence, isCopy, err := sqlitefile.Peek(ctx, path); {
	case err != nil:
	case isCopy:
		x.Fail(step, "Wait until it grants again, once it is used; where nothing is missing, say so with: kazahanad leases init.",
			"%s is a copy, or was restored from a backup: once a process uses it, it grants nothing until every lease that it may have forgotten has ended", path)
	default:
		x.fence(step, path, fence.UntilMS, fence.Reason, false)
	}
}

// fence says that a store holds back grants.
func (x *examination) fence(step, where string, untilMS int64, reason string, sequences bool) {
	switch until := time.UnixMilli(untilMS); {
	case x.system.now().Before(until):
		x.Fail(step, "Wait until then; where nothing is missing, say so with: kazahanad leases init (or store init, of locks and sequences). The provider's page in docs/providers has more.", "%s: nothing is granted until %s: %s", where, until.UTC().Format(time.RFC3339), reason)
	case sequences:
		x.Fail(step, "Declare how they go on: kazahanad seq --declare; docs/sequences.md.", "%s: no sequence that was used before goes on until an operator says how: %s", where, reason)
	}
}

// checkLeaseFile returns why a start would not grant the services' leases from the file.
func checkLeaseFile(ctx context.Context, settings *config.Serve) error {
	u, err := url.Parse(settings.Provider)
	if err != nil {
		return err
	}
	options, err := backend.OptionsFor(settings.Provider, "", settings)
	if err != nil {
		return err
	}
	cfg, err := backend.ParseLeaseFile(u, options)
	if err != nil {
		return err
	}
	return cfg.Check(ctx)
}

func schemeOf(url string) string {
	scheme, _, _ := strings.Cut(strings.ToLower(url), ":")
	return scheme
}
