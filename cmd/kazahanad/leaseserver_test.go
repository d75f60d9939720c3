package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// leaseServer is a lease server that was started.
type leaseServer struct {
	*instance
	address string
}

func (l *leaseServer) url() string { return "http://" + l.address }

// startLeaseServer runs a lease server, and returns when it answers.
func (s *site) startLeaseServer(address string, args ...string) *leaseServer {
	s.t.Helper()
	return s.startLeaseServerWith("none", address, args...)
}

// startLeaseServerWith is the same with a configuration file.
func (s *site) startLeaseServerWith(config, address string, args ...string) *leaseServer {
	s.t.Helper()
	l := &leaseServer{instance: s.launchCommand(s.command(append([]string{
		"lease-server", "--config", config, "--listen", address, "--drain-delay", "0", "--log-format", "json",
	}, args...)...))}
	l.awaitAddress()
	return l
}

// awaitAddress returns when the server has said where it listens.
func (l *leaseServer) awaitAddress() {
	l.t.Helper()
	eventually(l.t, "the lease server says where it listens", func() bool {
		select {
		case <-l.ended:
			l.t.Fatalf("the lease server ended: %v\n%s", l.err, l.log)
		default:
		}
		for _, line := range l.log.lines(l.t) {
			if line["msg"] == "the lease server is ready" {
				l.address = line["listen"].(string)
			}
		}
		return l.address != ""
	})
}

// ready reports whether the server answers.
func (l *leaseServer) ready() bool {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get(l.url() + "/readyz")
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// A daemon lives from a lease server that is killed, stays away, and comes back.
func TestLeaseServerKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	store := []string{"--provider", "sqlite:" + s.leases() + "?term=2s&quarantine=1s"}
	server := s.startLeaseServer("127.0.0.1:0", store...)
	s.start("--provider", server.url(), "--acquire-retry-interval", "100ms", "--acquire-retry-max-interval", "200ms", "--verify-interval", "300ms")
	c := s.dial()
	if st := c.status(); st.Scope != "shared" || st.Provider != server.url() {
		t.Errorf("scope %s, provider %s", st.Scope, st.Provider)
	}
	last := snowflake.ID(0)
	next := func(kind string) {
		t.Helper()
		id := c.id()
		if in := s.inspected(id); in.Kind != kind || id <= last {
			t.Errorf("after %d came %+v, want a %s one", last, in, kind)
		}
		last = id
	}
	next(snowflake.KindRegular)
	for range 2 {
		server.kill()
		c.awaitMode(fallbackModes...)
		next(snowflake.KindFallback)
		server = s.startLeaseServer(server.address, store...)
		c.awaitMode("regular")
		next(snowflake.KindRegular)
	}
	// A restart within the term changes nothing.
	server.kill()
	server = s.startLeaseServer(server.address, store...)
	c.awaitMode("regular")
	next(snowflake.KindRegular)
	if !server.ready() {
		t.Error("the server is not ready")
	}
	server.terminate()
}

// A lease that a daemon hands back at its stop is free at the server.
func TestLeaseServerTakesBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startLeaseServer("127.0.0.1:0", "--state-dir", s.path("server"),
		"--services", "{default: {ids: 7-7, term: 1h}}")
	d := s.start("--provider", server.url())
	c := s.dial()
	if l := c.lease(); l.MachineID != 7 {
		t.Errorf("the lease is %+v", l)
	}
	d.terminate()
	if _, err := os.Stat(filepath.Join(s.path("server"), "leases.db")); err != nil {
		t.Error(err)
	}
	s.start("--provider", server.url()) // the one machine ID is free again
	if l := s.dial().lease(); l.MachineID != 7 {
		t.Errorf("the lease is %+v", l)
	}
}

// What a browser sends for a page whose name was made to mean 127.0.0.1 has no mark
// but the name.
func TestLeaseServerIsNotReadUnderAnotherName(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	tokens := s.path("tokens.yaml")
	writeFile(t, tokens, "- {token: first-token-first-token-first, owner: web, scopes: [leases]}\n")
	status := func(l *leaseServer, network, host, path string) int {
		t.Helper()
		client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(l.address, "unix:"))
			}}}
		res, err := client.Get("http://" + host + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	open := s.startLeaseServer("127.0.0.1:0", "--state-dir", s.path("open"))
	for _, path := range []string{"/", "/leases", "/stats", "/status.json", "/leases/map", "/v1/locks", "/metrics"} {
		for host, want := range map[string]int{"evil.example:17464": 421, "localhost:17464": 200, "127.0.0.1": 200} {
			if got := status(open, "tcp", host, path); got != want {
				t.Errorf("GET %s of %s: %d, want %d", path, host, got, want)
			}
		}
	}
	insecure := s.startLeaseServer("127.0.0.1:0", "--state-dir", s.path("insecure"), "--insecure")
	guarded := s.startLeaseServer("127.0.0.1:0", "--state-dir", s.path("guarded"), "--tokens-file", tokens)
	socket := s.startLeaseServer("unix:"+s.path("l.sock"), "--state-dir", s.path("socket"))
	for _, c := range []struct {
		server  *leaseServer
		network string
		want    int
	}{{insecure, "tcp", 200}, {guarded, "tcp", 401}, {socket, "unix", 200}} {
		if got := status(c.server, c.network, "lease-server.example", "/leases"); got != c.want {
			t.Errorf("%s under another name: %d, want %d", c.server.address, got, c.want)
		}
	}
}

