package etcd_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// documented is the commands of docs/providers/etcd.md that set up a user.
func documented(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "providers", "etcd.md"))
	must.Succeed(t, err)
	var commands []string
	for line := range strings.Lines(string(page)) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "etcdctl "); ok && (strings.Contains(command, "role ") || strings.Contains(command, "user ") || strings.Contains(command, "auth ")) {
			commands = append(commands, command)
		}
	}
	if len(commands) < 6 {
		t.Fatalf("the page has only these commands: %q", commands)
	}
	return commands
}

// TestLeasesWithTLSAndPassword sets a cluster up as the page says, with certificates on
// both sides and a user that may do no more than it must.
func TestLeasesWithTLSAndPassword(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("etcdctl"); err != nil {
		t.Skip("etcdctl is not installed (Debian: etcd-client)")
	}
	dir := t.TempDir()
	ca, other := certtest.New(t, "ca"), certtest.New(t, "other")
	serverCert, serverKey := ca.Issue("server")
	clientCert, clientKey := ca.Issue("client")
	file := func(name string) string { return filepath.Join(dir, name) }
	m := etcdtest.Cluster(t, 1, "https", "--cert-file", serverCert, "--key-file", serverKey,
		"--trusted-ca-file", ca.File, "--client-cert-auth", "--auth-token-ttl", "1")[0]

	run := func(password string, command ...string) error {
		cmd := exec.Command("etcdctl", command...)
		cmd.Env = append(os.Environ(), "ETCDCTL_API=3", "ETCDCTL_ENDPOINTS=https://"+m.Client, "ETCDCTL_CACERT="+ca.File,
			"ETCDCTL_CERT="+clientCert, "ETCDCTL_KEY="+clientKey, "ETCDCTL_DIAL_TIMEOUT=60s", "ETCDCTL_COMMAND_TIMEOUT=60s")
		cmd.Stdin = strings.NewReader(password + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Logf("etcdctl %v: %s", command, out)
			return err
		}
		return nil
	}
	eventually(t, "etcdctl", func(context.Context) error { return run("", "put", "/ready", "") })
	const password = "correct-horse" // etcdctl ends it at a space
	for _, command := range documented(t) {
		if err := run(password, strings.Fields(command)...); err != nil {
			t.Fatalf("etcdctl %s: %v", command, err)
		}
	}

	write := func(name, content string) string {
		must.Succeed(t, os.WriteFile(file(name), []byte(content), 0o600))
		return file(name)
	}
	good := "etcd://" + m.Client + "?ca_file=" + ca.File + "&cert_file=" + clientCert + "&key_file=" + clientKey +
		"&username=kazahana&password_file=" + write("password", password+"\n")
	openURL := func(url string) (*leases, error) {
		cfg, _, err := etcdconn.ParseURL(url, nil)
		must.Succeed(t, err)
		return open(cfg, options{})
	}
	p, err := openURL(good)
	must.Succeed(t, err)
	defer p.Close()
	exercise := func() {
		t.Helper()
		ctx := testContext(t)
		got, err := p.Acquire(ctx, provider.AcquireRequest{ThroughputPerMS: 1000})
		must.Succeed(t, err)
		l := got[0]
		if _, err := provider.Extend(ctx, p, "", l); err != nil {
			t.Errorf("Extend: %v", err)
		}
		if lost, err := provider.Verify(ctx, p, "", got); err != nil || len(lost) > 0 {
			t.Errorf("Verify: %v, %v", lost, err)
		}
		release := providertest.SignedRelease(l, time.Now().UnixMilli())
		release.BitSeq = provider.AnyBitSeq
		if err := p.Release(ctx, release); err != nil {
			t.Errorf("Release: %v", err)
		}
		if _, err := p.List(ctx, ""); err != nil {
			t.Errorf("List: %v", err)
		}
		if found, err := p.Locate(ctx, "", got[1].Slot().Start, got[1].Created); err != nil || len(found) != 1 {
			t.Errorf("Locate: %v, %v", found, err)
		}
	}
	exercise()
	time.Sleep(2500 * time.Millisecond) // the token has a time to live of one second
	exercise()
	m.Kill() // and a simple token does not survive its member
	must.Succeed(t, m.Start())
	eventually(t, "after a restart", func(ctx context.Context) error { _, err := p.List(ctx, ""); return err })
	exercise()

	for name, bad := range map[string]struct{ url, want string }{
		"wrong password": {strings.Replace(good, file("password"), write("wrong", "hunter2"), 1), "username and password_file"},
		// The client certificate stands for a user here, which the server does not know.
		"no user":          {strings.Split(good, "&username")[0], "permission denied"},
		"other prefix":     {good + "&prefix=/other/", "grant its role"},
		"other authority":  {strings.Replace(good, ca.File, other.File, 1), "certificate"},
		"no certificate":   {strings.Replace(good, "&cert_file="+clientCert+"&key_file="+clientKey, "", 1), "no member can be reached"}, // by then the server has hung up, mostly after "tls: bad certificate"
		"not encrypted":    {"etcd://" + m.Client, "no member can be reached"},
		"no password file": {strings.Replace(good, file("password"), file("absent"), 1), "absent"},
	} {
		p, err := openURL(bad.url)
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*callTime)
			_, err = p.Acquire(ctx, provider.AcquireRequest{}) // logging in is slow on purpose
			cancel()
			p.Close()
		}
		if err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: the error is %v, want one with %q", name, err, bad.want)
			continue
		}
		for _, secret := range []string{"hunter2", password} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error shows a password: %v", name, err)
			}
		}
	}
}
