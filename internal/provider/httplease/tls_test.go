package httplease_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/testkit/certtest"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/leaseserver"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/httplease"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// serveTLS runs a server on the files, and returns its URL and what reloads them.
func serveTLS(t *testing.T, files leaseserver.TLSFiles) (url string, reload func()) {
	t.Helper()
	services := provider.Services{Default: provider.DefaultTerms()}
	m, err := providertest.OverMemory(memory.New(nil), services)
	must.Succeed(t, err)
	o := options(m, services)
	o.ClientCertificates = files.ClientCA != ""
	certificates, err := leaseserver.NewTLS(files, zap.NewNop())
	must.Succeed(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- leaseserver.New(o).Serve(ctx, l, leaseserver.Listening{
			TLS: leaseserver.ServerTLS(certificates), MaxConnections: 100, DrainTimeout: await.Patience,
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "https://" + l.Addr().String(), certificates.Reload
}

func acquireOnce(t *testing.T, raw string) (string, error) {
	t.Helper()
	p := mustOpen(t, raw)
	defer p.Close()
	leases, err := p.Acquire(within(t, await.Patience), provider.AcquireRequest{RequestID: "always the same"})
	if err != nil {
		return "", err
	}
	return leases[0].Secret, nil
}

// A client that would rather speak HTTP/2 speaks HTTP/1.1, and a client that speaks nothing else
// is refused in words that it knows, with TLS, and without a negotiation.
func TestHTTP2IsRefused(t *testing.T) {
	authority := certtest.New(t, "authority")
	cert, key := authority.Issue("server")
	server, _ := serveTLS(t, leaseserver.TLSFiles{Cert: cert, Key: key})
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate())
	either := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	defer either.CloseIdleConnections()
	res, err := either.Get(server + "/healthz")
	must.Succeed(t, err)
	defer res.Body.Close()
	if res.ProtoMajor != 1 || res.StatusCode != http.StatusOK {
		t.Errorf("%s, status %d", res.Proto, res.StatusCode)
	}
	address := strings.TrimPrefix(server, "https://")
	_, err = tls.Dial("tcp", address, &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}})
	if err == nil || !strings.Contains(err.Error(), "no application protocol") {
		t.Errorf("HTTP/2 only: %v", err)
	}
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots})
	must.Succeed(t, err)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(await.Patience))
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("HTTP/2 all the same: %q, %v", answer, err)
	}
}

func TestTLS(t *testing.T) {
	ours, theirs := certtest.New(t, "ours"), certtest.New(t, "theirs")
	cert, key := ours.Issue("server")
	server, reload := serveTLS(t, leaseserver.TLSFiles{Cert: cert, Key: key})
	if _, err := acquireOnce(t, server+"?ca_file="+ours.File); err != nil {
		t.Error(err)
	}
	for name, raw := range map[string]string{
		"another authority": server + "?ca_file=" + theirs.File,
		"the system's":      server,
		"no TLS":            strings.Replace(server, "https", "http", 1),
	} {
		if _, err := acquireOnce(t, raw); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// The certificate is replaced under way.
	newCert, newKey := theirs.Issue("server")
	for from, to := range map[string]string{newCert: cert, newKey: key} {
		b, err := os.ReadFile(from)
		must.Succeed(t, err)
		must.Succeed(t, os.WriteFile(to, b, 0o600))
	}
	reload()
	if _, err := acquireOnce(t, server+"?ca_file="+theirs.File); err != nil {
		t.Errorf("after the replacement: %v", err)
	}
}

func TestMutualTLS(t *testing.T) {
	ours, theirs := certtest.New(t, "ours"), certtest.New(t, "theirs")
	cert, key := ours.Issue("server")
	server, _ := serveTLS(t, leaseserver.TLSFiles{Cert: cert, Key: key, ClientCA: ours.File})
	as := func(a *certtest.Authority, name string) string {
		c, k := a.Issue(name)
		return server + "?ca_file=" + ours.File + "&cert_file=" + c + "&key_file=" + k
	}
	a := as(ours, "host-a")
	first, err := acquireOnce(t, a)
	must.Succeed(t, err)
	if again, err := acquireOnce(t, a); err != nil || again != first {
		t.Errorf("the same host's request was answered differently: %v", err)
	}
	// The certificate is the owner: another host's request is another request.
	if other, err := acquireOnce(t, as(ours, "host-b")); err != nil || other == first {
		t.Errorf("another host was given the lease: %v", err)
	}
	var p *problem.Problem
	if _, err := acquireOnce(t, server+"?ca_file="+ours.File); !errors.As(err, &p) || p.Code != problem.Unauthenticated {
		t.Errorf("without a certificate: %v", err)
	}
	if _, err := acquireOnce(t, as(theirs, "host-c")); err == nil {
		t.Error("another authority's certificate was accepted")
	}
	// A health probe has none.
	pool := x509.NewCertPool()
	pool.AddCert(ours.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Get(server + "/healthz")
	must.Succeed(t, err)
	if res.Body.Close(); res.StatusCode != 200 {
		t.Errorf("healthz: %s", res.Status)
	}
}

// Files that are no good stop the start.
func TestTLSFiles(t *testing.T) {
	a := certtest.New(t, "ours")
	cert, key := a.Issue("client")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	must.Succeed(t, os.WriteFile(empty, nil, 0o600))
	for raw, want := range map[string]string{
		"https://h?ca_file=/does/not/exist":                          "ca_file",
		"https://h?ca_file=" + empty:                                 "no certificate in PEM form",
		"https://h?cert_file=" + cert + "&key_file=" + empty:         "and key_file ",
		"https://h?cert_file=/does/not/exist&key_file=" + key:        "and key_file ",
		"https://h?cert_file=" + a.File + "&key_file=" + key:         "and key_file ",
		"https://h?token_file=" + filepath.Join(t.TempDir(), "none"): "token_file",
	} {
		cfg, err := httpconn.ParseURL(raw)
		must.Succeed(t, err)
		if _, err := httplease.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, files := range []leaseserver.TLSFiles{
		{Cert: cert, Key: empty}, {Cert: cert, Key: key, ClientCA: empty}, {Cert: cert, Key: key, ClientCA: "/does/not/exist"},
	} {
		if _, err := leaseserver.NewTLS(files, zap.NewNop()); err == nil {
			t.Errorf("%+v was accepted", files)
		}
	}
}
