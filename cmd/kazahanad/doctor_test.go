package main

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/operator/doctor"
)

// diagnosis is what doctor --json said.
type diagnosis struct {
	t        *testing.T
	code     int
	Worst    doctor.Level
	Findings []doctor.Finding
}

// examined runs doctor with further variables.
func (s *site) examined(env []string, args ...string) *diagnosis {
	s.t.Helper()
	return s.examinedBy(s.command(append([]string{"doctor", "--json"}, args...)...), env)
}

func (s *site) examinedBy(cmd *exec.Cmd, env []string) *diagnosis {
	s.t.Helper()
	cmd.Env = s.environment(append([]string{"KAZAHANA_SOCKET=" + s.socket, "KAZAHANA_STATE_DIR=" + s.state, "KAZAHANA_CONFIG=none"}, env...)...)
	o := runCommand(s.t, cmd)
	if strings.Contains(o.stdout+o.stderr, secretInURL) {
		s.t.Errorf("a password is shown: %+v", o)
	}
	d := &diagnosis{t: s.t, code: o.code}
	decodeJSON(s.t, o.stdout, d)
	if failed := d.Worst == doctor.Fail; o.stderr != "" || (o.code == exitFailure) != failed || (o.code == exitOK) == failed {
		s.t.Errorf("the worst is %s: exit code %d, stderr %q", d.Worst, o.code, o.stderr)
	}
	return d
}

const secretInURL = "hunter2hunter2"

// has checks that each of the codes is among the findings; one that begins with
// "no " must not be.
func (d *diagnosis) has(codes ...string) {
	d.t.Helper()
	for _, code := range codes {
		code, absent := strings.CutPrefix(code, "no ")
		if slices.ContainsFunc(d.Findings, func(f doctor.Finding) bool { return f.Code == code }) == absent {
			d.t.Errorf("%s: present %v, want the opposite: %+v", code, absent, d.Findings)
		}
	}
}

// content is everything below the site's directory, as it is.
func (s *site) content() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			all[path] = ""
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = fmt.Sprintf("%v %v %x", info.Mode(), info.ModTime(), text)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
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
		s.examined(nil).has(codes...)
		if after := s.content(); !maps.Equal(after, before) {
			t.Errorf("doctor changed something: before\n%v\nafter\n%v", before, after)
		}
	}
	unchanged("config.ok", "socket.missing", "state.new", "sqlite.new", "layout.ok", "no daemon.regular")

	d := s.start()
	s.dial().id()
	s.examined(nil).has("socket.answers", "daemon.regular", "no sqlite.damaged", "no sqlite.new", "no files.unknown", "layout.ok", "no config.unlike_daemon", "no state.damaged")
	// What the daemon says of itself counts.
	s.examined(nil, "--provider", "static:5").has("config.unlike_daemon", "no scope.unverified", "no provider.unlooked")
	s.examined(nil, "--provider", "static:5", "--state-dir", "none").has("config.unlike_daemon", "no state.none")
	said := s.kazahanad("doctor", "--config", "none", "--provider", "static:5").ok(t)
	for _, want := range []string{"ok ", "daemon.regular ", "-> Restart the daemon", " 0 fail\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("doctor does not say %q:\n%s", want, said)
		}
	}
	d.kill()
	unchanged("socket.stale", "no sqlite.damaged", "no sqlite.new", "no state.damaged")

	// A configuration that is wrong keeps nothing else from being looked at.
	bad := s.examined(nil, "--max-backward", "soon")
	bad.has("config.invalid", "socket.stale")
	if bad.code != exitFailure {
		t.Errorf("exit code %d", bad.code)
	}
	s.examined([]string{"KAZAHANA_PROVIDR=x"}).has("config.invalid")
	s.examined(nil, "--provider", "sqlite:relative.db").has("provider.invalid")

	writeFile(t, filepath.Join(s.state, "state"), "x")
	unchanged("state.damaged")
}

