package postgres_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/postgres"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
)

// leasing is a provider of leases on the server, with what a test does to its records.
type leasing struct {
	*pool.Provider
	sending func() // before a release is sent
	sent    atomic.Int64
}

func openLeases(cfg postgresconn.Config, services provider.Services) (*leasing, error) {
	client, err := postgresconn.Open(cfg)
	if err != nil {
		return nil, err
	}
	records := postgres.New(client, pool.AreaOf(services), services.LongestMS())
	l := &leasing{sending: func() {}}
	l.Provider, err = pool.New(pool.Config{
		Records: marking{records, l}, Services: services,
		Info:   provider.Info{Name: "postgres", URL: cfg.Place(), Scope: provider.ScopeShared},
		Close:  owned{records, client}.Close,
		Random: func(int64) int64 { return 0 },
	})
	return l, err
}

func defaultServices() provider.Services {
	return provider.Services{Default: provider.DefaultTerms()}
}

func mustOpenLeases(t *testing.T, cfg postgresconn.Config) *leasing {
	t.Helper()
	l, err := openLeases(cfg, defaultServices())
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, l.Close()) })
	return l
}

// release is in the bytes of every release, and of nothing else.
const release = "this is a release"

// marking has each release write one more record, with a new key and the value release.
type marking struct {
	record.Store
	*leasing
}

func (m marking) Close() error                   { return m.Store.Close() }
func (m marking) Init(ctx context.Context) error { return m.Store.Init(ctx) }

func (m marking) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	n := m.sent.Add(1)
	mark := record.Write{Key: fmt.Sprintf("mark/%p/%d", m.leasing, n), Value: []byte(release), Frees: true}
	ask.Keys = append(slices.Clone(ask.Keys), mark.Key)
	return m.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		writes, err := rule(v)
		if len(writes) == 1 && writes[0].Frees {
			m.sending()
			writes = append(writes, mark)
		}
		return writes, err
	})
}

// leases makes stores in schemas of their own.
func leases(t *testing.T) providertest.Store {
	s := postgrestest.Shared(t)
	cfg := s.Config()
	set := s.Clock(&cfg)
	return providertest.Store{
		Open:     func(services provider.Services) (provider.Provider, error) { return openLeases(cfg, services) },
		SetClock: set,
		Checks:   10,
		Close:    func() { s.SQL("DROP SCHEMA IF EXISTS "+cfg.Schema+" CASCADE", "DROP TABLE public.clock_"+cfg.Schema) },
	}
}

func TestLeasesConform(t *testing.T) { providertest.Run(t, leases) }

// throughProxy is the server at the end of a proxy.
func throughProxy(t *testing.T, s *postgrestest.Server, cfg postgresconn.Config) (*proxytest.Proxy, postgresconn.Config) {
	t.Helper()
	proxy := proxytest.New(t, "unix", s.Dir+"/.s.PGSQL."+postgrestest.Port)
	cfg.Dir, cfg.Hosts = "", []string{proxy.Addr()}
	return proxy, cfg
}

func TestLeasesOnABadNetwork(t *testing.T) {
	s := postgrestest.Shared(t)
	cfg := s.Config()
	proxy, far := throughProxy(t, s, cfg)
	providertest.RunRemote(t, providertest.Remote{
		Proxy: proxy, Near: mustOpenLeases(t, cfg),
		Open:    func() (provider.Provider, error) { return openLeases(far, defaultServices()) },
		Sending: func(p provider.Provider, f func()) { p.(*leasing).sending = f },
		Mark:    release,
	})
}

// TestSecretsStayHere: neither the wire nor a table has the secret of a lease.
func TestSecretsStayHere(t *testing.T) {
	s := postgrestest.Shared(t)
	cfg := s.Config()
	proxy, far := throughProxy(t, s, cfg)
	p := mustOpenLeases(t, far)
	acquire := func() lease.Lease {
		all, err := p.Acquire(t.Context(), provider.AcquireRequest{RequestID: provider.NewSecret()})
		must.Succeed(t, err)
		return all[0]
	}
	first := acquire()
	for range 3 {
		if lost, err := provider.Verify(t.Context(), p, "", []lease.Lease{first}); err != nil || len(lost) > 0 {
			t.Errorf("%v is lost: %v, %v", first, lost, err)
		}
	}
	second := acquire()
	at := time.Now().UnixMilli()
	must.Succeed(t, p.Release(t.Context(), providertest.SignedRelease(first, at)))
	_, err := provider.Extend(t.Context(), p, "", second)
	must.Succeed(t, err)
	for range 2 {
		must.Succeed(t, p.Release(t.Context(), providertest.SignedRelease(second, at)))
	}
	places := map[string]string{"the wire": string(proxy.Recorded())}
	for name := range strings.FieldsSeq(s.SQL("SELECT table_name FROM information_schema.tables WHERE table_schema = '" + cfg.Schema + "'")) {
		places[name] = s.SQL(fmt.Sprintf("SELECT string_agg(t::text, ' ') FROM %s.%s t", cfg.Schema, name))
	}
	if len(places) < 3 || !strings.Contains(places["the wire"], pool.HeadKey(provider.DefaultPool)) || !strings.Contains(places["leases_record"], pool.HeadKey(provider.DefaultPool)) {
		t.Fatalf("of %d places, the wire or the table of records does not show the pool", len(places))
	}
	for _, l := range []lease.Lease{first, second} {
		raw, err := hex.DecodeString(l.Secret)
		must.Succeed(t, err)
		for name, text := range places {
			for _, form := range []string{l.Secret, string(raw), hex.EncodeToString([]byte(l.Secret))} {
				if strings.Contains(text, form) { // seed 000-4.5-1
					t.Errorf("%s shows the secret of %v", name, l)
				}
			}
		}
	}
}

