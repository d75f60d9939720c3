package connurl_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// What operators see of the certificates of stores.
func TestValidity(t *testing.T) {
	authority := certtest.New(t, "authority")
	cert, key := authority.Issue("server")
	if files := connurl.CertificateFiles("redis://a:1,b:2/0?cert_file="+cert+"&key_file="+key, "etcd://c?cert_file="+cert, "sqlite:/l.db", ""); !slices.Equal(files, []string{cert}) {
		t.Errorf("the files are %q", files)
	}
	begin, end := connurl.Validity(cert)
	if now := time.Now(); begin.After(now) || end.Before(now) {
		t.Errorf("it is valid from %v to %v", begin, end)
	}
	broken := filepath.Join(t.TempDir(), "broken.pem")
	must.Succeed(t, os.WriteFile(broken, []byte("-----BEGIN CERTIFICATE-----\neA==\n-----END CERTIFICATE-----\n"), 0o600))
	for _, file := range []string{broken, broken + ".away"} {
		if begin, end := connurl.Validity(file); !begin.IsZero() || !end.IsZero() {
			t.Errorf("%s is valid from %v to %v", file, begin, end)
		}
	}
}