// A daemon has its state directory from the service manager, and doctor, run by hand,
// has not.
func TestDoctorWithoutTheServiceManager(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	serve := s.command("serve", "--config", "none", "--socket", s.socket, "--startup-wait", "30s")
	serve.Env = s.environment("STATE_DIRECTORY=" + s.state)
	s.launchCommand(serve).awaitReady()
	s.dial().id()
	withoutStates := []string{"KAZAHANA_STATE_DIR="}
	s.examined(withoutStates).has("daemon.regular", "no config.unlike_daemon", "no provider.unlooked", "no state.new", "no sqlite.new")
	s.examined(withoutStates, "--provider", "static:5").has("config.unlike_daemon")
	s.examined(nil, "--state-dir", s.path("other")).has("config.unlike_daemon")
}

// What the settings, and the place where they are used, are worth.
func TestDoctorScope(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	kubernetes := []string{"KUBERNETES_SERVICE_HOST=10.96.0.1"}
	s.examined(kubernetes, "--provider", "sqlite:"+s.leases()).has("scope.kubernetes", "no scope.host")
	s.examined(kubernetes).has("config.invalid")
	s.examined([]string{"container=podman"}).has("scope.container")
	s.examined(nil, "--provider", "static:5").has("scope.unverified")
	s.examined(nil, "--provider", "none:").has("scope.none")
	s.examined(nil, "--state-dir", "none", "--provider", "static:5").has("state.none")
	s.examined(nil, "--bit-ts", "36", "--default-epoch", time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)).has("layout.soon")
}

func TestDoctorSocket(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	mkdir(t, s.socket)
	s.examined(nil).has("socket.not_a_socket")
	if err := os.Remove(s.socket); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	s.examined(nil).has("socket.silent")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	d := s.start("--socket-mode", "0666")
	s.examined(nil).has("socket.everybody")
	s.examined(nil, "--allow-uids", "0").has("no socket.everybody")
	d.terminate()
	if os.Geteuid() != 0 {
		return
	}
	s.start()
	s.examined(nil).has("socket.root_only")
}

// Another user is told what could not be looked at, and no more than that.
func TestDoctorAsSomebodyElse(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	d := s.start()
	s.dial().id()
	nobody := asNobody(t, s.command("doctor", "--json"))
	found := s.examinedBy(nobody, nil)
	found.has("socket.denied", "state.unreadable", "sqlite.unreadable", "no socket.answers", "no state.damaged")
	if found.code != exitOK {
		t.Errorf("exit code %d", found.code)
	}
	d.terminate()
	s.start("--socket-mode", "0666", "--allow-uids", "0")
	s.examinedBy(asNobody(t, s.command("doctor", "--json")), nil).has("socket.denied")
}

// A daemon's user and its limits are those of its process, and not of whoever asks.
func TestDoctorOfADaemonWithAnotherUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	mkdir(t, s.state)
	for _, path := range []string{s.dir, s.state} {
		if err := os.Chown(path, nobodyID, nobodyID); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", append([]string{"-c", `ulimit -n 200; exec "$0" "$@"`, executable}, s.serveArgs()...)...)
	cmd.Env = s.environment()
	s.launchCommand(asNobody(t, cmd)).awaitReady()
	s.examined(nil).has("files.low", "no state.foreign_owner", "no state.open_foreign")
	if err := os.Chown(s.state, 1234, -1); err != nil {
		t.Fatal(err)
	}
	s.examined(nil).has("state.foreign_owner")
	if err := os.Chmod(s.state, 0o777); err != nil {
		t.Fatal(err)
	}
	s.examined(nil).has("state.open_foreign")
}

// File systems that are not fit for the state.
func TestDoctorFileSystems(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		t.Skipf("no mount namespace can be made here: %v", err)
	}
	s := newSite(t)
	mkdir(t, s.state)
	on := func(mount string) *diagnosis {
		t.Helper()
		return s.examinedBy(exec.Command("unshare", "--mount", "sh", "-ec", mount+`; exec "$0" doctor --json`, executable, s.state), nil)
	}
	on(`mount -t tmpfs -o size=1m none "$1"`).has("state.volatile", "state.full", "sqlite.full")
	on(`mount -t tmpfs -o size=20m none "$1"`).has("state.volatile", "state.low", "no state.full")
	on(`mount -t tmpfs -o ro none "$1"`).has("state.read_only")
}

