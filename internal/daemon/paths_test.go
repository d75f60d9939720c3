package daemon

import (
	"errors"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/generator"
)

func TestPathsReachNoClient(t *testing.T) {
	for text, want := range map[string]string{
		"sqlite:/var/lib/kazahana/store.db: stat /var/lib/kazahana/store.db: not a directory": "sqlite:(path): stat (path): not a directory",
		`open "/a/b": denied`:                            `open "(path)": denied`,
		"redis+unix:/run/redis.sock: connection refused": "redis+unix:(path): connection refused",
		"Post \"http://h:7464/lease\": no route":         "Post \"http://h:7464/lease\": no route",
		"read/write of 1/2":                              "read/write of 1/2",
	} {
		if got := withoutPaths(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	hidden := errors.New("sqlite:/secret/store.db: full")
	for _, err := range []error{storeError{hidden}, &generator.LeaseAcquisitionError{Cause: hidden}} {
		if got := asWireError(err).Error(); strings.Contains(got, "secret") || !strings.Contains(got, "full") {
			t.Errorf("a client is told %q", got)
		}
	}
}
