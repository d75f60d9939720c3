//go:build linux

package systemd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/memlimit"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	service = "kazahanad.service"
	socket  = "kazahanad.socket"
	server  = "kazahanad-lease-server.service"
)

// TestCheck: the units are what systemd takes them for, and as closed as they
// should be. The check fails where either is not so.
func TestCheck(t *testing.T) {
	ring.All(t)
	ring.Program(t, "systemd-analyze")
	for _, c := range []struct{ name, old, new, complains string }{
		{name: "as they are"},
		{name: "a key that systemd does not know", old: "ProtectHome=yes", new: "ProtectHouse=yes", complains: "ProtectHouse"},
		{name: "hardening that is missing", old: "SystemCallFilter=@system-service\nSystemCallFilter=~@privileged @resources\n", complains: "too exposed"},
		{name: "a line without its section", old: "[Service]\n", complains: "Service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"check", service, socket, server} {
				b, err := os.ReadFile(name)
				must.Succeed(t, err)
				text := string(b)
				if name == service && c.old != "" {
					if text = strings.Replace(text, c.old, c.new, 1); text == string(b) {
						t.Fatalf("%s has no %q", name, c.old)
					}
				}
				must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
			}
			out, err := exec.Command(filepath.Join(dir, "check")).CombinedOutput()
			if c.complains == "" && (err != nil || len(out) > 0) {
				t.Errorf("%v\n%s", err, out)
			}
			if c.complains != "" && (err == nil || !strings.Contains(string(out), c.complains)) {
				t.Errorf("%v, and nothing about %q:\n%s", err, c.complains, out)
			}
		})
	}
}

// TestUnitsDoWithout: what would break the socket, its peers' names or the next
// start must not come in by the way of hardening.
func TestUnitsDoWithout(t *testing.T) {
	without := map[string][]string{
		service: {"DynamicUser", "PrivateUsers", "ProcSubset"}, // the last hides the boot ID
		server:  {"DynamicUser", "PrivateUsers", "ProcSubset"}, // the last hides process_start_time_seconds
	}
	for unit, directives := range without {
		b, err := os.ReadFile(unit)
		must.Succeed(t, err)
		for _, directive := range directives {
			if regexp.MustCompile(`(?m)^` + directive + `=`).Match(b) {
				t.Errorf("%s sets %s=", unit, directive)
			}
			if !regexp.MustCompile(`(?m)^# .*` + directive + `=`).Match(b) {
				t.Errorf("%s does not say why there is no %s=", unit, directive)
			}
		}
	}
}

// TestLimitsFit: the daemon's own limits act before those of the units. Without a unit it
// assumes as much memory as the unit gives it.
func TestLimitsFit(t *testing.T) {
	var defaults config.Serve
	err := defaults.Load(&defaults, nil, config.Process{UID: 1, Environ: []string{"HOME=/home/x"}})
	must.Succeed(t, err)
	for _, unit := range []string{service, server} {
		b, err := os.ReadFile(unit)
		must.Succeed(t, err)
		limit := func(name string) (n int64) {
			t.Helper()
			m := regexp.MustCompile(`(?m)^` + name + `=(\d+)([MG]?)$`).FindSubmatch(b)
			if m == nil {
				t.Fatalf("%s has no %s=", unit, name)
			}
			n, _ = strconv.ParseInt(string(m[1]), 10, 64)
			return n << map[string]int{"": 0, "M": 20, "G": 30}[string(m[2])]
		}
		if high, most := limit("MemoryHigh"), limit("MemoryMax"); high != memlimit.Default || most < high+high/5 {
			t.Errorf("%s: MemoryHigh=%d, MemoryMax=%d, and memory_limit is %d without a unit", unit, high, most, int64(memlimit.Default))
		}
		if files := limit("LimitNOFILE"); files < 2*int64(defaults.MaxConnections) {
			t.Errorf("%s: LimitNOFILE=%d for %d connections", unit, files, defaults.MaxConnections)
		}
		if tasks := limit("TasksMax"); tasks < 1024 {
			t.Errorf("%s: TasksMax=%d", unit, tasks)
		}
	}
}

