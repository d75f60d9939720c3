package http_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/leaseserver"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	placementhttp "github.com/kazahana/kazahana/internal/placement/storage/http"
	"github.com/kazahana/kazahana/internal/placement/storage/storagetest"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record"
	recordmemory "github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// patience is how long anything may take on a busy machine.
const patience = 45 * time.Second

// tenants are the tests' tenants; each has a token.
var tenants = []string{"t", "other"}

func token(tenant string) string { return "token-of-the-tenant-" + tenant }

// front is a lease server in front of the records, nil for none.
func front(t testing.TB, records storage.Storage) http.Handler {
	t.Helper()
	var yaml strings.Builder
	for _, tenant := range tenants {
		fmt.Fprintf(&yaml, "- {token: %s, tenant: %s, owner: hosts, scopes: [placements]}\n", token(tenant), tenant)
	}
	known, err := leaseserver.ParseTokens([]byte(yaml.String()))
	must.Succeed(t, err)
	terms := provider.Services{Default: provider.DefaultTerms()}
	p, err := providertest.OverMemory(recordmemory.New(nil), terms)
	must.Succeed(t, err)
	o := leaseserver.Options{
		Provider: p, Services: terms, Version: "test", Tokens: func() *leaseserver.Tokens { return known },
		ProviderTimeout: patience, MaxInFlight: 1000, RateBurst: 1,
		Metrics: metrics.NewLeaseServer(metrics.Build{}), Log: zap.NewNop(),
	}
	if records != nil {
		o.Placements = &leaseserver.Placements{Records: records}
	}
	return leaseserver.New(o)
}

// listen returns a URL of the server.
func listen(t testing.TB, server http.Handler) string {
	l := httptest.NewServer(server)
	t.Cleanup(l.Close)
	return l.URL
}

// byTenant is a storage for each tenant.
type byTenant map[string]storage.Storage

func (s byTenant) Load(ctx context.Context, tenant string, key placement.Key) (placement.Record, error) {
	return s[tenant].Load(ctx, tenant, key)
}

func (s byTenant) Store(ctx context.Context, tenant string, key placement.Key, r placement.Record) error {
	return s[tenant].Store(ctx, tenant, key, r)
}

func (s byTenant) Remove(ctx context.Context, tenant string, key placement.Key, r placement.Record, keep bool) error {
	return s[tenant].Remove(ctx, tenant, key, r, keep)
}

// connect is a host that uses the servers.
func connect(t testing.TB, urls ...string) storage.Storage {
	t.Helper()
	out, dir := byTenant{}, t.TempDir()
	for _, tenant := range tenants {
		path := filepath.Join(dir, tenant)
		must.Succeed(t, os.WriteFile(path, []byte(token(tenant)), 0o600))
		cfg, err := httpconn.ParseURL(strings.Join(urls, ",") + "?token_file=" + path)
		must.Succeed(t, err)
		c, err := httpconn.New(cfg)
		must.Succeed(t, err)
		t.Cleanup(func() { _ = c.Close() })
		out[tenant] = placementhttp.New(c)
	}
	return out
}

func TestConformance(t *testing.T) {
	// Seeds 004-39 and 004-60.
	storagetest.Run(t, connect(t, listen(t, front(t, storage.OnRecords(recordmemory.New(nil))))), 20)
}

// loses carries out every other request and drops its answer. A repeated request is
// answered.
func loses(next http.Handler, lost *atomic.Int64) http.Handler {
	var asked atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1)%2 == 0 {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(httptest.NewRecorder(), r)
		lost.Add(1)
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.Close()
		}
	})
}

// Each request is carried out twice, the first time without an answer, and the storage is the
// same as without that.
func TestConformanceWithLostAnswers(t *testing.T) {
	var lost atomic.Int64
	server := loses(front(t, storage.OnRecords(recordmemory.New(nil))), &lost)
	storagetest.Run(t, connect(t, listen(t, server), listen(t, server)), 20)
	if lost.Load() < 30 {
		t.Errorf("only %d answers were lost", lost.Load())
	}
}

var (
	key  = placement.Key{Kind: "room", Identity: "1"}
	mine = placement.Record{Owner: placement.Member{Authority: "a", Token: 1}, Version: 1, Token: 5}
)

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// With one server, the outcome of a request with a lost answer is unknown; asked again, the
// server tells.
func TestLostAnswerIsNoAnswer(t *testing.T) {
	records := storage.OnRecords(recordmemory.New(nil))
	store := connect(t, listen(t, loses(front(t, records), &atomic.Int64{})))
	err := store.Store(within(t), "t", key, mine)
	if err == nil || errors.Is(err, placement.ErrStale) || errors.Is(err, placement.ErrInvalid) {
		t.Errorf("the answer was lost: %v", err)
	}
	if r, err := records.Load(within(t), "t@placement", key); err != nil || r.Owner != mine.Owner {
		t.Fatalf("it was carried out: %+v, %v", r, err)
	}
	if err := store.Store(within(t), "t", key, mine); err != nil {
		t.Errorf("asked again: %v", err)
	}
}

