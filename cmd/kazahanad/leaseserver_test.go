package main

import (
	"bufio"
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
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// A browser's request for a page with a name that was made to mean 127.0.0.1 has no mark but the
// name.
func TestLeaseServerIsNotReadUnderAnotherName(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	tokens := s.Path("tokens.yaml")
	testkit.WriteFile(t, tokens, "- {token: first-token-first-token-first, owner: web, scopes: [leases]}\n")
	status := func(l *testkit.LeaseServer, network, host, path string) int {
		t.Helper()
		client := &http.Client{Timeout: await.Patience, Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(l.Address, "unix:"))
			}}}
		res, err := client.Get("http://" + host + path)
		must.Succeed(t, err)
		defer res.Body.Close()
		return res.StatusCode
	}
	open := s.StartLeaseServer("127.0.0.1:0", "--state-dir", s.Path("open"))
	for _, path := range []string{"/", "/leases"} {
		for host, want := range map[string]int{"evil.example:17464": 421, "localhost:17464": 200, "127.0.0.1": 200} {
			if got := status(open, "tcp", host, path); got != want {
				t.Errorf("GET %s of %s: %d, want %d", path, host, got, want)
			}
		}
		if got := statusWithoutHost(t, "tcp", open.Address, path); got != 200 {
			t.Errorf("GET %s without Host: %d", path, got)
		}
	}
	// Where a credential or a file's permissions decide, the name does not count.
	guarded := s.StartLeaseServer("127.0.0.1:0", "--state-dir", s.Path("guarded"), "--tokens-file", tokens)
	socket := s.StartLeaseServer("unix:"+s.Path("l.sock"), "--state-dir", s.Path("socket"))
	if got := status(guarded, "tcp", "lease-server.example", "/leases"); got != 401 {
		t.Errorf("with tokens, under another name: %d", got)
	}
	if got := status(socket, "unix", "lease-server.example", "/leases"); got != 200 {
		t.Errorf("on a socket, under another name: %d", got)
	}
	if got := statusWithoutHost(t, "unix", s.Path("l.sock"), "/leases"); got != 200 {
		t.Errorf("on a socket, without Host: %d", got)
	}
}

// statusWithoutHost is the answer to a GET as health checks in HTTP/1.0 send it.
func statusWithoutHost(t *testing.T, network, address, path string) int {
	t.Helper()
	nc, err := net.Dial(network, address)
	must.Succeed(t, err)
	defer nc.Close()
	must.Succeed(t, nc.SetDeadline(time.Now().Add(await.Patience)))
	_, err = nc.Write([]byte("GET " + path + " HTTP/1.0\r\n\r\n"))
	must.Succeed(t, err)
	res, err := http.ReadResponse(bufio.NewReader(nc), nil)
	must.Succeed(t, err)
	_ = res.Body.Close()
	return res.StatusCode
}

// SIGTERM ends the server with exit code 0, and SIGHUP reads the tokens again.
func TestLeaseServerSignals(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	tokens := s.Path("tokens.yaml")
	testkit.WriteFile(t, tokens, "- {token: the-first-token-of-all, owner: o, scopes: [leases]}\n")
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "memory:", "--tokens-file", tokens)
	status := func(token string) int {
		t.Helper()
		status, _ := server.Answer("POST", "/lease", token, nil)
		return status
	}
	if a, b := status("the-first-token-of-all"), status("the-second-token-of-all"); a != 200 || b != 401 {
		t.Errorf("status %d and %d", a, b)
	}
	testkit.WriteFile(t, tokens, "- {token: the-second-token-of-all, owner: o, scopes: [leases]}\n")
	must.Succeed(t, server.Cmd.Process.Signal(syscall.SIGHUP))
	await.Eventually(t, "the new token is known", func() bool { return status("the-second-token-of-all") == 200 })
	if got := status("the-first-token-of-all"); got != 401 {
		t.Errorf("the old token: %d", got)
	}
	if text := server.Log.String(); strings.Contains(text, "-token-of-all") {
		t.Error("the log shows a token")
	}
	server.Terminate()
}

