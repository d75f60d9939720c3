package leaseserver

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

const (
	testNow = snowflake.DefaultEpochMS + 1_000_000_000
	long    = await.Patience // anything, on a busy machine
)

// rig is a server in front of a memory provider, with a clock that the test has.
type rig struct {
	t        *testing.T
	clock    atomic.Int64
	services provider.Services
	options  Options
	server   *Server
	stub     *stub // of contractRig

	anyRequest bool // requests need not be as the API's description has them
}

// newRig makes a server; change sees its options first.
func newRig(t *testing.T, change func(*rig)) *rig {
	t.Helper()
	g := &rig{t: t, services: provider.Services{Default: provider.DefaultTerms(), Named: map[string]provider.Terms{}}}
	g.clock.Store(testNow)
	g.options = Options{
		Version: "test", ProviderTimeout: long, MaxInFlight: 100, RateBurst: 1, NowMS: g.clock.Load,
		Metrics: metrics.NewLeaseServer(metrics.Build{}), Log: zap.NewNop(),
	}
	if change != nil {
		change(g)
	}
	if g.options.Provider == nil {
		g.options.Provider = g.memory()
	}
	g.options.Services = g.services
	g.options.Refusals = refusals.New(g.options.Log, g.options.Metrics.Refused)
	g.server = New(g.options)
	g.server.handler = g.recorded(g.server.handler)
	return g
}

// memory is a provider that has nothing yet.
func (g *rig) memory() provider.Provider {
	g.t.Helper()
	p, err := providertest.OverMemory(memory.New(g.clock.Load), g.services)
	must.Succeed(g.t, err)
	return p
}

// pool adds a service with a pool of its own.
func (g *rig) pool(service, pool string) {
	terms := provider.DefaultTerms()
	terms.Pool = pool
	g.services.Named[service] = terms
}

// tokens has requests need one of the tokens of the YAML list.
func (g *rig) tokens(yaml string) {
	tokens, err := ParseTokens([]byte(yaml))
	must.Succeed(g.t, err)
	g.options.Tokens = func() *Tokens { return tokens }
}

// reply is what came back.
type reply struct {
	status  int
	header  http.Header
	body    string
	problem problem.Problem // when it is one
}

// send sends a request with a JSON body ("" for none) and a token ("" for none).
func (g *rig) send(method, target, token, body string, headers ...string) reply {
	g.t.Helper()
	return g.sendFrom("192.0.2.1:1234", method, target, token, body, headers...)
}

// sendFrom is send from an address of a peer.
func (g *rig) sendFrom(peer, method, target, token, body string, headers ...string) reply {
	g.t.Helper()
	r := httptest.NewRequest(method, target, io.Reader(bytes.NewReader([]byte(body))))
	r.RemoteAddr = peer
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	g.server.ServeHTTP(w, r)
	out := reply{status: w.Code, header: w.Header(), body: w.Body.String()}
	if strings.HasPrefix(w.Header().Get("Content-Type"), problem.MediaType) {
		if err := json.Unmarshal(w.Body.Bytes(), &out.problem); err != nil {
			g.t.Errorf("%s %s: the problem is malformed: %s", method, target, w.Body)
		}
		if out.problem.Status != w.Code || out.problem.Code == "" || out.problem.Title == "" || out.problem.Detail == "" {
			g.t.Errorf("%s %s: status %d and the problem %+v", method, target, w.Code, out.problem)
		}
	} else if w.Code >= 400 {
		g.t.Errorf("%s %s: status %d without a problem: %s", method, target, w.Code, w.Body)
	}
	return out
}

// acquire acquires one lease, which must be granted.
func (g *rig) acquire(token, body string) lease.Lease {
	g.t.Helper()
	r := g.send("POST", "/lease", token, body)
	var out leaseapi.AcquireResponse
	if err := json.Unmarshal([]byte(r.body), &out); r.status != 200 || err != nil || len(out.Leases) == 0 {
		g.t.Fatalf("acquire %s: status %d, %s", body, r.status, r.body)
	}
	return out.Leases[0]
}

// want fails unless the reply is the problem.
func (g *rig) want(what string, r reply, code problem.Code) {
	g.t.Helper()
	if r.problem.Code != code || r.status != problem.Codes()[code] {
		g.t.Errorf("%s: status %d, %s; want %s", what, r.status, r.body, code)
	}
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must.Succeed(t, err)
	return string(b)
}
