package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/tracing"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/otlptest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			os.Unsetenv(name)
		}
	}
	shipped = tracing.SetCloseTimeout(await.Patience) // a busy machine takes longer than a process may
	await.Main(m)
}

// shipped is how long Close may take in a process.
var shipped time.Duration

// start traces with the variables set.
func start(t *testing.T, variables map[string]string) (*tracing.Tracing, *observer.ObservedLogs) {
	t.Helper()
	for name, value := range variables {
		t.Setenv(name, value)
	}
	core, logs := observer.New(zapcore.DebugLevel)
	tr := tracing.Start(tracing.Options{Service: "kazahanad", Version: "v1.2.3", Log: zap.New(core)})
	return tr, logs
}

// to starts to trace to a new collector.
func to(t *testing.T) (*tracing.Tracing, *otlptest.Collector) {
	t.Helper()
	c := otlptest.New(t)
	tr, _ := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.HTTP})
	if tr == nil {
		t.Fatal("nothing is traced")
	}
	t.Cleanup(tr.Close)
	return tr, c
}

func one(t *testing.T, c *otlptest.Collector, name string) otlptest.Span {
	t.Helper()
	var found []otlptest.Span
	for _, s := range c.Spans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d spans %q among %+v", len(found), name, c.Spans())
	}
	return found[0]
}

func TestProviderCalls(t *testing.T) {
	tr, c := to(t)
	inner, err := backend.OpenProvider("memory:", backend.ProviderOptions{})
	must.Succeed(t, err)
	p := tr.Provider(inner)
	defer p.Close()
	ctx := t.Context()
	leases, err := p.Acquire(ctx, provider.AcquireRequest{Service: "orders", ThroughputPerMS: 300, Meta: map[string]string{"host": "h"}})
	if err != nil || len(leases) != 2 {
		t.Fatal(leases, err)
	}
	if lost, err := provider.Verify(ctx, p, "orders", leases); err != nil || len(lost) > 0 {
		t.Error(lost, err)
	}
	if _, err := provider.Extend(ctx, p, "orders", leases[0]); err != nil {
		t.Error(err)
	}
	if err := p.Release(ctx, provider.ReleaseRequest{Service: "orders", ID: leases[0].ID, BitSeq: leases[0].BitSeq, TimestampMS: time.Now().UnixMilli(), Signature: "x"}); !errors.Is(err, provider.ErrBadSignature) {
		t.Error(err)
	}
	tr.Close()
	acquired := one(t, c, "provider acquire")
	for key, want := range map[string]string{
		"db.system.name": "memory", "db.operation.name": "acquire", "kazahana.service": "orders", "kazahana.leases": "2", "kazahana.result": "ok",
	} {
		if acquired.Attributes[key] != want {
			t.Errorf("%s is %q, want %q", key, acquired.Attributes[key], want)
		}
	}
	if acquired.Kind.String() != "SPAN_KIND_CLIENT" || acquired.Error || acquired.ParentID != "" {
		t.Errorf("acquire: %+v", acquired)
	}
	for key, want := range map[string]string{"service.name": "kazahanad", "service.version": "v1.2.3", "telemetry.sdk.language": "go"} {
		if acquired.Resource[key] != want {
			t.Errorf("%s is %q", key, acquired.Resource[key])
		}
	}
	one(t, c, "provider verify")
	one(t, c, "provider extend")
	if s := one(t, c, "provider release"); s.Attributes["kazahana.result"] != "refused" || s.Error {
		t.Errorf("a release that was refused: %+v", s)
	}
	for _, s := range c.Spans() {
		if text := fmt.Sprint(s); strings.Contains(text, leases[0].Secret) {
			t.Errorf("the secret of a lease is in %s", text)
		}
	}
}