// A daemon whose provider cannot be used: what it does meanwhile, and why.
func TestDoctorOfADaemonWithoutLeases(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	address := "127.0.0.1:" + strconv.Itoa(freePort(t))
	url := "redis://kazahana:" + secretInURL + "@" + address + "/0"
	provider := []string{"KAZAHANA_PROVIDER=" + url}
	d := s.start("--provider", url, "--startup-wait", "0", "--acquire-retry-max-interval", "100ms", "--acquire-retry-interval", "100ms")
	s.dial().awaitMode(fallbackModes...)
	s.examined(provider).has("daemon.fallback", "redis.unreachable", "scope.shared")
	// Without the daemon's configuration its Redis cannot be asked.
	s.examined(nil).has("daemon.fallback", "config.unlike_daemon", "provider.unlooked")
	d.terminate()

	s.start("--provider", url, "--fallback", "none", "--startup-wait", "0")
	s.dial().awaitMode("unavailable")
	s.examined(provider).has("daemon.unavailable", "redis.unreachable")
}

// Real stores, from end to end; their faults are provoked in internal/operator/doctor.
func TestDoctorOfStores(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	redis := s.startRedis()
	s.examined(nil, "--provider", redis.url()).has("redis.no_persistence", "scope.shared", "no redis.refused")
	if _, err := redisAsk(redis.address, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru"); err != nil {
		t.Fatal(err)
	}
	s.examined(nil, "--provider", redis.url()).has("redis.eviction")

	s.examined(nil, "--provider", "etcd://127.0.0.1:"+strconv.Itoa(freePort(t))).has("etcd.unreachable")

	const token = secretInURL + "-token-0123456789"
	tokens, right, wrong := s.path("tokens.yaml"), s.path("token"), s.path("wrong")
	writeFile(t, tokens, "- {token: "+token+", owner: o, scopes: [leases]}\n")
	writeFile(t, right, token)
	writeFile(t, wrong, "x"+token)
	server := s.startLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+s.leases(), "--tokens-file", tokens)
	s.examined(nil, "--provider", server.url()+"?token_file="+right).has("http.ok", "scope.shared", "no clock.wrong")
	s.examined(nil, "--provider", server.url()+"?token_file="+wrong).has("http.refused")
	s.examined(nil, "--provider", server.url()).has("http.refused")
	s.examined(nil, "--provider", server.url()+"?token_file="+s.path("none")).has("provider.invalid")
	server.kill()
	s.examined(nil, "--provider", server.url()+"?token_file="+right).has("http.unreachable")
}

