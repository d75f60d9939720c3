package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// content is everything below the site's directory, as it is.
func (s *site) content() map[string]string {
	s.T.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(s.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		owner := info.Sys().(*syscall.Stat_t)
		var text []byte
		if info.Mode().IsRegular() {
			text, err = os.ReadFile(path)
		}
		all[path] = fmt.Sprintf("%v %d:%d %v %x", info.Mode(), owner.Uid, owner.Gid, info.ModTime(), text)
		return err
	})
	must.Succeed(s.T, err)
	return all
}

// The life of a daemon with nothing configured, seen by doctor: which changes
// nothing before, after, and where a crash left something.
func TestDoctor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	unchanged := func(codes ...string) {
		t.Helper()
		before := s.content()
		s.Examined(nil).Has(codes...)
		if after := s.content(); !maps.Equal(after, before) {
			t.Errorf("doctor changed something: before\n%v\nafter\n%v", before, after)
		}
	}
	unchanged("config ok", "socket warn", "state ok", "provider ok", "no daemon ok")

	d := s.Start()
	s.Dial().ID()
	s.Examined(nil).Has("socket ok", "daemon ok", "no provider fail", "no config warn", "no state fail")
	// What the daemon says of itself counts.
	s.Examined(nil, "--provider", "static:5").Has("config warn", "no provider unknown")
	s.Examined(nil, "--provider", "static:5", "--state-dir", "none").Has("config warn", "state warn")
	said := s.Kazahanad("doctor", "--config", "none", "--provider", "static:5").OK(t)
	for _, want := range []string{"ok ", "daemon ", "-> Restart the daemon", " 0 fail\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("doctor does not say %q:\n%s", want, said)
		}
	}
	d.Kill()
	unchanged("socket warn", "no provider fail", "no state fail")

	// A configuration that is wrong keeps nothing else from being looked at.
	bad := s.Examined([]string{"KAZAHANA_MAX_BACKWARD=soon"})
	bad.Has("config fail", "socket warn")
	if bad.Code != exitFailure {
		t.Errorf("exit code %d", bad.Code)
	}
	s.Examined([]string{"KAZAHANA_PROVIDR=x"}).Has("config fail")

	testkit.WriteFile(t, filepath.Join(s.State, "state"), "x")
	unchanged("state fail")
}

// A daemon has its state directory from the service manager, and doctor, run by hand,
// has not.
func TestDoctorWithoutTheServiceManager(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	serve := s.Command("serve", "--config", "none", "--socket", s.Socket, "--startup-wait", "30s")
	serve.Env = s.Environment("STATE_DIRECTORY=" + s.State)
	s.LaunchCommand(serve).AwaitReady()
	s.Dial().ID()
	withoutStates := []string{"KAZAHANA_STATE_DIR="}
	s.Examined(withoutStates).Has("daemon ok", "no config warn", "no provider unknown")
	s.Examined(withoutStates, "--provider", "static:5").Has("config warn")
	s.Examined(nil, "--state-dir", s.Path("other")).Has("config warn")
}

// systemd makes credentials at the start: before, they are unknown.
func TestDoctorOfCredentials(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const secret = "/run/credentials/kazahanad.service/no-such-credential"
	s.Examined(nil, "--external-secret-file", secret).Has("config unknown", "no config fail")
	s.Examined(nil, "--provider", "http://127.0.0.1:1?token_file="+secret).Has("config unknown", "no provider fail")
	s.Examined(nil, "--external-secret-file", secret, "--socket-group", "no-such-group").Has("config unknown")
}

func TestDoctorSocket(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start("--socket-mode", "0666")
	s.Examined(nil).Has("socket warn")
	s.Examined(nil, "--allow-uids", "0").Has("no socket warn")
	d.Terminate()
	if os.Geteuid() != 0 {
		return
	}
	d = s.Start()
	s.Examined(nil).Has("socket warn")
	d.Terminate()

	closed := s.Path("closed")
	must.Succeed(t, os.Mkdir(closed, 0o700))
	s.Socket = filepath.Join(closed, "d.sock")
	s.Start("--socket-group", "12345")
	s.Examined(nil).Has("socket warn")
	must.Succeed(t, os.Chmod(closed, 0o711))
	open := s.Examined(nil)
	for dir := s.Dir; dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
			return // the tests' own directory is closed
		}
	}
	open.Has("no socket warn")
}

