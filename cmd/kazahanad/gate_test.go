package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/operator/doctor"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// breakage is something that happened to an installation.
type breakage struct {
	name   string
	used   bool // a daemon has run there before
	nobody bool // the daemon is not root
	do     func(s *site) (args []string)
	code   string // of the finding that says so
	// strict says why doctor fails although serve makes regular IDs, or "".
	strict string
	// around is a shell command with a mount namespace in which both run.
	around string
}

// TestDoctorIsAGate breaks installations, and holds doctor's verdict to what serve then does.
// The exit code is 0 only where serve starts and makes regular IDs.
func TestDoctorIsAGate(t *testing.T) {
	t.Parallel()
	for _, group := range []struct {
		name string
		all  []breakage
	}{
		{"state", brokenState}, {"live", brokenLive}, {"mount", brokenMounts}, {"socket", brokenSockets},
		{"configuration", brokenConfigurations}, {"listeners", brokenListeners}, {"provider", brokenProviders},
	} {
		for _, b := range group.all {
			t.Run(group.name+"/"+b.name, func(t *testing.T) {
				t.Parallel()
				b.judge(t)
			})
		}
	}
}

func (b *breakage) judge(t *testing.T) {
	s := newSite(t)
	if b.nobody {
		needRoot(t)
		s.own(s.Dir)
	}
	if b.around != "" {
		needMounts(t)
	}
	if b.used {
		d := s.LaunchCommand(b.command(t, s, s.ServeArgs()))
		d.AwaitReady()
		s.Dial().AwaitMode("regular")
		d.Terminate()
	}
	var args []string
	if b.do != nil {
		args = b.do(s)
	}
	args = s.ServeArgs(append(args, "--startup-wait", "0", "--acquire-retry-interval", "50ms", "--acquire-retry-max-interval", "100ms")...)
	said := s.ExaminedBy(b.command(t, s, append([]string{"doctor", "--json"}, args[1:]...)), nil)
	serves, how := s.serves(b.command(t, s, args))
	if b.code != "" {
		said.Has(b.code)
	}
	if passes := said.Code == exitOK; passes != (serves && b.strict == "") {
		t.Errorf("doctor's exit code is %d, and serve %s: %+v", said.Code, how, said.Findings)
	}
	if !serves && b.strict != "" {
		t.Errorf("serve %s: doctor is not too strict", how)
	}
}

// command is one of the site's, as the daemon's user and in its mount namespace.
func (b *breakage) command(t *testing.T, s *site, args []string) *exec.Cmd {
	cmd := s.Command(args...)
	if b.around != "" {
		cmd = exec.Command("unshare", append([]string{"--mount", "sh", "-ec", b.around + `; state=$1; shift; exec "$0" "$@"`, testkit.Executable(), s.State}, args...)...)
		cmd.Env = s.Environment()
	}
	if b.nobody {
		return asNobody(t, cmd)
	}
	return cmd
}

// serves runs serve until it makes regular IDs, or fails to.
func (s *site) serves(cmd *exec.Cmd) (ok bool, how string) {
	s.T.Helper()
	d := s.LaunchCommand(cmd)
	defer d.Kill()
	await.Eventually(s.T, "serve makes IDs or fails", func() bool {
		select {
		case <-d.Ended:
			how = "ended with " + d.Cmd.ProcessState.String()
			return true
		default:
		}
		for _, socket := range []string{s.Socket, s.Path("new/d.sock")} {
			c, err := testkit.DialSocket(socket)
			if err != nil {
				continue
			}
			var st daemon.Status
			err = c.Call(s.T.Context(), "Status", &st)
			_ = c.Close()
			if err != nil || st.PID != d.PID() {
				continue
			}
			ok, how = st.Mode == "regular", "is "+st.Mode
			return ok || st.Services[0].Failures > 0
		}
		return false
	})
	return ok, how
}

// own gives files to the user nobody.
func (s *site) own(paths ...string) {
	s.T.Helper()
	for _, path := range paths {
		s.chown(path, nobodyID)
	}
}

func (s *site) chown(path string, uid int) {
	s.T.Helper()
	needRoot(s.T)
	must.Succeed(s.T, os.Lchown(path, uid, -1))
}

func (s *site) chmod(path string, mode os.FileMode) {
	s.T.Helper()
	must.Succeed(s.T, os.Chmod(path, mode))
}