// Every form of a provider's URL leads doctor to what the provider uses.
func TestDoctorProviderURLs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	odd := s.path("100% odd?#/l\u00e4.db")
	mkdir(t, filepath.Dir(odd))
	oddURL := (&url.URL{Path: odd}).EscapedPath()
	plain := s.leases()
	for _, provider := range []string{"sqlite:" + plain, "sqlite:" + oddURL + "?ids=0-3&bit_seq=9"} {
		d := s.start("--provider", provider)
		s.dial().lease()
		// What the daemon tells of its provider is a URL as well.
		s.examined(nil, "--provider", "static:5").has("config.unlike_daemon", "sqlite.ok", "no provider.invalid")
		d.terminate()
	}
	// Providers without a store have nothing to look at, whatever they say of themselves.
	for _, provider := range []string{"static:3", "ip:", "memory:?ids=4-7", "none:"} {
		if provider == "ip:" && !hasAddress(t) {
			continue
		}
		d := s.start("--provider", provider)
		s.examined(nil, "--provider", "sqlite:"+plain).has("config.unlike_daemon", "no provider.invalid", "no provider.unlooked", "no sqlite.ok")
		d.terminate()
	}
	free := func() string { return "127.0.0.1:" + strconv.Itoa(freePort(t)) }
	password, token := s.path("password"), s.path("token")
	writeFile(t, password, secretInURL)
	writeFile(t, token, secretInURL)
	if t.Failed() {
		return
	}
	for _, c := range []struct {
		url   string
		codes []string
	}{
		{"memory:", []string{"scope.unverified"}},
		{"memory:?ids=5-9&term=5m&quarantine=0s&pool=p", []string{"scope.unverified"}},
		{"none:", []string{"scope.none"}},
		{"static:17", []string{"scope.unverified"}},
		{"static:17?term=1m&bit_id=13&bit_seq=9", []string{"scope.unverified"}},
		{"STATIC:17", []string{"scope.unverified"}},
		{"ip:?bits=6", []string{"scope.unverified"}},
		{"sqlite:" + plain, []string{"sqlite.ok"}},
		{"sqlite://" + plain, []string{"sqlite.ok"}},
		{"SQLite:" + plain, []string{"sqlite.ok"}},
		{"sqlite:" + s.dir + "//x/../leases.db", []string{"sqlite.ok"}},
		{"sqlite:" + plain + "?ids=0-3", []string{"sqlite.ok"}},
		{"sqlite://" + plain + "?term=5m&quarantine=1m&ids=LOW", []string{"provider.invalid"}},
		{"sqlite:" + plain + "?term=5m&quarantine=1m&ids=4-7&pool=default", []string{"sqlite.ok"}},
		{"sqlite:" + oddURL, []string{"sqlite.ok"}},
		{"sqlite:" + oddURL + "?ids=0-3&bit_seq=9", []string{"sqlite.ok"}},
		{"sqlite:" + plain + "x?ids=0-3", []string{"sqlite.new"}},
		{"redis://" + free() + "/0", []string{"redis.unreachable"}},
		{"redis://user:" + secretInURL + "@" + free() + "/0?prefix={x}:&ids=0-3&min_replicas=1", []string{"redis.unreachable"}},
		{"redis://user@" + free() + "/0?password_file=" + password, []string{"redis.unreachable"}},
		{"rediss://" + free() + "/0", []string{"redis.unreachable"}},
		{"redis+unix:" + s.path("redis.sock"), []string{"redis.unreachable"}},
		{"redis+unix:" + s.path("redis.sock") + "?failover_fence=0s", []string{"redis.unreachable"}},
		{"redis+sentinel://" + free() + "," + free() + "/master/0", []string{"redis.unreachable"}},
		{"rediss+sentinel://" + free() + "," + free() + "/master/0?ids=0-3", []string{"redis.unreachable"}},
		{"etcd://" + free() + "," + free() + "?prefix=/x/&ids=0-3", []string{"etcd.unreachable"}},
		{"etcd://" + free() + "?username=u&password_file=" + password, []string{"etcd.unreachable"}},
		{"http://" + free(), []string{"http.unreachable"}},
		{"http://" + free() + ",http://" + free() + "?token_file=" + token, []string{"http.unreachable"}},
		{"https://" + free(), []string{"http.unreachable"}},
		{"http+unix:" + s.path("lease.sock"), []string{"http.unreachable"}},
	} {
		found := s.examined(nil, "--provider", c.url, "--provider-timeout", "100ms")
		found.has("config.ok")
		found.has(c.codes...)
		if c.codes[0] != "provider.invalid" {
			found.has("no provider.invalid")
		}
		if t.Failed() {
			t.Fatalf("this was found of %s", c.url)
		}
	}
}

// hasAddress reports whether this host has an IPv4 address that ip: can use.
func hasAddress(t *testing.T) bool {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast()
	})
}

// What the URL says of grants is read from lists of hosts too.
func TestTermsOfProviderURLs(t *testing.T) {
	for url, want := range map[string]string{
		"sqlite:/x/leases.db?ids=4-7":                  "4-7",
		"redis://user:pa%3Fss@host:6379/0?ids=4-7":     "4-7",
		"redis+sentinel://a:1,b:2/master/0?ids=4-7":    "4-7",
		"etcd://a:1,b:2?ids=4-7&username=u&prefix=/x/": "4-7",
		"etcd://a:1,b:2":                               "0-8191",
		"http://a:1,http://b:2?token_file=/x":          "",
		"static:17":                                    "",
	} {
		terms, ok := (&store{url: url}).terms()
		if ok != (want != "") || ok && terms.Range().String() != want {
			t.Errorf("%s: %v, %+v, want %q", url, ok, terms, want)
		}
	}
}