// A daemon of the same host can use a server that listens on a Unix socket.
func TestLeaseServerOnASocket(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startLeaseServer("unix:"+s.path("l.sock"), "--provider", "sqlite:"+s.leases()+"?ids=7-7")
	url := "http+unix:" + s.path("l.sock")
	d := s.start("--provider", url)
	c := s.dial()
	if l := c.lease(); l.MachineID != 7 || c.status().Provider != url {
		t.Errorf("the lease is %+v, the status %+v", l, c.status())
	}
	if r := s.leasesJSON("--provider", url); len(r.Leases) != 1 || r.Leases[0].MachineID != 7 {
		t.Errorf("leases says %+v", r)
	}
	d.terminate()
	server.terminate()
}

// SIGTERM ends the server with exit code 0, and SIGHUP reads the tokens again.
func TestLeaseServerSignals(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	tokens := s.path("tokens.yaml")
	writeFile(t, tokens, "- {token: the-first-token-of-all, owner: o, scopes: [leases]}\n")
	server := s.startLeaseServer("127.0.0.1:0", "--provider", "memory:", "--tokens-file", tokens)
	status := func(token string) int {
		t.Helper()
		req, err := http.NewRequest("POST", server.url()+"/lease", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	if a, b := status("the-first-token-of-all"), status("the-second-token-of-all"); a != 200 || b != 401 {
		t.Errorf("status %d and %d", a, b)
	}
	writeFile(t, tokens, "- {token: the-second-token-of-all, owner: o, scopes: [leases]}\n")
	if err := server.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new token is known", func() bool { return status("the-second-token-of-all") == 200 })
	if got := status("the-first-token-of-all"); got != 401 {
		t.Errorf("the old token: %d", got)
	}
	if text := server.log.String(); strings.Contains(text, "-token-of-all") {
		t.Error("the log shows a token")
	}
	server.terminate()
}

func TestLeaseServerCheck(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	check := func(args ...string) outcome {
		return s.kazahanad(append([]string{"lease-server", "--check", "--config", "none"}, args...)...)
	}
	if said := check("--services", "{a: {bit_seq: 9}, acme/b: {pool: p}}").ok(t); !strings.Contains(said, "ok: listen 127.0.0.1:7464, provider sqlite:"+s.state) ||
		!strings.Contains(said, "2 service(s)") {
		t.Error(said)
	}
	if _, err := os.Stat(filepath.Join(s.state, "leases.db")); err == nil {
		t.Error("--check made the store")
	}
	writeFile(t, s.path("bad.yaml"), "- {token: x}\n")
	for _, test := range []struct {
		code int
		args []string
		want []string
	}{
		{exitUsage, []string{"--listen", ":7464"}, []string{"--insecure"}},
		{exitUsage, []string{"--services", "{a: {bit_seq: 9, bit_id: 9}}"}, []string{"services.a"}},
		{exitUsage, []string{"--services", "{a: {bit_ts: 42}}"}, []string{`pool "default"`, "bit_ts 42"}},
		{exitUsage, []string{"--services", "{a: {ids: 0-99999}}"}, []string{"services.a", "0-8191"}},
		{exitUsage, []string{"--provider", "sqlite:/x?trm=5m"}, []string{"trm"}},
		{exitUsage, []string{"--provider", "http://h:1", "--services", "{a: {}}"}, []string{"the lease server that the URL names"}},
		{exitFailure, []string{"--tokens-file", s.path("none.yaml")}, []string{"tokens_file", "none.yaml"}},
		{exitFailure, []string{"--tokens-file", s.path("bad.yaml")}, []string{"entry 1", "16 or more"}},
		{exitFailure, []string{"--tls-cert", "/none", "--tls-key", "/none"}, []string{"tls_cert and tls_key"}},
	} {
		check(test.args...).fails(t, test.code, test.want...)
	}
}

// The walk of docs/lease-server.md, run as it stands there.
func TestLeaseServerWalk(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"sh", "curl", "openssl", "node", "cmp", "sed"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	page, err := os.ReadFile("../../docs/lease-server.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "## A walk with curl\n")
	section, _, ended := strings.Cut(section, "\n## ")
	if !found || !ended {
		t.Fatal("the page has no walk")
	}
	blocks := func(kind string) (all []string) {
		for _, m := range regexp.MustCompile("(?s)```"+kind+"\n(.*?)```").FindAllStringSubmatch(section, -1) {
			all = append(all, m[1])
		}
		return all
	}
	script, problems := blocks("sh"), blocks("text")
	if len(script) != 6 || len(problems) != 1 {
		t.Fatalf("%d blocks of commands and %d of output", len(script), len(problems))
	}
	s := newSite(t)
	server := s.startLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+s.leases())
	cmd := exec.Command("sh", "-eu", "-c", strings.Join(script, "\necho ----\n"))
	cmd.Dir = s.dir
	cmd.Env = s.environment("SERVER=" + server.url())
	out := runCommand(t, cmd)
	if out.code != 0 {
		t.Fatalf("exit code %d, stdout %s, stderr %s", out.code, out.stdout, out.stderr)
	}
	said := strings.Split(out.stdout, "----\n")
	for i, want := range []string{`"leases":[{"id":`, "the same lease\n", `"serviceId":"orders","meta":{"host":"walk"}`, "204\n", "204\n", problems[0]} {
		if exact := strings.HasSuffix(want, "\n"); exact && said[i] != want || !strings.Contains(said[i], want) {
			t.Errorf("block %d said %q, want %q", i+1, said[i], want)
		}
	}
	// The lease that the page shows has the fields that the server sends.
	names := regexp.MustCompile(`"(\w+)":`)
	if shown, got := names.FindAllString(blocks("json")[0], -1), names.FindAllString(said[0], -1); fmt.Sprint(shown) != fmt.Sprint(got) {
		t.Errorf("the page shows %v, and the server sends %v", shown, got)
	}
}
