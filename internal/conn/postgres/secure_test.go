package postgresconn_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	postgresconn "github.com/kazahana/kazahana/internal/conn/postgres"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// certificate writes a certificate for localhost that signs itself.
func certificate(t *testing.T, dir string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return certFile, keyFile
}

// TestSecure uses TLS and passwords, and says in plain words what is wrong with them.
func TestSecure(t *testing.T) {
	server := postgrestest.New(t)
	certFile, keyFile := certificate(t, server.Dir)
	server.Own(keyFile)
	server.SQL("CREATE ROLE app LOGIN PASSWORD 'right'", "CREATE DATABASE app OWNER app", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 OWNER app")
	server.Stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	must(t, l.Close())
	hba := "local all postgres trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
	must(t, os.WriteFile(server.Data()+"/pg_hba.conf", []byte(hba), 0o644))
	server.Listen("localhost", port)
	server.AddArgs("-c", "ssl=on", "-c", "ssl_cert_file="+certFile, "-c", "ssl_key_file="+keyFile)
	server.Start()

	password := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(password, []byte("right\n"), 0o600))
	other, _ := certificate(t, t.TempDir())
	file := "&password_file=" + password
	for url, want := range map[string]string{
		"postgres://app:right@localhost:PORT/app?ca_file=" + certFile:                         "",
		"postgres://app@localhost:PORT/app?ca_file=" + certFile + file:                        "",
		"postgres://localhost:1,localhost:PORT/app?username=app&ca_file=" + certFile + file:   "",
		"postgres://app:right@127.0.0.1:PORT/app?sslmode=require":                             "",
		"postgres://app:right@127.0.0.1:PORT/app?ca_file=" + certFile:                         "for another name",
		"postgres://app:right@localhost:PORT/app?ca_file=" + other:                            "not signed by an authority known here",
		"postgres://app:right@localhost:PORT/app":                                             "does not let this user in from here",
		"postgres://app:wrong@localhost:PORT/app?ca_file=" + certFile:                         "user name or password is wrong",
		"postgres://app:right@localhost:PORT/none?ca_file=" + certFile:                        "no such database",
		"postgres://app:right@localhost:PORT/latin?ca_file=" + certFile:                       "needs UTF8",
		"postgres://app:right@localhost:PORT/postgres?ca_file=" + certFile:                    "the user lacks a right",
		"postgres://app@localhost:PORT/app?ca_file=" + certFile + "&password_file=/none/file": "password_file",
	} {
		cfg, _, err := postgresconn.ParseURL(strings.ReplaceAll(url, "PORT", port), nil)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		err = note(t.Context(), open(t, cfg))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", url, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: the error is %v, want one with %q", url, err, want)
		case err != nil && (strings.Contains(err.Error(), "right@") || strings.Contains(err.Error(), "wrong@")):
			t.Errorf("%s: the error shows the password: %v", url, err)
		}
	}
	server.Stop()
	server.AddArgs("-c", "ssl=off")
	server.Start()
	cfg, _, err := postgresconn.ParseURL("postgres://app@localhost:"+port+"/app?sslmode=verify-full"+file, nil)
	must(t, err)
	if _, err := open(t, cfg).Look(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "does not speak TLS") {
		t.Errorf("a server without TLS: %v", err)
	}
}