// ofRoot is a directory of root, which others may read.
func (s *site) ofRoot() string {
	testkit.Mkdir(s.T, s.Path("new"))
	s.chmod(s.Path("new"), 0o755)
	return s.Path("new")
}

func (s *site) remove(path string) {
	s.T.Helper()
	must.Succeed(s.T, os.RemoveAll(path))
}

func (s *site) link(to, path string) {
	s.T.Helper()
	must.Succeed(s.T, os.Symlink(to, path))
}

// edit changes a file in place.
func (s *site) edit(path string, change func(string) string) {
	s.T.Helper()
	was, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(change(string(was))), 0o600)
	}
	must.Succeed(s.T, err)
}

// folder is the state directory's folder in the live directory.
func (s *site) folder() string {
	s.T.Helper()
	all, err := os.ReadDir(s.Live)
	if err != nil || len(all) != 1 {
		s.T.Skipf("no live directory: %v %v", all, err)
	}
	return filepath.Join(s.Live, all[0].Name())
}

// taken is a port with a listener.
func (s *site) taken() string {
	s.T.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(s.T, err)
	s.T.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// file makes a file of the site.
func (s *site) file(name, content string) (path string) {
	s.T.Helper()
	testkit.WriteFile(s.T, s.Path(name), content)
	s.chmod(s.Path(name), 0o644)
	return s.Path(name)
}

func half(text string) string { return text[:len(text)/2] }

func garbage(string) string { return "garbage" }

var brokenState = []breakage{
	{name: "new", code: "state ok"},
	{name: "used by another user", nobody: true, used: true},
	{name: "a link that leads nowhere", do: func(s *site) []string { s.link(s.Path("away"), s.State); return nil }, code: "state fail"},
	{name: "garbage", used: true, do: func(s *site) []string { s.edit(filepath.Join(s.State, "state"), garbage); return nil }, code: "state fail"},
	{name: "of root", nobody: true, do: func(s *site) []string { testkit.Mkdir(s.T, s.State); s.chmod(s.State, 0o700); return nil }, code: "state fail"},
	{name: "not writable", nobody: true, used: true, do: func(s *site) []string { s.chmod(s.State, 0o500); return nil }, code: "provider fail"},
	{name: "cannot be made", nobody: true, do: func(s *site) []string {
		s.chown(s.Dir, 0)
		return []string{"--socket", "/dev/shm/" + filepath.Base(s.Dir) + ".sock"}
	}, code: "state fail"},
	{name: "open", used: true, do: func(s *site) []string { s.chmod(s.State, 0o777); return nil }, code: "state warn"},
	{name: "in use", do: func(s *site) []string {
		other := s.LaunchCommand(s.Command(append(s.ServeArgs(), "--socket", s.Path("other.sock"))...))
		other.Says("kazahanad is ready")
		return nil
	}, code: "state fail"},
}

var brokenLive = []breakage{
	{name: "gone as after a boot", used: true, do: func(s *site) []string { s.remove(s.Live); return nil }},
	{name: "on a disk", do: func(s *site) []string { return []string{"--live-dir", s.Path("live")} }, code: "state fail"},
	{name: "open", used: true, do: func(s *site) []string { s.chmod(s.Live, 0o777); return nil }, code: "state fail"},
	{name: "a link of another user", used: true, do: func(s *site) []string {
		testkit.Rename(s.T, s.Live, s.Live+"-away")
		s.link(s.Live+"-away", s.Live)
		s.chown(s.Live, 1234)
		return nil
	}, code: "state fail"},
	{name: "leases garbage", used: true, do: func(s *site) []string { s.edit(s.folder()+"/leases", garbage); return nil }, code: "state fail", strict: "the leases are lost"},
}

var brokenMounts = []breakage{
	{name: "read-only", around: `mkdir -p "$1"; mount -t tmpfs -o ro none "$1"`, code: "state fail"},
	{name: "full", around: `mkdir -p "$1"; mount -t tmpfs -o size=64k none "$1"; head -c 65536 /dev/zero >"$1/fill"`, code: "state fail"},
}

var brokenSockets = []breakage{
	{name: "a file in its place", do: func(s *site) []string { testkit.WriteFile(s.T, s.Socket, "x"); return nil }, code: "socket fail"},
	{name: "in a directory that is made", do: func(s *site) []string { return []string{"--socket", s.Path("new/d.sock")} }, code: "socket warn"},
	{name: "in a directory of root", nobody: true, do: func(s *site) []string { return []string{"--socket", s.ofRoot() + "/d.sock"} }, code: "socket fail"},
	{name: "a group that the user is not in", nobody: true, do: flags("--socket-group", "0"), code: "socket fail"},
	{name: "left by a crash", do: func(s *site) []string { s.Start().Kill(); return nil }, code: "socket warn"},
	{name: "of another program", do: func(s *site) []string {
		l, err := net.Listen("unix", s.Socket)
		must.Succeed(s.T, err)
		s.T.Cleanup(func() { _ = l.Close() })
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				_ = c.Close()
			}
		}()
		return nil
	}, code: "socket fail"},
}

