package redis

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is a server that has one answer to everything but HELLO.
func fake(t *testing.T, answer string) string {
	dir, err := os.MkdirTemp("", "kazahana-fake-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.Sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					command, err := readCommand(in)
					if err != nil {
						return
					}
					text := answer
					if command == "hello" {
						text = "-ERR unknown command"
					}
					if _, err := io.WriteString(c, text+"\r\n"); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); os.RemoveAll(dir) })
	return path
}

// readCommand reads one command, and returns its name.
func readCommand(in *bufio.Reader) (string, error) {
	number := func() int {
		line, _ := in.ReadString('\n')
		n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimLeft(line, "*$")))
		return n
	}
	name := ""
	for i := range number() {
		b := make([]byte, number()+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return "", err
		}
		if i == 0 {
			name = strings.ToLower(strings.TrimSpace(string(b)))
		}
	}
	if name == "" {
		return "", io.EOF
	}
	return name, nil
}

// certificates writes an authority, and a certificate by it for 127.0.0.1.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	leafKey, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	caDER, err3 := x509.CreateCertificate(rand.Reader, authority, authority, &caKey.PublicKey, caKey)
	leafDER, err4 := x509.CreateCertificate(rand.Reader, leaf, authority, &leafKey.PublicKey, caKey)
	keyDER, err5 := x509.MarshalPKCS8PrivateKey(leafKey)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	return write("ca.pem", "CERTIFICATE", caDER), write("cert.pem", "CERTIFICATE", leafDER), write("key.pem", "PRIVATE KEY", keyDER)
}