// A configuration or tokens that are refused show as a metric until they are mended.
func TestLeaseServerShowsRefusedFiles(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const operator = "the-token-of-operators"
	config, tokens := s.Path("lease-server.yaml"), s.Path("tokens.yaml")
	good := fmt.Sprintf("- {token: %s, owner: o, scopes: [admin]}\n", operator)
	testkit.WriteFile(t, config, "log_level: info\n")
	testkit.WriteFile(t, tokens, good)
	server := s.StartLeaseServer("127.0.0.1:0", "--config", config, "--provider", "memory:", "--tokens-file", tokens)
	shows := func(what, value string) {
		t.Helper()
		await.Eventually(t, what, func() bool {
			_, text := server.Answer("GET", "/metrics", operator, nil)
			return strings.Contains(text, "\nkazahana_config_last_reload_successful "+value+"\n")
		})
	}
	hangup := func() {
		t.Helper()
		must.Succeed(t, server.Cmd.Process.Signal(syscall.SIGHUP))
	}
	shows("what it started with is in force", "1")
	testkit.WriteFile(t, config, "log_levl: info\n")
	hangup()
	shows("a configuration is refused", "0")
	testkit.WriteFile(t, config, "log_level: info\n")
	hangup()
	shows("the configuration was mended", "1")
	testkit.WriteFile(t, tokens, "- {token: short}\n") // which is noticed by itself
	shows("tokens are refused", "0")
	testkit.WriteFile(t, tokens, good)
	shows("the tokens were mended", "1")
}

func TestLeaseServerCheck(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	check := func(args ...string) testkit.Outcome {
		return s.Kazahanad(append([]string{"lease-server", "--check", "--config", "none"}, args...)...)
	}
	if said := check("--services", "{a: {bit_seq: 9}, acme/b: {pool: p}}").OK(t); !strings.Contains(said, "ok: listen 127.0.0.1:7464, provider sqlite:"+s.State) ||
		!strings.Contains(said, "2 service(s)") {
		t.Error(said)
	}
	if _, err := os.Stat(filepath.Join(s.State, "leases.db")); err == nil {
		t.Error("--check made the store")
	}
	testkit.WriteFile(t, s.Path("bad.yaml"), "- {token: x}\n")
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
		{exitUsage, []string{"--provider", "http://h:1", "--store", "none", "--services", "{a: {}}"}, []string{"the lease server that the URL names"}},
		{exitFailure, []string{"--tokens-file", s.Path("none.yaml")}, []string{"tokens_file", "none.yaml"}},
		{exitFailure, []string{"--tokens-file", s.Path("bad.yaml")}, []string{"entry 1", "16 or more"}},
		{exitFailure, []string{"--tls-cert", "/none", "--tls-key", "/none"}, []string{"tls_cert and tls_key"}},
	} {
		check(test.args...).Fails(t, test.code, test.want...)
	}
}

// The walk of docs/lease-server.md, run as it stands there.
func TestLeaseServerWalk(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"sh", "curl", "openssl", "node", "cmp", "sed"} {
		ring.Program(t, tool)
	}
	page, err := os.ReadFile("../../docs/lease-server.md")
	must.Succeed(t, err)
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
	script := blocks("sh")
	if len(script) != 4 {
		t.Fatalf("%d blocks of commands", len(script))
	}
	s := newSite(t)
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+s.Leases())
	cmd := exec.Command("sh", "-eu", "-c", strings.Join(script, "\necho ----\n"))
	cmd.Dir = s.Dir
	cmd.Env = s.Environment("SERVER=" + server.URL())
	out := testkit.RunCommand(t, cmd)
	if out.Code != 0 {
		t.Fatalf("exit code %d, stdout %s, stderr %s", out.Code, out.Stdout, out.Stderr)
	}
	said := strings.Split(out.Stdout, "----\n")
	for i, want := range []string{`"leases":[{"id":`, "the same lease\n", "204\n", "204\n"} {
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