// Who is not served at the first server, which is down or has too much to do, is
// at the second.
func TestFailover(t *testing.T) {
	var asked atomic.Int64
	overloaded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", problem.MediaType)
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(problem.New(problem.Overloaded, "much to do").After(time.Second))
	}))
	t.Cleanup(overloaded.Close)
	store := connect(t, fmt.Sprintf("http://127.0.0.1:%d", ring.FreePort(t)), overloaded.URL, listen(t, front(t, storage.OnRecords(recordmemory.New(nil)))))
	if err := store.Store(within(t), "t", key, mine); err != nil {
		t.Error(err)
	}
	if r, err := store.Load(within(t), "t", key); err != nil || r.Owner != mine.Owner {
		t.Errorf("%+v, %v", r, err)
	}
	if err := store.Remove(within(t), "t", key, mine, true); err != nil {
		t.Error(err)
	}
	if asked.Load() != 1 {
		t.Errorf("the server that refused was asked %d times", asked.Load())
	}
}

// The largest record fits, however it is written.
func TestLargestRecord(t *testing.T) {
	store := connect(t, listen(t, front(t, storage.OnRecords(recordmemory.New(nil)))))
	for _, filler := range []string{"<", `"`, "%", "a"} {
		k := placement.Key{Kind: strings.Repeat(filler, placement.MaxKind), Identity: strings.Repeat(filler, placement.MaxIdentity)}
		want := placement.Record{
			Owner: placement.Member{Authority: strings.Repeat(filler, placement.MaxAuthority), Token: 1<<63 - 1}, PID: strings.Repeat("\x01", placement.MaxPID),
			Version: 1<<63 - 1, Token: 1<<63 - 1, Snapshot: bytes.Repeat([]byte{0xff}, placement.MaxSnapshot),
		}
		if err := store.Store(within(t), "t", k, want); err != nil {
			t.Fatalf("%s: %v", filler, err)
		}
		got, err := store.Load(within(t), "t", k)
		if err != nil || got.Owner != want.Owner || got.PID != want.PID || got.Version != want.Version || got.Token != want.Token || !bytes.Equal(got.Snapshot, want.Snapshot) {
			t.Errorf("%s: it came back with %d bytes of snapshot, %v", filler, len(got.Snapshot), err)
		}
		if err := store.Remove(within(t), "t", k, want, false); err != nil {
			t.Errorf("%s: %v", filler, err)
		}
	}
}

// A refusal by the lease server itself is no answer of a storage: the record was not
// looked at.
func TestNoStorage(t *testing.T) {
	older := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", problem.MediaType)
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(problem.New(problem.NotFound, "there is no such path here"))
	}))
	t.Cleanup(older.Close)
	records := storage.OnRecords(recordmemory.New(nil))
	for what, test := range map[string]struct {
		store storage.Storage
		want  string
	}{
		"a server without a store":       {connect(t, listen(t, front(t, nil))), "no store for activation records"},
		"a server that does not know it": {connect(t, older.URL), "no such path"},
		"a store that fails":             {connect(t, listen(t, front(t, failing{records}))), "unavailable"},
	} {
		_, err := test.store.Load(within(t), "t", key)
		for op, err := range map[string]error{
			"load": err, "store": test.store.Store(within(t), "t", key, mine), "remove": test.store.Remove(within(t), "t", key, mine, false),
		} {
			if err == nil || errors.Is(err, placement.ErrStale) || errors.Is(err, placement.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %s: %v, want one with %q", what, op, err, test.want)
			}
		}
	}
}

type failing struct{ storage.Storage }

func (failing) Load(context.Context, string, placement.Key) (placement.Record, error) {
	return placement.Record{}, errors.New("the disk has gone")
}

func (failing) Store(context.Context, string, placement.Key, placement.Record) error {
	return errors.New("the disk has gone")
}

func (failing) Remove(context.Context, string, placement.Key, placement.Record, bool) error {
	return errors.New("the disk has gone")
}

// full has no room for a record that grows.
type full struct{ storage.Storage }

func (full) Store(context.Context, string, placement.Key, placement.Record) error {
	return fmt.Errorf("%w: %w", placement.ErrNoRoom, &record.FullError{Setting: record.SettingDisk, Limit: 1})
}

// A server without room for the record has refused it: the daemon goes on without its snapshot.
func TestNoRoom(t *testing.T) {
	err := connect(t, listen(t, front(t, full{storage.OnRecords(recordmemory.New(nil))}))).Store(within(t), "t", key, mine)
	if _, told := errors.AsType[*record.FullError](err); !told || !errors.Is(err, placement.ErrNoRoom) {
		t.Error(err)
	}
}

// A server that is no lease server, or answers for another key, is not believed.
func TestMalformedAnswers(t *testing.T) {
	for _, body := range []string{
		`{}`, `[`, `{"kind":"room","identity":"2","version":1,"token":5}`, `{"kind":"hall","identity":"1","version":1,"token":5}`,
		`{"kind":"room","identity":"1","version":-1,"token":5}`, `{"kind":"room","identity":"1","owner":"a","version":0,"token":0}`,
		`{"kind":"room","identity":"1","version":1.5,"token":5}`, `{"kind":"room","identity":"1","owner":"a","membership":1,"version":2,"token":5,"snapshot":"?"}`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		}))
		store := connect(t, server.URL)
		r, err := store.Load(within(t), "t", key)
		for op, err := range map[string]error{"load": err, "store": store.Store(within(t), "t", key, mine), "remove": store.Remove(within(t), "t", key, mine, false)} {
			if err == nil || errors.Is(err, placement.ErrStale) || errors.Is(err, placement.ErrInvalid) {
				t.Errorf("%s: %s: %+v, %v", op, body, r, err)
			}
		}
		server.Close()
	}
}
