package postgresconn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/certtest"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// TestSecure uses TLS and passwords, and names their faults in plain words.
func TestSecure(t *testing.T) {
	server := postgrestest.New(t)
	ca, other := certtest.New(t, "ca"), certtest.New(t, "other")
	// The server's user reads them, and no other user may.
	certFile, keyFile := server.Own(ca.Issue("server", "localhost"))
	server.SQL("CREATE ROLE app LOGIN PASSWORD 'right'", "CREATE DATABASE app OWNER app", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 OWNER app")
	server.Stop()
	port := fmt.Sprint(ring.FreePort(t))
	hba := "local all postgres trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
	must.Succeed(t, os.WriteFile(server.Data()+"/pg_hba.conf", []byte(hba), 0o644))
	server.Listen("localhost", port)
	server.AddArgs("-c", "ssl=on", "-c", "ssl_cert_file="+certFile, "-c", "ssl_key_file="+keyFile)
	server.Start()

	password := filepath.Join(t.TempDir(), "password")
	must.Succeed(t, os.WriteFile(password, []byte("right\n"), 0o600))
	file := "&password_file=" + password
	for url, want := range map[string]string{
		"postgres://app:right@localhost:PORT/app?ca_file=" + ca.File:                         "",
		"postgres://app@localhost:PORT/app?ca_file=" + ca.File + file:                        "",
		"postgres://localhost:1,localhost:PORT/app?username=app&ca_file=" + ca.File + file:   "",
		"postgres://app:right@127.0.0.1:PORT/app?sslmode=require":                            "",
		"postgres://app:right@127.0.0.1:PORT/app?ca_file=" + ca.File:                         "for another name",
		"postgres://app:right@localhost:PORT/app?ca_file=" + other.File:                      "not signed by an authority known here",
		"postgres://app:right@localhost:PORT/app":                                            "does not let this user in from here",
		"postgres://app:wrong@localhost:PORT/app?ca_file=" + ca.File:                         "user name or password is wrong",
		"postgres://app:right@localhost:PORT/none?ca_file=" + ca.File:                        "no such database",
		"postgres://app:right@localhost:PORT/latin?ca_file=" + ca.File:                       "needs UTF8",
		"postgres://app:right@localhost:PORT/postgres?ca_file=" + ca.File:                    "the user lacks a right",
		"postgres://app@localhost:PORT/app?ca_file=" + ca.File + "&password_file=/none/file": "password_file",
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
	must.Succeed(t, err)
	if _, err := open(t, cfg).Look(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "does not speak TLS") {
		t.Errorf("a server without TLS: %v", err)
	}
}