// stage is a root with what a package would install.
func stage(t *testing.T) string {
	t.Helper()
	ring.All(t)
	root := t.TempDir()
	copyTo := func(src, dst string, mode os.FileMode) {
		b, err := os.ReadFile(src)
		must.Succeed(t, err)
		dst = filepath.Join(root, dst)
		must.Succeed(t, os.MkdirAll(filepath.Dir(dst), 0o755))
		must.Succeed(t, os.WriteFile(dst, b, mode))
	}
	binary := os.Getenv("KAZAHANAD") // which make test has built
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "kazahanad")
		build := exec.Command("go", "build", "-tags", "grpcnotrace,nopgxregisterdefaulttypes", "-o", binary, "../../cmd/kazahanad")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	copyTo(binary, "usr/bin/kazahanad", 0o755)
	for _, unit := range []string{service, socket, server} {
		copyTo(unit, "usr/lib/systemd/system/"+unit, 0o644)
	}
	copyTo("sysusers.d/kazahana.conf", "usr/lib/sysusers.d/kazahana.conf", 0o644)
	copyTo("tmpfiles.d/kazahana.conf", "usr/lib/tmpfiles.d/kazahana.conf", 0o644)
	// The users that ask: one of the group, and one outside of it.
	users := filepath.Join(root, "usr/lib/sysusers.d/zz-users.conf")
	must.Succeed(t, os.WriteFile(users, []byte("u app -\nm app kazahana\nu stranger -\n"), 0o644))
	return root
}

// TestUnderSystemd runs the units under a booted systemd, as an operator would.
// The parts build on each other; outside the ring "deep" there are only those in which
// all goes well.
func TestUnderSystemd(t *testing.T) {
	t.Parallel()
	root := stage(t)
	buildLoad(t, root)
	h := boot(t, root)
	for _, part := range []struct {
		name string
		test func(*host)
		deep bool
	}{
		{"install", install, false}, {"first connection", firstConnection, false}, {"replica number", replicaNumber, true}, {"sandbox", sandbox, true}, {"memory limit", memoryLimit, true},
		{"credentials", credentials, true}, {"restart under load", restartUnderLoad, true},
		{"watchdog", watchdog, true}, {"crash", crash, true}, {"bad configuration", badConfiguration, true}, {"error that passes", errorThatPasses, true},
		{"gate", gate, true}, {"stop", stop, false}, {"lease server", leaseServer, true},
	} {
		if part.deep && !ring.IsDeep(t) {
			continue
		}
		if !t.Run(part.name, func(t *testing.T) {
			part.test(&host{t: t, leader: h.leader})
		}) {
			t.Fatalf("%s failed; what follows builds on it", part.name)
		}
	}
}

// as runs a command as another user.
func (h *host) as(user string, args ...string) outcome {
	h.t.Helper()
	return h.try(append([]string{"runuser", "-u", user, "--"}, args...)...)
}

// id is an ID that a program of the group gets.
func (h *host) id() string {
	h.t.Helper()
	o := h.as("app", "kazahanad", "id")
	if o.code != 0 || !regexp.MustCompile(`^[0-9]{15,19}$`).MatchString(o.out) {
		h.t.Fatalf("kazahanad id: %+v\n%s", o, h.journal())
	}
	return o.out
}

// fresh forgets how often units were started.
func (h *host) fresh() { h.do("systemctl", "reset-failed") }

func (h *host) dropIn(unit, name, text string) {
	h.t.Helper()
	h.write("/etc/systemd/system/"+unit+".d/"+name+".conf", "644", text)
	h.do("systemctl", "daemon-reload")
}

func (h *host) stat(path string) string {
	h.t.Helper()
	return h.do("stat", "-Lc", "%a %U:%G %F", path)
}

