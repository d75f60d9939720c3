package http_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/leaseserver"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/sequence"
	sequencehttp "github.com/kazahana/kazahana/internal/sequence/http"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/testkit/sqlitetest"
)

func TestMain(m *testing.M) { await.Main(m) }

// A declaration with an unknown outcome is not made again: values may have been taken since.
func TestDeclaredOnce(t *testing.T) {
	var asked atomic.Int64
	server := func() string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", problem.MediaType)
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(problem.New(problem.Unavailable, "its answer was lost"))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	cfg, err := httpconn.ParseURL(server() + "," + server())
	must.Succeed(t, err)
	c, err := httpconn.New(cfg)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = c.Close() })
	err = sequencehttp.New(c).Declare(t.Context(), sequence.Declaration{Tenant: "default", Key: "k", Last: 41, Options: sequence.Options{Step: 1, OnMax: sequence.Fail}})
	if err == nil || sequence.IsAnswer(err) || asked.Load() != 1 {
		t.Errorf("%d servers were asked: %v", asked.Load(), err)
	}
}

// patience is how long anything may take on a busy machine.
const patience = 45 * time.Second

// tenants are the suite's tenants; each has a token.
var tenants = []string{"default", "t", "t.u", "u"}

func token(tenant string) string { return "token-of-the-tenant-" + tenant }

// front is a lease server on an SQLite file.
type front struct {
	server *httptest.Server
	end    func() error // of the file's use
}

// serve starts a server; nowMS is its file's clock, nil for the wall clock.
func serve(path string, nowMS func() int64, options func(tenant, key string) (sequence.Options, bool)) (*front, error) {
	file, end, err := sqlitetest.Open(path, sqlitefile.Options{NowMS: nowMS})
	if err != nil {
		return nil, err
	}
	var yaml strings.Builder
	for _, tenant := range tenants {
		fmt.Fprintf(&yaml, "- {token: %s, tenant: %s, owner: hosts, scopes: [sequences]}\n", token(tenant), tenant)
	}
	terms := provider.Services{Default: provider.DefaultTerms()}
	known, err := leaseserver.ParseTokens([]byte(yaml.String()))
	p, err2 := providertest.OverMemory(memory.New(nil), terms)
	if err := errors.Join(err, err2); err != nil {
		return nil, errors.Join(err, end())
	}
	server := leaseserver.New(leaseserver.Options{
		Provider: p, Services: terms, Version: "test", Tokens: func() *leaseserver.Tokens { return known },
		Sequences:       &leaseserver.Sequences{Store: sequence.OnRecords(sqlite.New(file, record.Area{})), Options: options},
		ProviderTimeout: patience, MaxInFlight: 1000, RateBurst: 1,
		Metrics: metrics.NewLeaseServer(metrics.Build{}), Log: zap.NewNop(),
	})
	return &front{httptest.NewServer(server), end}, nil
}

func (f *front) close() error {
	f.server.Close()
	return f.end()
}

// byTenant is a store for each tenant, and closes everything with it.
type byTenant struct {
	stores  map[string]sequence.Store
	closers []func() error
}

func (s *byTenant) Next(ctx context.Context, r sequence.Request) (sequence.Range, error) {
	store, ok := s.stores[r.Tenant]
	if !ok {
		store = s.stores["default"] // which refuses a name that is none
	}
	return store.Next(ctx, r)
}

func (s *byTenant) Declare(context.Context, sequence.Declaration) error { return errors.ErrUnsupported }

func (s *byTenant) Close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

func connect(dir, urls string) (*byTenant, error) {
	out := &byTenant{stores: map[string]sequence.Store{}}
	for _, tenant := range tenants {
		cfg, err := httpconn.ParseURL(urls + "?token_file=" + filepath.Join(dir, tenant))
		if err != nil {
			return nil, err
		}
		c, err := httpconn.New(cfg)
		if err != nil {
			return nil, err
		}
		out.stores[tenant] = sequencehttp.New(c)
		out.closers = append(out.closers, c.Close)
	}
	return out, nil
}

// newDir has a file with the token of each tenant.
func newDir(t *testing.T) string {
	dir := ring.Dir(t)
	for _, tenant := range tenants {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, tenant), []byte(token(tenant)), 0o600))
	}
	return dir
}

// Each client has a server of its own, in front of one file.
func TestConformance(t *testing.T) {
	ring.All(t)
	sequencetest.Run(t, func(t *testing.T) sequencetest.Target {
		dir := newDir(t)
		var now atomic.Int64
		now.Store(time.Now().UnixMilli())
		return sequencetest.Target{
			Open: func() (sequence.Store, error) {
				f, err := serve(filepath.Join(dir, sqlitefile.StoreName), now.Load, nil)
				if err != nil {
					return nil, err
				}
				store, err := connect(dir, f.server.URL)
				if err != nil {
					return nil, errors.Join(err, f.close())
				}
				store.closers = append(store.closers, f.close)
				return store, nil
			},
			Advance: func(d time.Duration) { now.Add(d.Milliseconds()) },
		}
	})
}

