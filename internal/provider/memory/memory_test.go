package memory_test

import (
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/memory"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

func TestConformance(t *testing.T) {
	providertest.Run(t, func(*testing.T) providertest.Store {
		var clock atomic.Int64
		store := memory.NewStore(clock.Load)
		return providertest.Store{
			Open: func(services provider.Services) (provider.Provider, error) {
				p, err := memory.New(store, services)
				if err != nil {
					return nil, err
				}
				return p, nil
			},
			SetClock: clock.Store,
		}
	})
}

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