// A provider that cannot be reached is an error, with its kind.
func TestFailedCall(t *testing.T) {
	tr, c := to(t)
	inner, err := backend.OpenProvider("redis://user:hunter2@127.0.0.1:1/0", backend.ProviderOptions{})
	must.Succeed(t, err)
	p := tr.Provider(inner)
	defer p.Close()
	if _, err := p.Acquire(t.Context(), provider.AcquireRequest{}); err == nil {
		t.Fatal("acquired")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := provider.Verify(ctx, p, "", nil); err == nil {
		t.Fatal("verified")
	}
	tr.Close()
	s := one(t, c, "provider acquire")
	if !s.Error || s.Attributes["error.type"] != "unavailable" || !strings.Contains(s.Message, "refused") ||
		s.Attributes["db.system.name"] != "redis" || s.Attributes["server.address"] != "127.0.0.1" || s.Attributes["server.port"] != "1" {
		t.Errorf("%+v", s)
	}
	if s := one(t, c, "provider verify"); s.Error || s.Attributes["kazahana.result"] != "canceled" {
		t.Errorf("a call that nobody waits for: %+v", s)
	}
	if text := fmt.Sprint(c.Spans()); strings.Contains(text, "hunter2") {
		t.Errorf("the password is in %s", text)
	}
}

// Stores with errors that name the key, as real ones' do.
type (
	failingLocks     struct{ lock.Store }
	failingSequences struct{ sequence.Store }
)

func (failingLocks) Do(_ context.Context, r lock.Request) (lock.Lease, error) {
	return lock.Lease{}, fmt.Errorf("lock %q: connection refused", r.Key)
}

func (failingSequences) Next(_ context.Context, r sequence.Request) (sequence.Range, error) {
	return sequence.Range{}, fmt.Errorf("sequence %q: connection refused", r.Key)
}

func TestLocksAndSequences(t *testing.T) {
	const key = "customer/wilhelmina"
	tr, c := to(t)
	now := func() int64 { return time.Now().UnixMilli() }
	locks := tr.Locks(lock.OnRecords(memory.New(now)), "sqlite:/x/store.db")
	values := tr.Sequences(sequence.OnRecords(memory.New(now)), "etcd://h1:2379?prefix=/x/")
	r := lock.Request{Op: lock.Acquire, Tenant: "default", Key: key, Owner: "o", LeaseID: lock.NewLeaseID(), TTLMS: 60_000}
	for range 2 { // the second one is held
		_, _ = locks.Do(t.Context(), r)
		r.LeaseID, r.Owner = lock.NewLeaseID(), "p"
	}
	_, _ = locks.List(t.Context(), "default", "", 10)
	_, _ = values.Next(t.Context(), sequence.Request{Tenant: "default", Key: key, Count: 3, Options: sequence.DefaultOptions()})
	_, _ = tr.Locks(failingLocks{lock.OnRecords(memory.New(now))}, "sqlite:/x/store.db").Do(t.Context(), r)
	_, _ = tr.Sequences(failingSequences{sequence.OnRecords(memory.New(now))}, "sqlite:/x/store.db").Next(t.Context(), sequence.Request{Key: key})
	tr.Close()
	results := map[string]int{}
	for _, s := range c.Spans() {
		results[s.Name+" "+s.Attributes["kazahana.result"]]++
		if text := fmt.Sprint(s); strings.Contains(text, "wilhelmina") {
			t.Errorf("a key is in %s", text)
		}
		if result := s.Attributes["kazahana.result"]; s.Error != (result == "unavailable") || s.Error && s.Message != result {
			t.Errorf("%s is %s, error %v, with the text %q", s.Name, result, s.Error, s.Message)
		}
	}
	for _, want := range []string{
		"lock store acquire ok", "lock store acquire held", "lock store list ok", "sequence store next ok",
		"lock store acquire unavailable", "sequence store next unavailable",
	} {
		if results[want] != 1 {
			t.Errorf("%d of %q among %v", results[want], want, results)
		}
	}
	s := c.Spans()[slices.IndexFunc(c.Spans(), func(s otlptest.Span) bool { return s.Name == "sequence store next" && !s.Error })]
	if s.Attributes["server.address"] != "h1" || s.Attributes["server.port"] != "2379" ||
		s.Attributes["db.system.name"] != "etcd" || s.Attributes["kazahana.sequence.count"] != "3" {
		t.Errorf("%+v", s)
	}
}

// Without an endpoint nothing is made, and the given store comes back as it is.
func TestNothingIsTracedWithoutAnEndpoint(t *testing.T) {
	for what, variables := range map[string]map[string]string{
		"nothing set":     {},
		"only a name":     {"OTEL_SERVICE_NAME": "x"},
		"exporter none":   {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
		"disabled":        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "TRUE"},
		"only metrics'":   {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"},
		"an empty string": {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
	} {
		t.Run(what, func(t *testing.T) {
			tr, logs := start(t, variables)
			if tr != nil || logs.Len() > 0 {
				t.Fatalf("%v, and the log has %v", tr, logs.All())
			}
			p, err := backend.OpenProvider("memory:", backend.ProviderOptions{})
			must.Succeed(t, err)
			defer p.Close()
			locks, values := lock.OnRecords(memory.New(nil)), sequence.OnRecords(memory.New(nil))
			if tr.Provider(p) != p || tr.Locks(locks, "") != lock.Store(locks) || tr.Sequences(values, "") != sequence.Store(values) || tr.Method() != nil {
				t.Error("something is wrapped")
			}
			handler := func(http.ResponseWriter, *http.Request) int { return http.StatusTeapot }
			if status := tr.Route("GET /x", handler)(httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil)); status != http.StatusTeapot {
				t.Error(status)
			}
			tr.Close()
		})
	}
}

// What cannot be understood is as if it were not set, and the log does not repeat it: it may be a
// secret.
func TestBadVariables(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_SDK_DISABLED": "yes", "OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "carrier-pigeon", "OTEL_EXPORTER_OTLP_TIMEOUT": "10s", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd",
		"OTEL_EXPORTER_OTLP_HEADERS": "hunter2", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x=hunter2%zz",
		"OTEL_EXPORTER_OTLP_CERTIFICATE": "/does/not/exist.pem", "OTEL_BSP_MAX_QUEUE_SIZE": "many",
		"OTEL_RESOURCE_ATTRIBUTES": "a=b,hunter2", "OTEL_TRACES_SAMPLER": "sometimes",
	} {
		t.Run(name, func(t *testing.T) {
			collector := otlptest.New(t)
			tr, logs := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.HTTP, name: value})
			if tr == nil {
				t.Fatal("nothing is traced")
			}
			if text := fmt.Sprint(logs.All()); logs.FilterLevelExact(zapcore.WarnLevel).Len() > 0 || strings.Contains(text, "hunter2") {
				t.Errorf("the log has %s", text)
			}
			_, _ = tr.Locks(lock.OnRecords(memory.New(nil)), "memory:").Get(t.Context(), "default", "k")
			tr.Close()
			one(t, collector, "lock store get")
		})
	}
	for _, endpoint := range []string{"localhost:4317", "ftp://h", "http://", "://", "http://user:hunter2@ho st"} {
		t.Run("endpoint "+endpoint, func(t *testing.T) {
			tr, logs := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
			if all := logs.All(); tr != nil || len(all) != 1 || !strings.Contains(all[0].Message, "no traces are sent") || strings.Contains(all[0].Message, "hunter2") {
				t.Errorf("%v, and the log has %+v", tr, all)
			}
		})
	}
}

