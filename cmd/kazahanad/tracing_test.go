package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/otlptest"
)

// traces are the spans of one process, by name.
type traces map[string][]otlptest.Span

func tracesOf(c *otlptest.Collector, service string) traces {
	all := traces{}
	for _, s := range c.Spans() {
		if s.Resource["service.name"] == service {
			all[s.Name] = append(all[s.Name], s)
		}
	}
	return all
}

// childOf finds the span with the name and that parent, in its trace.
func (all traces) childOf(t *testing.T, parent otlptest.Span, name string) otlptest.Span {
	t.Helper()
	for _, s := range all[name] {
		if s.ParentID == parent.ID && s.TraceID == parent.TraceID {
			return s
		}
	}
	t.Fatalf("no %q belongs to %+v; there are %+v", name, parent, all[name])
	return otlptest.Span{}
}

// first is a span of the name that begins a trace.
func (all traces) first(t *testing.T, name string) otlptest.Span {
	t.Helper()
	for _, s := range all[name] {
		if s.ParentID == "" {
			return s
		}
	}
	t.Fatalf("no trace begins with %q; there are %+v", name, all)
	return otlptest.Span{}
}

// tracedPair runs a lease server and a daemon that gets leases, locks and sequences
// from it, and has them do some of everything.
func tracedPair(t *testing.T, variables ...string) (server *testkit.LeaseServer, d *testkit.Instance) {
	t.Helper()
	far, near := newSite(t), newSite(t)
	far.Env, near.Env = variables, variables
	server = far.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+far.Leases())
	d = near.Start("--provider", server.URL(), "--verify-interval", "50ms", "--log-format", "json")
	c := near.Dial()
	c.IDs(1000)
	for range 100 {
		c.ID()
	}
	var held, value any
	c.Must("Lock.Acquire", &held, "customer-wilhelmina", map[string]any{"ttl_ms": 60_000})
	waits := near.Dial()
	if err := waits.Try("Lock.Acquire", &held, "customer-wilhelmina", map[string]any{"ttl_ms": 60_000, "wait_ms": 50}); err == nil {
		t.Error("a lock that is held was acquired")
	}
	c.Must("Lock.Release", &held, "customer-wilhelmina")
	c.Must("Sequence.NextBatch", &value, "customer-wilhelmina", 5)
	return server, d
}

// A request on the socket is followed into the lease server and its store, provider
// calls likewise; IDs and keys are in no span.
func TestTraces(t *testing.T) {
	t.Parallel()
	collector := otlptest.New(t)
	server, d := tracedPair(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.HTTP, "OTEL_BSP_SCHEDULE_DELAY=100")
	await.Eventually(t, "leases are verified, which is seen before the daemon ends", func() bool {
		return len(tracesOf(collector, "kazahanad")["provider verify"]) > 0
	})
	d.Terminate()
	server.Terminate()
	near, far := tracesOf(collector, "kazahanad"), tracesOf(collector, "kazahana-lease-server")

	for call, route := range map[string]string{"acquire": "POST /lease", "release": "DELETE /lease/{id}", "verify": "POST /leases/verify"} {
		asked := near.first(t, "provider "+call)
		if host, port, _ := net.SplitHostPort(server.Address); asked.Attributes["server.address"] != host || asked.Attributes["server.port"] != port {
			t.Errorf("%s went to %v", call, asked.Attributes)
		}
		answered := far.childOf(t, asked, route)
		if granted := far.childOf(t, answered, "provider "+call); granted.Attributes["db.system.name"] != "sqlite" {
			t.Errorf("%s was carried out by %v", call, granted.Attributes)
		}
	}
	for method, op := range map[string]string{"Lock.Acquire": "lock store acquire", "Lock.Release": "lock store release", "Sequence.NextBatch": "sequence store next"} {
		route := map[string]string{
			"Lock.Acquire": "POST /v1/locks/{key}/acquire", "Lock.Release": "POST /v1/locks/{key}/release", "Sequence.NextBatch": "POST /v1/sequences/{key}/next",
		}[method]
		asked := near.childOf(t, near.first(t, method), op) // seed 003-7.2-11
		far.childOf(t, far.childOf(t, asked, route), op)
	}
	codes := map[string]int{}
	for _, s := range near["Lock.Acquire"] {
		codes[s.Attributes["rpc.response.status_code"]]++
	}
	if codes["ok"] != 1 || codes["LOCK_HELD"] != 1 {
		t.Errorf("locks were answered with %v", codes)
	}
	for _, s := range collector.Spans() {
		if text := fmt.Sprint(s); strings.Contains(text, "wilhelmina") || strings.Contains(s.Name, "NextID") {
			t.Errorf("a key or a request for IDs is in %s", text)
		}
	}
	for _, log := range []*testkit.Log{d.Log, server.Log} {
		if !logsOf(t, log)[event{"info", "tracing", "traces are sent"}] {
			t.Errorf("the log does not say where traces go:\n%s", log)
		}
	}
}