// Another user is told what could not be looked at, and no more than that.
func TestDoctorAsSomebodyElse(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	d := s.Start()
	s.Dial().ID()
	nobody := asNobody(t, s.Command("doctor", "--json"))
	found := s.ExaminedBy(nobody, nil)
	found.Has("socket warn", "account unknown", "no socket ok", "no state ok", "no state fail", "no provider ok", "no provider fail")
	if found.Code != exitOK {
		t.Errorf("exit code %d", found.Code)
	}
	d.Terminate()
	s.Start("--socket-mode", "0666", "--allow-uids", "0")
	s.ExaminedBy(asNobody(t, s.Command("doctor", "--json")), nil).Has("socket warn")
}

// A daemon's user is its process's, and not a caller's.
func TestDoctorOfADaemonWithAnotherUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	testkit.Mkdir(t, s.State)
	for _, path := range []string{s.Dir, s.State} {
		must.Succeed(t, os.Chown(path, nobodyID, nobodyID))
	}
	d := s.LaunchCommand(asNobody(t, s.Command(s.ServeArgs()...)))
	d.AwaitReady()
	s.Examined(nil).Has("no account unknown", "no state fail")
	must.Succeed(t, os.Chown(s.State, 1234, -1))
	s.Examined(nil).Has("state fail")
	must.Succeed(t, os.Chmod(s.State, 0o777))
	s.Examined(nil).Has("state fail")
	d.Terminate()
	before := s.content()
	s.Examined(nil)
	if after := s.content(); !maps.Equal(after, before) {
		t.Errorf("root's doctor changed something: before\n%v\nafter\n%v", before, after)
	}
}

func needMounts(t *testing.T) {
	t.Helper()
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		t.Skipf("no mount namespace can be made here: %v", err)
	}
}

// A daemon with an unusable provider: its work meanwhile, and the reason.
func TestDoctorOfADaemonWithoutLeases(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	address := testkit.FreeAddress(t)
	url := "redis://kazahana:" + testkit.SecretInURL + "@" + address + "/0"
	provider := []string{"KAZAHANA_PROVIDER=" + url}
	d := s.Start("--provider", url, "--startup-wait", "0", "--acquire-retry-max-interval", "100ms", "--acquire-retry-interval", "100ms")
	s.Dial().AwaitMode(testkit.FallbackModes...)
	s.Examined(provider).Has("daemon warn", "provider fail", "scope ok")
	// Without the daemon's configuration its Redis cannot be asked.
	s.Examined(nil).Has("daemon warn", "config warn", "no provider fail")
	d.Terminate()

	s.Start("--provider", url, "--fallback", "none", "--startup-wait", "0")
	s.Dial().AwaitMode("unavailable")
	s.Examined(provider).Has("daemon fail", "provider fail")
}

// Real stores, from end to end; their faults are provoked in internal/operator/doctor.
func TestDoctorOfStores(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	redis := s.StartRedis()
	s.Examined(nil, "--provider", redis.URL()).Has("provider fail", "scope ok") // it may be new, or have lost everything
	s.Examined(nil, "--provider", s.Initialised(redis.URL())).Has("provider ok", "scope ok", "no provider fail")

	const token = testkit.SecretInURL + "-token-0123456789"
	tokens, right, wrong := s.Path("tokens.yaml"), s.Path("token"), s.Path("wrong")
	testkit.WriteFile(t, tokens, "- {token: "+token+", owner: o, scopes: [leases]}\n")
	testkit.WriteFile(t, right, token)
	testkit.WriteFile(t, wrong, "x"+token)
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+s.Leases(), "--tokens-file", tokens)
	s.Examined(nil, "--provider", server.URL()+"?token_file="+right).Has("provider ok", "scope ok", "no clock fail")
	s.Examined(nil, "--provider", server.URL()+"?token_file="+wrong).Has("provider fail")
	s.Examined(nil, "--provider", server.URL()).Has("provider fail")
}
