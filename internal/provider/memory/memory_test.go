package memory_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/provider/memory"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

// Seeds 000-7.3-1 and 003-3.2-5.
func TestConformance(t *testing.T) { providertest.Run(t, providertest.Memory) }

func TestFromURL(t *testing.T) {
	for raw, wantErr := range map[string]string{
		"memory:":                       "",
		"memory:?term=5s&pool=p&ids=1-": "ids=1-",
		"memory:?term=5s&pool=p":        "",
		"memory:/x":                     "no path",
		"memory:x":                      "no path",
		"memory:?prefix=x":              `"prefix"`,
	} {
		u, err := url.Parse(raw)
		must.Succeed(t, err)
		_, err = memory.FromURL(u, nil, nil)
		switch {
		case wantErr == "" && err != nil:
			t.Errorf("%s: %v", raw, err)
		case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
			t.Errorf("%s: the error is %v, want one with %q", raw, err, wantErr)
		}
	}
}