// The variables that say where traces go are read here; those of the resource win over what the
// process says of itself. The library reads all others.
func TestVariables(t *testing.T) {
	for what, variables := range map[string]map[string]string{
		"http":      {"OTEL_EXPORTER_OTLP_ENDPOINT": "HTTP"},
		"of traces": {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "HTTP/v1/traces", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
	} {
		t.Run(what, func(t *testing.T) {
			c := otlptest.New(t)
			for name, value := range variables {
				t.Setenv(name, strings.ReplaceAll(value, "HTTP", c.HTTP))
			}
			t.Setenv("OTEL_SERVICE_NAME", "my ids")
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.version=ignored%20not")
			tr, logs := start(t, nil)
			if tr == nil {
				t.Fatal("nothing is traced")
			}
			_, _ = tr.Locks(lock.OnRecords(memory.New(nil)), "memory:").Get(t.Context(), "default", "k")
			tr.Close()
			s := one(t, c, "lock store get")
			if s.Resource["service.name"] != "my ids" || s.Resource["deployment.environment.name"] != "test" || s.Resource["service.version"] != "ignored not" {
				t.Errorf("the resource is %v", s.Resource)
			}
			if logs.FilterLevelExact(zapcore.WarnLevel).Len() > 0 {
				t.Errorf("the log has %v", logs.All())
			}
		})
	}
}

func TestRoute(t *testing.T) {
	tr, c := to(t)
	status := http.StatusOK
	answer := func(http.ResponseWriter, *http.Request) int { return status }
	mux := http.NewServeMux()
	for _, pattern := range []string{"POST /v1/locks/{key}/acquire", "GET /healthz", "GET /readyz", "GET /metrics", "GET /{$}", "/"} {
		traced := tr.Route(pattern, answer)
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { traced(w, r) })
	}
	ask := func(method, path, parent string) {
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("User-Agent", "hunter2 "+strings.Repeat("test", 10<<10))
		r.Header.Set("Authorization", "Bearer hunter2")
		if parent != "" {
			r.Header.Set("Traceparent", parent)
		}
		mux.ServeHTTP(httptest.NewRecorder(), r)
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/", "/nothing"} {
		ask("GET", path, "")
	}
	ask("POST", "/v1/locks/customer-wilhelmina/acquire", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	status = http.StatusServiceUnavailable
	ask("POST", "/v1/locks/customer-wilhelmina/acquire", "nonsense")
	ask("POST", "/v1/locks/customer-wilhelmina/acquire", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00") // not sampled there
	tr.Close()
	all := c.Spans()
	if len(all) != 2 {
		t.Fatalf("%d spans: %+v", len(all), all)
	}
	first, second := all[0], all[1]
	if first.Name != "POST /v1/locks/{key}/acquire" || first.Kind.String() != "SPAN_KIND_SERVER" || first.Error ||
		first.TraceID != "0af7651916cd43dd8448eb211c80319c" || first.ParentID != "b7ad6b7169203331" {
		t.Errorf("%+v", first)
	}
	for key, want := range map[string]string{
		"http.request.method": "POST", "http.route": "/v1/locks/{key}/acquire", "http.response.status_code": "200",
	} {
		if first.Attributes[key] != want {
			t.Errorf("%s is %q, want %q", key, first.Attributes[key], want)
		}
	}
	if second.ParentID != "" || !second.Error || second.Attributes["error.type"] != "503" {
		t.Errorf("%+v", second)
	}
	if text := fmt.Sprint(all); strings.Contains(text, "wilhelmina") || strings.Contains(text, "hunter2") {
		t.Errorf("a key or a token is in %s", text)
	}
}

func TestMethod(t *testing.T) {
	tr, c := to(t)
	begin := tr.Method()
	ctx, done := begin(t.Context(), "Lock.Acquire")
	_, _ = tr.Locks(lock.OnRecords(memory.New(nil)), "memory:").Get(ctx, "default", "k")
	done("ok")
	_, done = begin(t.Context(), "Sequence.Next")
	done("STORE_UNAVAILABLE")
	tr.Close()
	s, child := one(t, c, "Lock.Acquire"), one(t, c, "lock store get")
	if child.ParentID != s.ID || child.TraceID != s.TraceID || s.Error || s.Attributes["rpc.method"] != "Lock.Acquire" || s.Attributes["rpc.response.status_code"] != "ok" {
		t.Errorf("%+v, %+v", s, child)
	}
	if s := one(t, c, "Sequence.Next"); !s.Error || s.Attributes["error.type"] != "STORE_UNAVAILABLE" {
		t.Errorf("%+v", s)
	}
}

// A collector that takes everything and never answers holds no caller up, and fills no log.
func TestHangingCollector(t *testing.T) {
	ring.All(t)
	tracing.SetCloseTimeout(shipped)
	defer tracing.SetCloseTimeout(await.Patience)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // nothing accepts
	must.Succeed(t, err)
	defer listener.Close()
	tr, logs := start(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + listener.Addr().String(),
		// Were it not for the deadline of Close, it would last for as long.
		"OTEL_EXPORTER_OTLP_TIMEOUT": "3600000", "OTEL_BSP_EXPORT_TIMEOUT": "3600000",
		"OTEL_BSP_SCHEDULE_DELAY": "1", "OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4",
	})
	s := tr.Locks(lock.OnRecords(memory.New(nil)), "memory:")
	for range 10_000 {
		_, _ = s.Get(t.Context(), "default", "k")
	}
	began := time.Now()
	tr.Close()
	if took := time.Since(began); took > await.Patience {
		t.Errorf("Close took %v", took)
	}
	if n := logs.FilterLevelExact(zapcore.WarnLevel).Len(); n > 2 {
		t.Errorf("%d warnings: %v", n, logs.All())
	}
}