// configured is what a file says.
func configured(text string) func(s *site) []string {
	return func(s *site) []string { return []string{"--config", s.file("kazahanad.yaml", text)} }
}

func flags(args ...string) func(*site) []string { return func(*site) []string { return args } }

var brokenConfigurations = []breakage{
	{name: "none", do: flags()},
	{name: "unknown key", do: configured("fallbck: none\n"), code: "config fail"},
	{name: "unreadable file", nobody: true, do: func(s *site) []string {
		args := configured("fallback: none\n")(s)
		s.chmod(args[1], 0o600)
		return args
	}, code: "config fail"},
	{name: "missing secret", do: func(s *site) []string { return []string{"--external-secret-file", s.Path("away")} }, code: "config fail"},
	{name: "secret of root", nobody: true, do: func(s *site) []string {
		path := s.file("secret", "correct horse battery staple\n")
		s.chmod(path, 0o600)
		return []string{"--external-secret-file", path}
	}, code: "config fail"},
	{name: "unknown group", do: flags("--socket-group", "no-such-group"), code: "config fail"},
	{name: "no state and no provider", do: flags("--state-dir", "none"), code: "config fail"},
	{name: "one machine ID for two services", do: configured("provider: static:5\nservices: {orders: {}}\n"), code: "config fail"},
}

var brokenListeners = []breakage{
	{name: "free ports", do: func(s *site) []string {
		return []string{"--admin-listen", "127.0.0.1:0", "--http-listen", "unix:" + s.Path("h.sock"), "--memcached-listen", "localhost:0"}
	}},
	{name: "admin port taken", do: func(s *site) []string { return []string{"--admin-listen", s.taken()} }, code: "listen fail"},
	{name: "an address of another host", do: flags("--admin-listen", "192.0.2.1:9746"), code: "listen fail"},
	{name: "a file at its path", do: func(s *site) []string { return []string{"--admin-listen", "unix:" + s.file("a.sock", "")} }, code: "listen fail"},
	{name: "beyond this host", do: flags("--http-listen", "0.0.0.0:0"), code: "config fail"},
}

// leases is the provider's file.
func (s *site) leases() string { return filepath.Join(s.State, "leases.db") }

// provided is a provider URL with the site's own words.
func provided(url func(s *site) string) func(s *site) []string {
	return func(s *site) []string {
		return []string{"--provider", url(s)}
	}
}

var brokenProviders = []breakage{
	{name: "static", do: flags("--provider", "static:5"), code: "scope warn"},
	{name: "unknown scheme", do: flags("--provider", "ftp://host/x"), code: "provider fail"},
	{name: "relative file", do: flags("--provider", "sqlite:leases.db"), code: "provider fail"},
	{name: "directory that is made", do: provided(func(s *site) string { return "sqlite:" + s.Path("new/leases.db") }), code: "provider ok"},
	{name: "a link that leads nowhere", do: provided(func(s *site) string { s.link(s.Path("away"), s.Leases()); return "sqlite:" + s.Leases() }), code: "provider fail"},
	{name: "no database", do: provided(func(s *site) string { return "sqlite:" + s.file("leases.db", "garbage") }), code: "provider fail"},
	{name: "cut short", used: true, do: func(s *site) []string { s.edit(s.leases(), half); return nil }, code: "provider fail"},
	{name: "root's", nobody: true, used: true, do: func(s *site) []string { s.chown(s.leases(), 0); return nil }, code: "provider fail"},
	{name: "a copy", used: true, do: func(s *site) []string {
		s.edit(s.leases(), func(was string) string { s.remove(s.leases()); s.file("copy", was); return was })
		return nil
	}, code: "provider fail"},
	{name: "another epoch", used: true, do: provided(func(s *site) string { return "sqlite:" + s.leases() + "?epoch=2025-06-01T00:00:00Z" }), code: "provider fail"},
	{name: "Redis is away", do: provided(func(s *site) string { return "redis://" + testkit.FreeAddress(s.T) + "/0" }), code: "provider fail"},
	{name: "the lease server is away", do: provided(func(s *site) string { return "http://" + testkit.FreeAddress(s.T) }), code: "provider fail"},
	{name: "a token that is missing", do: provided(func(s *site) string { return "http://" + testkit.FreeAddress(s.T) + "?token_file=" + s.Path("away") }), code: "provider fail"},
	{name: "Redis that evicts", do: provided(func(s *site) string {
		r := s.StartRedis()
		if _, err := testkit.RedisAsk(r.Address(), "CONFIG", "SET", "maxmemory-policy", "allkeys-lru"); err != nil {
			s.T.Fatal(err)
		}
		return r.URL()
	}), code: "provider fail"},
	{name: "Redis that is new", do: provided(func(s *site) string { return s.Initialised(s.StartRedis().URL()) })},
}