// TestRoundTrips: an acquire in a session that was used before is a question and a commit. The
// client may ask whether an idle session still lives.
func TestRoundTrips(t *testing.T) {
	s := postgrestest.Shared(t)
	proxy, far := throughProxy(t, s, s.Config())
	p := mustOpenLeases(t, far)
	const most, ready = 3, "Z\x00\x00\x00\x05" // which ends the server's answer to each message
	for n := range 4 {
		before := proxy.Count(ready)
		_, err := p.Acquire(t.Context(), provider.AcquireRequest{RequestID: provider.NewSecret()})
		must.Succeed(t, err)
		if trips := proxy.Count(ready) - before; n > 1 && (trips < 2 || trips > most) {
			t.Errorf("acquire %d took %d round trips, want %d at most", n, trips, most)
		}
	}
}

// TestUnconfirmedLease: a standby may lack the grant, so no caller gets it. Without a request ID it is
// given back; with one, a repetition waits for a standby too.
func TestUnconfirmedLease(t *testing.T) {
	s := postgrestest.New(t, "-c", "synchronous_standby_names=nobody")
	cfg := s.Config("synchronous_commit=local") // which does not wait
	local := mustOpenLeases(t, cfg)
	_, err := local.Acquire(t.Context(), provider.AcquireRequest{})
	must.Succeed(t, err)
	cfg.SynchronousCommit = "on"
	p := mustOpenLeases(t, cfg)
	unconfirmed := func(request string) error {
		done := make(chan error, 1)
		go func() {
			_, err := p.Acquire(t.Context(), provider.AcquireRequest{RequestID: request})
			done <- err
		}()
		await.Success(t, "the acquire ends", func() error {
			s.SQL("SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			select {
			case err = <-done:
				return nil
			default:
				return errors.New("it waits for a standby")
			}
		})
		if !errors.Is(err, record.ErrUnconfirmed) {
			t.Errorf("request %q: the error is %v, want ErrUnconfirmed", request, err)
		}
		return err
	}
	if err := unconfirmed(""); err == nil || !strings.Contains(err.Error(), "given back") {
		t.Errorf("the error is %v, want one that says that the leases were given back", err)
	}
	all, err := local.List(t.Context(), "")
	must.Succeed(t, err)
	if given := slices.DeleteFunc(all, func(r provider.Record) bool { return !r.Released }); len(given) != 1 || given[0].End != given[0].Lease.Created {
		t.Errorf("given back are %+v, want one lease as of its beginning", given)
	}
	request := provider.NewSecret()
	_ = unconfirmed(request)
	_ = unconfirmed(request)
}

// TestFenceOutlastsTheLeasesOfEachProcess: the server may have forgotten that a process was granted
// leases for longer than all that it knows of.
func TestFenceOutlastsTheLeasesOfEachProcess(t *testing.T) {
	cfg := postgrestest.Shared(t).Config()
	p := mustOpenLeases(t, cfg)
	_, err := p.Acquire(t.Context(), provider.AcquireRequest{})
	must.Succeed(t, err)
	fence, err := p.Fence(t.Context())
	must.Succeed(t, err)
	long := defaultServices()
	long.Default.Term = 5 * time.Hour
	longer, err := openLeases(cfg, long)
	must.Succeed(t, err)
	defer longer.Close()
	must.Succeed(t, longer.Ready(t.Context()))
	must.Succeed(t, p.Ready(t.Context()))
	if after := p.Fenced(); after == nil || after.UntilMS-fence.UntilMS != long.LongestMS()-defaultServices().LongestMS() {
		t.Errorf("the fence was %v, and is %v after a process with leases of %d ms has looked", fence, after, long.LongestMS())
	}
}