func install(h *host) {
	h.do("systemd-sysusers")
	h.do("systemd-tmpfiles", "--create", "kazahana.conf")
	h.do("systemctl", "enable", "--now", socket)
	if got := h.do("getent", "passwd", "kazahana"); !strings.HasSuffix(got, ":/var/lib/kazahana:/usr/sbin/nologin") {
		h.t.Errorf("the user: %s", got)
	}
	for path, want := range map[string]string{
		"/run/kazahana":                "755 root:root directory",
		"/run/kazahana/kazahanad.sock": "660 kazahana:kazahana socket",
	} {
		if got := h.stat(path); got != want {
			h.t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	if got := h.show(service, "ActiveState"); got != "inactive" {
		h.t.Errorf("the service is %s before anybody asked", got)
	}
	if got := h.do("systemctl", "enable", service); got != "" {
		h.t.Errorf("enable says %q", got)
	}
	if got := h.do("systemctl", "is-enabled", service, socket); got != "enabled\nenabled" {
		h.t.Errorf("enabled: %q", got)
	}
}

func firstConnection(h *host) {
	h.id()
	// The answer can be there before systemd has read that the daemon is ready.
	h.eventually("the service is active", func() bool { return h.show(service, "ActiveState") == "active" })
	h.eventually("systemctl status shows the lease", func() bool {
		return regexp.MustCompile(`^regular: machine ID [0-9]+, ends in [0-9]+m$`).MatchString(h.show(service, "StatusText"))
	})
	if o := h.as("stranger", "kazahanad", "id"); o.code != 1 || !strings.Contains(o.err, "group kazahana") {
		h.t.Errorf("who is not in the group: %+v", o)
	}
	for path, want := range map[string]string{
		"/var/lib/kazahana":  "700 kazahana:kazahana directory",
		"/run/kazahana-live": "700 kazahana:kazahana directory",
		"/run/kazahana":      "755 root:root directory", // still, and not the service's
	} {
		if got := h.stat(path); got != want {
			h.t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	if got := h.shell("find /var/lib/kazahana/* /run/kazahana-live/* -printf '%m %u %y %p\n' | grep -v '^6[04]0 kazahana f \\|^700 kazahana d ' || true"); got != "" {
		h.t.Errorf("files of others: %s", got)
	}
	status := h.do("kazahanad", "status", "--json")
	for _, want := range []string{`"/run/kazahana/kazahanad.sock"`, `"state_dir": "/var/lib/kazahana"`, `"live_dir": "/run/kazahana-live/`, `"survives_kill": true`} {
		if !strings.Contains(status, want) {
			h.t.Errorf("status lacks %s: %s", want, status)
		}
	}
	for _, user := range []string{"root", "kazahana"} {
		looked := "process " + h.show(service, "MainPID") + " issues regular IDs"
		if o := h.as(user, "kazahanad", "doctor"); o.code != 0 || !strings.Contains(o.out, looked) || found(o.out, "config warn") {
			h.t.Errorf("doctor, run by %s: %+v", user, o)
		}
		if o := h.as(user, "kazahanad", "state", "show", "--state-dir", "/var/lib/kazahana"); o.code != 0 || !strings.Contains(o.out, "/run/kazahana-live/") || !strings.Contains(o.out, "lease ") {
			h.t.Errorf("state show, run by %s: %+v", user, o)
		}
	}
}

// The hardening is in force, and nothing that the daemon does meets it.
func sandbox(h *host) {
	pid := h.show(service, "MainPID")
	status := h.do("cat", "/proc/"+pid+"/status")
	for _, want := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, want+"\n") {
			h.t.Errorf("not %q:\n%s", want, status)
		}
	}
	if got := h.do("stat", "-c", "%U", "/proc/"+pid); got != "kazahana" {
		h.t.Errorf("it runs as %s", got)
	}
	inside := []string{"nsenter", "-t", pid, "-m", "runuser", "-u", "kazahana", "--"}
	for path, want := range map[string]bool{"/var/lib/kazahana/x": true, "/run/kazahana-live/x": true, "/etc/x": false, "/usr/x": false, "/run/kazahana/x": false} {
		if got := h.try(append(inside, "touch", path)...).code == 0; got != want {
			h.t.Errorf("it may write %s: %v", path, got)
		}
	}
	h.do("rm", "/var/lib/kazahana/x", "/run/kazahana-live/x")
	if got := h.shell("journalctl --no-pager -o cat -u kazahanad | grep -i 'not permitted\\|denied\\|\"level\":\"error\"' || true"); got != "" {
		h.t.Errorf("something is forbidden to it: %s", got)
	}
	// A caller is known by its own name, not by a user namespace's.
	app := h.do("id", "-u", "app")
	h.write("/etc/kazahana/kazahanad.yaml", "644", "allow_uids: ["+app+"]\n")
	h.do("systemctl", "reload", service)
	h.eventually("app may connect and root may not", func() bool {
		return h.try("kazahanad", "id").code != 0 && h.as("app", "kazahanad", "id").code == 0
	})
	h.do("rm", "/etc/kazahana/kazahanad.yaml")
	h.do("systemctl", "reload", service)
	h.eventually("root may connect again", func() bool { return h.try("kazahanad", "id").code == 0 })
}

// The daemon takes the unit's figure for its limit. It is not the shipped unit's figure, which is
// also the default of a daemon that sees no limit.
func memoryLimit(h *host) {
	const want = "671088640"
	h.dropIn(service, "memory", "[Service]\nMemoryHigh="+want+"\nMemoryMax=800M\n")
	defer func() {
		h.do("rm", "/etc/systemd/system/"+service+".d/memory.conf")
		h.do("systemctl", "daemon-reload")
		h.do("systemctl", "restart", service)
	}()
	h.do("systemctl", "restart", service)
	if high := h.show(service, "MemoryHigh"); high != want {
		h.t.Errorf("MemoryHigh is %s", high)
	}
	if file := "/sys/fs/cgroup" + h.show(service, "ControlGroup") + "/memory.high"; h.try("test", "-e", file).code != 0 {
		h.t.Skipf("there is no %s: on this machine the memory belongs to control groups of version 1, and a booted systemd has those of version 2 only", file)
	}
	h.logged(`"memory_limit":` + want + `\b`)
}

// logged waits for a line of the daemon's log.
func (h *host) logged(pattern string) {
	h.t.Helper()
	h.eventually("the log says "+pattern, func() bool {
		return h.try("bash", "-c", `journalctl --no-pager -o cat -u kazahanad -u kazahanad-lease-server | grep -E -- "$0"`, pattern).code == 0
	})
}

// loggedAsErrors waits until the journal shows the pattern among the daemon's
// errors, and checks that nothing else is there.
func (h *host) loggedAsErrors(pattern string) {
	h.t.Helper()
	var said string
	h.eventually("the errors of the journal have "+pattern, func() bool {
		said = h.do("journalctl", "--no-pager", "-o", "cat", "-p", "err", "_COMM=kazahanad")
		return regexp.MustCompile(pattern).MatchString(said)
	})
	if strings.Contains(said, `"level":"info"`) || strings.Contains(said, `"level":"warn"`) || strings.Contains(said, "<3>") {
		h.t.Errorf("journalctl -p err shows\n%s", said)
	}
}

// A secret that only root can read reaches the daemon, and no other process.
func credentials(h *host) {
	h.write("/etc/kazahana/external-secret", "600", "correct horse\n")
	h.dropIn(service, "secret", "[Service]\nLoadCredential=external-secret:/etc/kazahana/external-secret\nEnvironment=KAZAHANA_EXTERNAL_SECRET_FILE=%d/external-secret\n")
	h.do("systemctl", "restart", service)
	codec, err := snowflake.NewCodec([]byte("correct horse"), "default")
	must.Succeed(h.t, err)
	id, err := codec.Decode(h.do("kazahanad", "id", "--format", "external"))
	must.Succeed(h.t, err)
	if now := snowflake.DefaultTimeline().UnixMS(id); time.Since(time.UnixMilli(now)).Abs() > time.Hour {
		h.t.Errorf("the external ID is of %v: it was made with another secret", time.UnixMilli(now))
	}
	if o := h.as("app", "cat", "/run/credentials/kazahanad.service/external-secret"); o.code == 0 {
		h.t.Error("others can read the credential")
	}
	h.shell(noDropIn)
	h.do("systemctl", "restart", service)
}

// A daemon that stands still is killed and started anew, and who asked meanwhile
// is answered.
func watchdog(h *host) {
	h.fresh()
	h.dropIn(service, "watchdog", "[Service]\nWatchdogSec=5\nTimeoutAbortSec=1\n")
	h.do("systemctl", "restart", service)
	pid := h.freeze(service)
	h.eventually("who asks is answered", func() bool { return h.as("app", "kazahanad", "id").code == 0 })
	// It may have been the process that stood still: systemd ends it with SIGABRT, which a
	// stopped process gets together with SIGCONT.
	h.eventually("the process is another one", func() bool { return h.show(service, "MainPID") != pid })
	h.eventually("the other one answers", func() bool { return h.as("app", "kazahanad", "id").code == 0 })
	h.eventually("systemd says why", func() bool {
		return strings.Contains(h.do("journalctl", "--no-pager", "-o", "cat", "-u", service), "Watchdog timeout")
	})
	h.shell(noDropIn)
}

// freeze stops a unit's process, when its watchdog has been fed twice, and returns
// its PID once all threads have stopped.
func (h *host) freeze(unit string) (pid string) {
	h.t.Helper()
	for range 2 {
		before := h.show(unit, "WatchdogTimestampMonotonic")
		h.eventually("the watchdog is fed", func() bool { return h.show(unit, "WatchdogTimestampMonotonic") != before })
	}
	return h.do("bash", "-ec", `pid=$(systemctl show --value -p MainPID "$0"); kill -STOP "$pid"
		while grep -L '^State:.T' "/proc/$pid"/task/*/status 2>/dev/null | grep -q .; do sleep 0.01; done; echo "$pid"`, unit)
}

func crash(h *host) {
	h.fresh()
	before := h.id()
	// The last is what the watchdog sends, and how a panic ends.
	for _, signal := range []string{"KILL", "SEGV", "ABRT"} {
		pid := h.show(service, "MainPID")
		h.do("kill", "-"+signal, pid)
		h.eventually("it runs again", func() bool {
			now := h.show(service, "MainPID")
			return now != pid && now != "0" && h.show(service, "ActiveState") == "active"
		})
		after := h.id()
		if len(after) < len(before) || len(after) == len(before) && after <= before {
			h.t.Errorf("ID %s after %s", after, before)
		}
		before = after
	}
}

func stop(h *host) {
	before := h.stat("/run/kazahana/kazahanad.sock") + h.do("stat", "-c", "%i", "/run/kazahana/kazahanad.sock")
	h.do("systemctl", "stop", service)
	h.logged("worker id released")
	if result := h.show(service, "Result"); result != "success" {
		h.t.Errorf("the stop ended with %s\n%s", result, h.journal())
	}
	if after := h.stat("/run/kazahana/kazahanad.sock") + h.do("stat", "-c", "%i", "/run/kazahana/kazahanad.sock"); after != before {
		h.t.Errorf("the socket was %s and is %s", before, after)
	}
	if got := h.do("ls", "-A", "/run/kazahana"); got != "kazahanad.sock" {
		h.t.Errorf("beside the socket: %s", got)
	}
	h.id()
	h.do("systemctl", "stop", socket) // and with it the service that requires it
	h.eventually("both have stopped", func() bool {
		return h.show(service, "ActiveState") == "inactive" && h.show(socket, "ActiveState") == "inactive"
	})
	if o := h.try("kazahanad", "doctor"); o.code != 0 || !found(o.out, "socket warn") {
		h.t.Errorf("doctor says of stopped units %+v", o)
	}
	h.do("systemctl", "start", service) // and with it the socket
	h.id()
	if o := h.try("kazahanad", "doctor"); o.code != 0 || !found(o.out, "daemon ok") {
		h.t.Errorf("doctor says of running units %+v", o)
	}
}

func leaseServer(h *host) {
	h.fresh()
	h.write("/etc/kazahana/tokens.yaml", "600", "- {token: first-token-first-token-first, owner: web, scopes: [leases]}\n"+
		"- {token: admin-token-admin-token-admin, owner: ops, scopes: [admin]}\n")
	h.dropIn(server, "tokens", "[Service]\nLoadCredential=tokens:/etc/kazahana/tokens.yaml\nEnvironment=KAZAHANA_TOKENS_FILE=%d/tokens\nWatchdogSec=5\nTimeoutAbortSec=1\n")
	h.do("systemctl", "start", server)
	if got := h.show(server, "StatusText"); !strings.HasPrefix(got, "serving on 127.0.0.1:7464, from sqlite:/var/lib/kazahana/leases.db") {
		h.t.Errorf("status: %s", got)
	}
	lease := `exec 3<>/dev/tcp/127.0.0.1/7464; printf 'POST /lease HTTP/1.0\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}' "$0" >&3; head -1 <&3`
	for token, want := range map[string]string{"first-token-first-token-first": "200", "wrong": "401"} {
		if got := h.do("bash", "-ec", lease, token); !strings.Contains(got, want) {
			h.t.Errorf("with token %s: %s, want %s", token, got, want)
		}
	}
	scrape := `exec 3<>/dev/tcp/127.0.0.1/7464; printf 'GET /metrics HTTP/1.0\r\nAuthorization: Bearer %s\r\n\r\n' "$0" >&3; cat <&3`
	if got := h.do("bash", "-ec", scrape, "admin-token-admin-token-admin"); !strings.Contains(got, "\nprocess_start_time_seconds ") {
		h.t.Errorf("the metrics do not say when the process began:\n%s", got)
	}
	h.write("/etc/kazahana/lease-server.yaml", "644", "log_level: debug\nmax_in_flight: 5\n")
	h.do("systemctl", "reload", server)
	h.logged(`"component":"leaseserver".*"changed":\["log_level"\]`)
	h.logged(`"component":"leaseserver".*"restart_needed":\["max_in_flight"\]`)
	h.write("/etc/kazahana/lease-server.yaml", "644", "log_levl: debug\n")
	if o := h.try("systemctl", "reload", server); o.code == 0 {
		h.t.Error("a bad configuration of the lease server was reloaded without an error")
	}
	h.logged(`"component":"leaseserver".*did you mean log_level`)
	const refused = "the configuration that was read last was refused"
	h.eventually("the status tells", func() bool { return strings.Contains(h.show(server, "StatusText"), refused) })
	h.do("rm", "/etc/kazahana/lease-server.yaml")
	h.do("systemctl", "reload", server)
	h.eventually("and tells it no more", func() bool { return !strings.Contains(h.show(server, "StatusText"), refused) })
	pid := h.freeze(server)
	h.eventually("it was killed and started anew", func() bool {
		now := h.show(server, "MainPID")
		return now != pid && now != "0" && h.show(server, "ActiveState") == "active"
	})
	h.do("systemctl", "stop", server)
	if result := h.show(server, "Result"); result != "success" {
		h.t.Errorf("the stop ended with %s\n%s", result, h.journal())
	}
}
