// Package certtest issues certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Authority issues certificates into files of a directory.
type Authority struct {
	File string // its own certificate, PEM
	t    testing.TB
	dir  string
	cert *x509.Certificate // its template
	der  []byte
	key  *ecdsa.PrivateKey
}

// New makes an authority.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	a.cert, a.key = &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}, a.newKey()
	a.File = a.sign("ca.pem", a.cert, a.key)
	return a
}

// Certificate is the authority's own.
func (a *Authority) Certificate() *x509.Certificate {
	cert, err := x509.ParseCertificate(a.der)
	must.Succeed(a.t, err)
	return cert
}

// Issue makes a certificate and its key, for a server on 127.0.0.1, or on the named hosts
// instead, and for a client alike.
func (a *Authority) Issue(name string, hosts ...string) (cert, key string) {
	a.t.Helper()
	private := a.newKey()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: hosts,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if len(hosts) == 0 {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	must.Succeed(a.t, err)
	return a.sign(name+".pem", template, private), a.write(name+".key", "PRIVATE KEY", der)
}

// sign completes the template, and writes the certificate that it makes.
func (a *Authority) sign(file string, template *x509.Certificate, of *ecdsa.PrivateKey) (path string) {
	a.t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	must.Succeed(a.t, err)
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, of.Public(), a.key)
	must.Succeed(a.t, err)
	if a.der == nil {
		a.der = der
	}
	return a.write(file, "CERTIFICATE", der)
}

func (a *Authority) newKey() *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Succeed(a.t, err)
	return key
}

func (a *Authority) write(name, kind string, der []byte) (path string) {
	a.t.Helper()
	path = filepath.Join(a.dir, name)
	must.Succeed(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}
