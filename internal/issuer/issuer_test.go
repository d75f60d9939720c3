package issuer

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// A lease is adopted on the terms that it was granted on. After a change of them, the service begins
// without one: another pool knows nothing of it. The other services keep theirs.
func TestLeasesAreAdoptedOnTheirTerms(t *testing.T) {
	dir, live := t.TempDir(), ring.Dir(t)
	open := func(slow string) *Issuer {
		var settings config.Serve
		args := []string{"--config=none", "--state-dir=" + dir, "--live-dir=" + live, "--services={slow: {" + slow + "}, plain: {}}"}
		must.Succeed(t, settings.Load(&settings, args, config.Process{UID: os.Geteuid(), Now: time.Now()}))
		i, err := Open(t.Context(), Options{
			Settings: &settings, Log: zap.NewNop(),
			Observer: func(name string) keeper.Observer { return metrics.New(metrics.Build{}).Service(name) },
		})
		must.Succeed(t, err)
		return i
	}
	held := func(i *Issuer, service string) (term time.Duration) {
		_, status := i.Services[service].Status()
		for _, l := range status.Leases {
			term = time.Duration(l.ExpiredMS-l.CreatedMS) * time.Millisecond
		}
		return term
	}
	i := open("term: 5m, pool: batch")
	for _, svc := range i.Services {
		svc.Step(t.Context())
	}
	i.Close() // the services never ran: their leases stay
	for _, c := range []struct {
		slow string
		want time.Duration // of its lease
	}{
		{"term: 5m, pool: batch", 5 * time.Minute},
		{"term: 5m, pool: batch, fallback: none", 5 * time.Minute},
		{"term: 5m, pool: other", 0},
	} {
		i := open(c.slow)
		if got := held(i, "plain"); got != 10*time.Minute {
			t.Errorf("%s: plain holds a lease of %v", c.slow, got)
		}
		if got := held(i, "slow"); got != c.want {
			t.Errorf("%s: slow holds a lease of %v, want %v", c.slow, got, c.want)
		}
		i.Close()
	}
}

// Another pool or another range of machine IDs is noticed, also where the URL's text is not kept,
// since a part of it might be a password.
func TestOriginTellsPoolsApart(t *testing.T) {
	for _, url := range []string{"redis://h?%s&prefix=u@v:", "etcd://h?%s&username=u@v&password_file=/p", "postgres://h/db?%s&username=u@v"} {
		seen := map[string]string{}
		for _, params := range []string{"pool=a", "pool=b", "ids=0-9", "ids=10-19", "pool=a&ids=0-9"} {
			i := &Issuer{opts: Options{Settings: &config.Serve{}}}
			i.opts.Settings.Provider = fmt.Sprintf(url, params)
			var err error
			i.Provider, err = backend.OpenProvider(i.opts.Settings.Provider, backend.ProviderOptions{})
			must.Succeed(t, err)
			origin := i.origin("default")
			if other := seen[origin]; other != "" {
				t.Errorf("%s and %s are both %s", params, other, origin)
			}
			seen[origin] = params
		}
	}
}
