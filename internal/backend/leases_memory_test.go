package backend_test

import (
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/backend"
)

func TestURLOfLeasesInMemory(t *testing.T) {
	for raw, wantErr := range map[string]string{
		"memory:":                       "",
		"memory:?term=5s&pool=p&ids=1-": "ids=1-",
		"memory:?term=5s&pool=p":        "",
		"memory:/x":                     "no path",
		"memory:x":                      "no path",
		"memory:?prefix=x":              `"prefix"`,
	} {
		_, err := backend.OpenProvider(raw, backend.ProviderOptions{})
		switch {
		case wantErr == "" && err != nil:
			t.Errorf("%s: %v", raw, err)
		case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
			t.Errorf("%s: the error is %v, want one with %q", raw, err, wantErr)
		}
	}
}