// A daemon that runs: it answers, and would start again.
func TestDoctorOfADaemonThatWouldNotStartAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(s *site, d *testkit.Instance)
		code string
		ends bool                   // a restart makes no regular IDs
		next func(s *site) []string // what the configuration says by now
	}{
		{name: "nothing"},
		{name: "bad configuration", do: func(s *site, _ *testkit.Instance) { s.file("kazahanad.yaml", "fallbck: none\n") }, code: "config fail", ends: true},
		{name: "configuration of root", do: func(s *site, _ *testkit.Instance) {
			s.chown(s.Path("kazahanad.yaml"), 0)
			s.chmod(s.Path("kazahanad.yaml"), 0o600)
		}, code: "config fail", ends: true},
		{name: "directory gone", do: func(s *site, _ *testkit.Instance) {
			testkit.Rename(s.T, s.State, s.State+"-away")
			c := s.Dial()
			await.Eventually(s.T, "the daemon finds that it cannot keep its state", func() bool { c.ID(); return c.Status().StateError != "" })
		}, code: "state fail"},
		{name: "a new provider that is away", next: func(s *site) []string {
			return []string{"--provider", "redis://" + testkit.FreeAddress(s.T) + "/0", "--startup-wait", "0"}
		}, code: "provider fail", ends: true},
		{name: "a new state directory of root", next: func(s *site) []string { return []string{"--state-dir", s.ofRoot() + "/state"} }, code: "state fail", ends: true},
		{name: "a new socket of root", next: func(s *site) []string { return []string{"--socket", s.ofRoot() + "/d.sock"} }, code: "socket fail", ends: true},
		{name: "a port of root", next: flags("--admin-listen", "127.0.0.1:1"), code: "listen fail", ends: true},
		{name: "a new state directory and a new port", next: func(s *site) []string {
			return []string{"--state-dir", s.Path("elsewhere"), "--admin-listen", testkit.FreeAddress(s.T)}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			needRoot(t)
			s := newSite(t)
			s.own(s.Dir)
			args := s.ServeArgs("--config", s.file("kazahanad.yaml", "external_secret_file: "+s.file("secret", "correct horse battery staple\n")+"\n"),
				"--admin-listen", testkit.FreeAddress(s.T), "--http-listen", "unix:"+s.Path("h.sock"))
			s.own(s.Path("kazahanad.yaml"), s.Path("secret"))
			d := s.LaunchCommand(asNobody(t, s.Command(args...)))
			d.AwaitReady()
			s.Dial().AwaitMode("regular")
			if c.do != nil {
				c.do(s, d)
			}
			if c.next != nil {
				args = append(args, c.next(s)...)
			}
			said := s.ExaminedBy(s.Command(append([]string{"doctor", "--json"}, args[1:]...)...), nil) // as root
			if c.code != "" {
				said.Has(c.code)
			}
			if (said.Worst == doctor.Fail) != (c.code != "") {
				t.Errorf("the worst is %s: %+v", said.Worst, said.Findings)
			}
			d.Signal(syscall.SIGKILL) // a stop would write
			d.AwaitEnd()
			if serves, how := s.serves(asNobody(t, s.Command(args...))); serves == c.ends {
				t.Errorf("started again, it %s", how)
			}
		})
	}
}
