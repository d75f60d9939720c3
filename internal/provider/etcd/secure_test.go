package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
)

// certificate writes a certificate and its key as PEM; without a parent it is
// an authority of its own.
func certificate(t *testing.T, dir, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: parent == nil,
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// documented is the commands of docs/providers/etcd.md that set up a user.
func documented(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "providers", "etcd.md"))
	if err != nil {
		t.Fatal(err)
	}
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

// TestTLSAndPassword sets a cluster up as the page says, with certificates on
// both sides and a user that may do no more than it must.
func TestTLSAndPassword(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("etcdctl"); err != nil {
		t.Skip("etcdctl is not installed (Debian: etcd-client)")
	}
	dir := t.TempDir()
	ca, caKey := certificate(t, dir, "ca", nil, nil)
	certificate(t, dir, "server", ca, caKey)
	certificate(t, dir, "client", ca, caKey)
	other := t.TempDir()
	certificate(t, other, "ca", nil, nil)
	file := func(name string) string { return filepath.Join(dir, name) }
	m := etcdtest.Cluster(t, 1, "https", "--cert-file", file("server.crt"), "--key-file", file("server.key"),
		"--trusted-ca-file", file("ca.crt"), "--client-cert-auth", "--auth-token-ttl", "1")[0]

	run := func(password string, command ...string) error {
		cmd := exec.Command("etcdctl", command...)
		cmd.Env = append(os.Environ(), "ETCDCTL_API=3", "ETCDCTL_ENDPOINTS=https://"+m.Client, "ETCDCTL_CACERT="+file("ca.crt"),
			"ETCDCTL_CERT="+file("client.crt"), "ETCDCTL_KEY="+file("client.key"), "ETCDCTL_DIAL_TIMEOUT=2s")
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
		if err := os.WriteFile(file(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file(name)
	}
	good := "etcd://" + m.Client + "?ca_file=" + file("ca.crt") + "&cert_file=" + file("client.crt") + "&key_file=" + file("client.key") +
		"&username=kazahana&password_file=" + write("password", password+"\n")
	open := func(url string) (*Provider, error) {
		cfg, err := ParseURL(url, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return Open(cfg)
	}
	p, err := open(good)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	exercise := func() {
		t.Helper()
		ctx := within(t, 2*callTime)
		leases, err := p.Acquire(ctx, provider.AcquireRequest{ThroughputPerMS: 1000})
		if err != nil {
			t.Fatal(err)
		}
		l := leases[0]
		if _, err := provider.Extend(ctx, p, "", l); err != nil {
			t.Errorf("Extend: %v", err)
		}
		if lost, err := provider.Verify(ctx, p, "", leases); err != nil || len(lost) > 0 {
			t.Errorf("Verify: %v, %v", lost, err)
		}
		now := time.Now().UnixMilli()
		if err := p.Release(ctx, provider.ReleaseRequest{ID: l.ID, BitSeq: provider.AnyBitSeq, TimestampMS: now, Signature: lease.Sign(l.Secret, l.ID, now)}); err != nil {
			t.Errorf("Release: %v", err)
		}
		if _, err := p.List(ctx, ""); err != nil {
			t.Errorf("List: %v", err)
		}
		if got, err := p.Locate(ctx, "", leases[1].Slot().Start, leases[1].Created); err != nil || len(got) != 1 {
			t.Errorf("Locate: %v, %v", got, err)
		}
	}
	for range 3 {
		exercise()
		time.Sleep(2500 * time.Millisecond) // the token has a time to live of one second
	}
	m.Kill() // and a simple token does not survive its member
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "after a restart", func(ctx context.Context) error { _, err := p.List(ctx, ""); return err })
	exercise()

	for name, bad := range map[string]struct{ url, want string }{
		"wrong password": {strings.Replace(good, file("password"), write("wrong", "hunter2"), 1), "username and password_file"},
		// The client certificate stands for a user here, whom nobody knows.
		"no user":          {strings.Split(good, "&username")[0], "permission denied"},
		"other prefix":     {good + "&prefix=/other/", "grant its role"},
		"other authority":  {strings.Replace(good, file("ca.crt"), filepath.Join(other, "ca.crt"), 1), "certificate"},
		"no certificate":   {strings.Replace(good, "&cert_file="+file("client.crt")+"&key_file="+file("client.key"), "", 1), "no member can be reached"}, // by then the server has hung up, mostly after "tls: bad certificate"
		"not encrypted":    {"etcd://" + m.Client, "no member can be reached"},
		"no password file": {strings.Replace(good, file("password"), file("absent"), 1), "absent"},
	} {
		p, err := open(bad.url)
		if err == nil {
			_, err = p.Acquire(within(t, 10*callTime), provider.AcquireRequest{}) // logging in is slow on purpose
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