// lossy passes requests on to the server and loses the answers.
func lossy(t *testing.T, f *front) string {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.server.Config.Handler.ServeHTTP(httptest.NewRecorder(), r)
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.Close()
		}
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL
}

// A call with a lost answer is repeated at the next server when it has a request ID, without a
// gap; else it is sent once, and leaves one.
func TestAnswerIsLost(t *testing.T) {
	dir := newDir(t)
	path := filepath.Join(dir, sqlitefile.StoreName)
	var fronts []*front
	for range 2 {
		f, err := serve(path, nil, nil)
		must.Succeed(t, err)
		t.Cleanup(func() { _ = f.close() })
		fronts = append(fronts, f)
	}
	open := func(urls string) *byTenant {
		s, err := connect(dir, urls)
		must.Succeed(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	first, second := lossy(t, fronts[0]), fronts[1].server.URL
	request := sequence.Request{Tenant: "default", Key: "k", Count: 3, RequestID: "one", Options: sequence.DefaultOptions()}
	got, err := open(first+","+second).Next(t.Context(), request)
	if err != nil || !slices.Equal(got.Values(), []int64{1, 2, 3}) {
		t.Errorf("%v, %v", got, err)
	}
	request.RequestID = ""
	if got, err = open(first+","+second).Next(t.Context(), request); err == nil || sequence.IsAnswer(err) {
		t.Errorf("%v and the error %v, want one that leaves open what was done", got, err)
	}
	if got, err = open(second).Next(t.Context(), request); err != nil || got.First != 7 {
		t.Errorf("after a call that was sent once: %v, %v", got, err)
	}
}

// The server's configuration decides how its keys count, and no client does.
func TestConfiguredKeys(t *testing.T) {
	dir := newDir(t)
	tens := sequence.Options{Step: 10, OnMax: sequence.Fail, Max: 30, Block: 100}
	f, err := serve(filepath.Join(dir, sqlitefile.StoreName), nil, func(tenant, key string) (sequence.Options, bool) {
		return tens, tenant == "default" && strings.HasPrefix(key, "tens/")
	})
	must.Succeed(t, err)
	defer f.close()
	post := func(tenant, key, body string) string {
		r, err := http.NewRequest("POST", f.server.URL+"/v1/sequences/"+key+"/next", strings.NewReader(body))
		must.Succeed(t, err)
		r.Header.Set("Authorization", "Bearer "+token(tenant))
		r.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(r)
		must.Succeed(t, err)
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		must.Succeed(t, err)
		return strings.TrimSpace(string(b))
	}
	defer http.DefaultClient.CloseIdleConnections()
	for _, test := range []struct{ tenant, key, body, want string }{
		{"default", "tens%2Fa", ``, `{"key":"tens/a","first":10,"last":10,"step":10,"values":[10]}`},
		{"default", "tens%2Fa", `{"count": 2, "step": 10, "max_value": 30}`, `{"key":"tens/a","first":20,"last":30,"step":10,"values":[20,30]}`},
		{"default", "tens%2Fa", `{}`, `"code":"SEQUENCE_EXHAUSTED","max_value":30,"left":0}`},
		{"default", "tens%2Fb", `{"step": 1}`, `"code":"INVALID_REQUEST","recorded":"step=10 start=10 max_value=30 on_max=error ttl_ms=0","asked":"step=1 start=1 max_value=30 on_max=error ttl_ms=0"}`},
		{"t", "tens%2Fa", ``, `{"key":"tens/a","first":1,"last":1,"step":1,"values":[1]}`},
		{"default", "ones", `{"step": 7, "start": 0}`, `{"key":"ones","first":0,"last":0,"step":7,"values":[0]}`},
		{"default", "ones", `{"count": 0}`, `"code":"INVALID_REQUEST"`},
		{"default", "ones", `{"ttl_ms": -1}`, `"code":"INVALID_REQUEST"`},
		{"default", "ones", `{"ttl_ms": 9223372036854775807}`, `"code":"INVALID_REQUEST"`},
		{"default", "huge", `{"start": 9223372036854775806, "count": 2}`, `"values":[9223372036854775806,9223372036854775807]`},
	} {
		if got := post(test.tenant, test.key, test.body); !strings.Contains(got, test.want) {
			t.Errorf("%s %s: %s, want %s", test.key, test.body, got, test.want)
		}
	}
}
