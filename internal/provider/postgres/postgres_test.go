package postgres

import (
	"fmt"
	"os"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

func TestConformance(t *testing.T) { providertest.Run(t, factory) }

// A server answers as memory does.
func TestAnswersAsMemoryDoes(t *testing.T) {
	providertest.Differential(t, providertest.Memory, func(t *testing.T) providertest.Store {
		s := factory(t)
		s.Checks = 20
		return s
	})
}

// factory makes stores in schemas of their own.
func factory(t *testing.T) providertest.Store {
	s := postgrestest.Shared(t)
	cfg := s.Config()
	set := s.Clock(&cfg)
	return providertest.Store{
		Open: func(services provider.Services) (provider.Provider, error) {
			p, err := Open(Config{Config: cfg, Services: services})
			if err == nil {
				p.random = func(n int64) int64 { return n - 1 } // tests count on it
			}
			return p, err
		},
		SetClock: set,
		Checks:   10,
		Close:    func() { s.SQL("DROP SCHEMA IF EXISTS "+cfg.Schema+" CASCADE", "DROP TABLE public.clock_"+cfg.Schema) },
	}
}

// A line that contradicts the records grants nothing, and is made anew.
func TestLineIsMadeAnew(t *testing.T) {
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 0, End: 4}
	s := postgrestest.Shared(t)
	for name, damage := range map[string]string{
		"wrong":   "UPDATE %s.line SET free_at = 0, bit_seq = -1",
		"missing": "DELETE FROM %s.line",
	} {
		cfg := Config{Config: s.Config(), Services: provider.Services{Default: terms}}
		p, err := Open(cfg)
		must.Succeed(t, err)
		defer p.Close()
		seen := map[int64]bool{}
		for i := range 4 {
			if i > 0 {
				s.SQL(fmt.Sprintf(damage, cfg.Schema))
			}
			leases, err := p.Acquire(t.Context(), provider.AcquireRequest{})
			if err != nil || len(leases) != 1 || seen[leases[0].ID] {
				t.Fatalf("%s: %v and the error %v after %v", name, leases, err, seen)
			}
			seen[leases[0].ID] = true
		}
	}
}

func TestReleaseOnABadNetwork(t *testing.T) {
	s := postgrestest.Shared(t)
	cfg := Config{Config: s.Config(), Services: provider.Services{Default: provider.DefaultTerms()}}
	near, err := Open(cfg)
	must.Succeed(t, err)
	defer near.Close()
	proxy, err := providertest.NewProxy("unix", s.Dir+"/.s.PGSQL."+postgrestest.Port)
	must.Succeed(t, err)
	t.Cleanup(proxy.Close)
	far := cfg
	far.Dir, far.Hosts = "", []string{proxy.Addr()}
	providertest.RunRemote(t, providertest.Remote{
		Proxy: proxy, Near: near, Asks: true, LooksUp: true,
		Open:    func() (provider.Provider, error) { return Open(far) },
		Sending: func(p provider.Provider, f func()) { p.(*Provider).sending = f },
		Mark:    stateGivenBack, PerRelease: 2, // the record and the history
	})
}
