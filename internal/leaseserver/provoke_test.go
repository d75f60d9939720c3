package leaseserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// request is one of the contract's operations, ready to be sent.
type request struct{ target, body string }

// good returns, for each operation, a request that succeeds on the rig.
var good = map[string]func(g *rig) request{
	"POST /lease": func(*rig) request { return request{"/lease", `{"requestId": "good"}`} },
	"DELETE /lease/{id}": func(g *rig) request {
		l := g.granted()
		return request{"/lease/7", fmt.Sprintf(`{"signature": "%s", "timestamp": %d}`, lease.Sign(l.Secret, l.ID, testNow), testNow)}
	},
	"POST /leases/extend": func(g *rig) request {
		l := g.granted()
		return request{"/leases/extend", extension(g.t, l, l.Secret)}
	},
	"POST /leases/verify": func(g *rig) request { return request{"/leases/verify", verification(g.t, g.granted())} },
	"GET /leases":         func(g *rig) request { g.granted(); return request{"/leases", ""} },
	"GET /leases/at":      func(g *rig) request { g.granted(); return request{"/leases/at?low=1792&at=1", ""} },
	"GET /leases/map":     func(g *rig) request { g.granted(); return request{"/leases/map?cells=1", ""} },
	"GET /leases/find":    func(g *rig) request { g.granted(); return request{"/leases/find?from=7&to=8", ""} },
	"GET /leases/maker":   func(g *rig) request { g.granted(); return request{"/leases/maker?id=4194304000001792", ""} },
	"GET /status.json":    func(g *rig) request { g.granted(); return request{"/status.json", ""} },
	"GET /stats":          func(*rig) request { return request{"/stats", ""} },
	"GET /metrics":        func(*rig) request { return request{"/metrics", ""} },
	"GET /healthz":        func(*rig) request { return request{"/healthz", ""} },
	"GET /readyz":         func(*rig) request { return request{"/readyz", ""} },
	"GET /":               func(*rig) request { return request{"/", ""} },
	"GET /v1/locks":       func(g *rig) request { g.held(); return request{"/v1/locks?limit=5", ""} },
	"GET /v1/locks/{key}": func(g *rig) request {
		g.held()
		return request{"/v1/locks/held", ""}
	},
	"POST /v1/locks/{key}/acquire": func(*rig) request { return request{"/v1/locks/free/acquire", `{"request_id": "good", "wait_ms": 1}`} },
	"POST /v1/locks/{key}/renew":   func(g *rig) request { g.held(); return request{"/v1/locks/held/renew", `{"ttl_seconds": 5}`} },
	"POST /v1/locks/{key}/release": func(g *rig) request { g.held(); return request{"/v1/locks/held/release", `{}`} },
	"POST /v1/sequences/{key}/next": func(*rig) request {
		return request{"/v1/sequences/numbers/next", `{"count": 3, "request_id": "good"}`}
	},
	"POST /v1/sequences/{key}/declare": func(*rig) request {
		return request{"/v1/sequences/numbers/declare", `{"last": 41}`}
	},
	"GET /v1/placements/{kind}/{identity}": func(g *rig) request {
		g.placed()
		return request{"/v1/placements/room/lobby", ""}
	},
	"POST /v1/placements/{kind}/{identity}/store": func(g *rig) request {
		g.placed()
		return request{"/v1/placements/room/lobby/store", `{"owner": "a:1", "membership": 1, "pid": "p", "version": 2, "token": 5, "snapshot": "c25hcA=="}`}
	},
	"POST /v1/placements/{kind}/{identity}/remove": func(g *rig) request {
		g.placed()
		return request{"/v1/placements/room/lobby/remove", `{"owner": "a:1", "membership": 1, "version": 1, "token": 4, "keep": true}`}
	},
}

// granted is a lease of machine ID 7, granted past the server; the server's stub may fail.
func (g *rig) granted() lease.Lease {
	g.t.Helper()
	leases, err := g.stub.Provider.Acquire(context.Background(), provider.AcquireRequest{RequestID: "granted"})
	must.Succeed(g.t, err)
	return leases[0]
}

// held makes the caller hold the lock "held".
func (g *rig) held() {
	g.t.Helper()
	owner := Credential{Owner: AnonymousOwner}.lockOwner()
	if g.options.Tokens != nil {
		owner = "all"
	}
	_, err := g.stub.locks.Do(context.Background(), lock.Request{
		Op: lock.Acquire, Tenant: DefaultTenant, Key: "held", Owner: owner, LeaseID: lock.NewLeaseID(), TTLMS: 60_000, RequestID: "held",
	})
	must.Succeed(g.t, err)
}

// placed has the member a:1 own the actor room/lobby.
func (g *rig) placed() {
	g.t.Helper()
	err := g.stub.records.Store(context.Background(), "default@placement", placement.Key{Kind: "room", Identity: "lobby"},
		placement.Record{Owner: placement.Member{Authority: "a:1", Token: 1}, PID: "p", Version: 1, Token: 4, Snapshot: []byte("snap")})
	must.Succeed(g.t, err)
}

// least is a provider that can acquire and release only.
type least struct {
	provider.Lacking
	p provider.Provider
}

func (l least) Acquire(ctx context.Context, r provider.AcquireRequest) ([]lease.Lease, error) {
	return l.p.Acquire(ctx, r)
}
func (l least) Release(ctx context.Context, r provider.ReleaseRequest) error {
	return l.p.Release(ctx, r)
}
func (least) Info() provider.Info { return provider.Info{} }
func (l least) Close() error      { return l.p.Close() }

// stub is everything behind a server, and answers with the error where there is
// one.
type stub struct {
	provider.Provider
	locks   lock.Store
	records storage.Storage
	err     error
}

// or answers a call, unless the stub is to fail.
func or[T any](s *stub, call func() (T, error)) (out T, err error) {
	if s.err != nil {
		return out, s.err
	}
	return call()
}

func (s *stub) Acquire(ctx context.Context, r provider.AcquireRequest) ([]lease.Lease, error) {
	return or(s, func() ([]lease.Lease, error) { return s.Provider.Acquire(ctx, r) })
}

func (s *stub) Release(ctx context.Context, r provider.ReleaseRequest) error {
	_, err := or(s, func() (any, error) { return nil, s.Provider.Release(ctx, r) })
	return err
}

func (s *stub) Extend(ctx context.Context, r provider.ExtendRequest) (lease.Lease, error) {
	return or(s, func() (lease.Lease, error) { return s.Provider.Extend(ctx, r) })
}

func (s *stub) Verify(ctx context.Context, service string, claims []provider.Claim) ([]int, error) {
	return or(s, func() ([]int, error) { return s.Provider.Verify(ctx, service, claims) })
}

func (s *stub) List(ctx context.Context, service string) ([]provider.Record, error) {
	return or(s, func() ([]provider.Record, error) { return s.Provider.List(ctx, service) })
}

func (s *stub) Locate(ctx context.Context, service string, low, at int64) ([]provider.Record, error) {
	return or(s, func() ([]provider.Record, error) { return s.Provider.Locate(ctx, service, low, at) })
}

// records is a record store that fails as the stub does.
type records struct {
	record.Store
	stub *stub
}

func (r records) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	return or(r.stub, func() (int64, error) { return r.Store.Change(ctx, ask, rule) })
}

func (r records) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	return or(r.stub, func() (record.View, error) { return r.Store.Read(ctx, ask) })
}

func (r records) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	return or(r.stub, func() ([]record.Head, error) { return r.Store.List(ctx, prefix, after, limit) })
}

// contractRig is a server with everything behind it, in memory, and machine ID 7.
func contractRig(t *testing.T, change func(*rig)) *rig {
	t.Helper()
	return newRig(t, func(g *rig) {
		g.services.Default.IDs = provider.IDRange{Low: 7, End: 8}
		g.stub = &stub{Provider: g.memory()}
		kept := records{memory.New(g.clock.Load), g.stub}
		g.stub.locks, g.stub.records = lock.OnRecords(kept), storage.OnRecords(kept)
		g.options.Provider = g.stub
		g.keep(g.stub.locks)
		g.options.Sequences.Store = sequence.OnRecords(kept)
		g.options.Placements.Records = g.stub.records
		g.options.Ready = func(context.Context) error { return g.stub.err }
		if change != nil {
			change(g)
		}
	})
}

// provocation provokes an answer of the operation.
type provocation func(t *testing.T, o operation) reply

// on sends the operation's good request, after the rig was changed.
func on(change func(*rig), then func(g *rig, o operation, r request) reply) provocation {
	return func(t *testing.T, o operation) reply {
		g := contractRig(t, change)
		return then(g, o, good[o.String()](g))
	}
}

func send(g *rig, o operation, r request) reply { return g.send(o.method, r.target, "", r.body) }

// fails has all that is behind the server answer with the error.
func fails(err error) provocation {
	return on(nil, func(g *rig, o operation, r request) reply {
		g.stub.err = err
		return send(g, o, r)
	})
}

// instead sends other requests than the good one, of which the last counts.
func instead(requests ...request) provocation {
	return on(nil, func(g *rig, o operation, _ request) (last reply) {
		for _, r := range requests {
			last = send(g, o, r)
		}
		return last
	})
}

const allTokens = `
- {token: a-token-that-may-do-everything, owner: all, scopes: [leases, run, locks, sequences, placements, admin]}
- {token: a-token-for-leases-and-nothing-else, owner: leases, scopes: [leases]}
- {token: a-token-for-locks-and-nothing-else, owner: locks, scopes: [locks]}
`

func as(token func(o operation) string) provocation {
	return on(func(g *rig) { g.tokens(allTokens) }, func(g *rig, o operation, r request) reply {
		return g.send(o.method, r.target, token(o), r.body)
	})
}

var errFailed = errors.New("the store has gone")

// everywhere are provocations that do with most operations.
var everywhere = map[string]provocation{
	"200 ":                on(nil, send),
	"401 UNAUTHENTICATED": as(func(operation) string { return "" }),
	"403 FORBIDDEN":       as(wrongToken),
	"415 UNSUPPORTED_MEDIA_TYPE": on(nil, func(g *rig, o operation, r request) reply {
		return g.send(o.method, r.target, "", "x", "Content-Type", "text/plain")
	}),
	"413 REQUEST_TOO_LARGE": on(nil, func(g *rig, o operation, r request) reply {
		return g.send(o.method, r.target, "", `{"x": "`+strings.Repeat("x", leaseapi.MaxRequestBytes)+`"}`)
	}),
	"429 RATE_LIMITED": on(func(g *rig) { g.options.RateLimit, g.options.RateBurst = 0.001, 1 }, func(g *rig, o operation, r request) reply {
		over := make(chan time.Time)
		close(over)
		g.server.after = func(time.Duration) <-chan time.Time { return over }
		send(g, o, r)
		return send(g, o, r)
	}),
	"503 OVERLOADED": on(func(g *rig) { g.options.MaxInFlight, g.options.ProviderTimeout = 1, time.Millisecond }, func(g *rig, o operation, r request) reply {
		g.server.slots <- struct{}{}
		g.server.upkeep <- struct{}{}
		return send(g, o, r)
	}),
	"503 PROVIDER_UNAVAILABLE": fails(errFailed),
	"503 STORE_FULL":           fails(&record.FullError{Setting: record.SettingDisk, Limit: 1 << 30}),
	"503 PROVIDER_BUSY":        fails(&provider.BusyError{RetryAfter: time.Second, Reason: "it is loading"}),
	"503 FENCED":               fails(&provider.FencedError{UntilMS: testNow + 1000, Reason: "it was restarted"}),
	"501 NOT_SUPPORTED": on(func(g *rig) {
		g.options.Locks, g.options.Sequences, g.options.Placements = nil, nil, nil
		g.options.Provider = least{p: g.stub.Provider}
	}, send),
	"400 KEY_MISMATCH": on(nil, func(g *rig, o operation, r request) reply {
		target, query, _ := strings.Cut(r.target, "?")
		return g.send(o.method, target+"?id=99&lock_key=x&key=x&kind=x&identity=x&"+query, "", r.body)
	}),
	"400 INVALID_REQUEST": on(nil, func(g *rig, o operation, r request) reply {
		if o.method == "GET" {
			r.target, _, _ = strings.Cut(r.target, "?")
			r.target += "?serviceId=%zz"
		}
		return g.send(o.method, r.target, "", map[bool]string{true: "", false: "["}[o.method == "GET"])
	}),
}

// wrongToken is a token without the scope of the operation.
func wrongToken(o operation) string {
	if strings.HasPrefix(o.path, "/lease") {
		return "a-token-for-locks-and-nothing-else"
	}
	return "a-token-for-leases-and-nothing-else"
}

// here are the provocations of single operations.
var here = map[string]provocation{
	"POST /lease 409 CONFLICT": on(nil, func(g *rig, o operation, r request) reply {
		send(g, o, r)
		g.clock.Add(time.Hour.Milliseconds())
		return send(g, o, r)
	}),
	"POST /lease 503 NO_MACHINE_ID": instead(request{"/lease", `{"requestId": "a"}`}, request{"/lease", `{"requestId": "b"}`}),

	"DELETE /lease/{id} 204 ": on(nil, send),
	"DELETE /lease/{id} 403 TIMESTAMP_SKEW": on(nil, func(g *rig, o operation, r request) reply {
		g.clock.Add(time.Minute.Milliseconds())
		return send(g, o, r)
	}),
	"DELETE /lease/{id} 404 LEASE_NOT_FOUND": instead(request{"/lease/8?signature=00&timestamp=1795257565189", ``}),
	"DELETE /lease/{id} 403 BAD_SIGNATURE": on(nil, func(g *rig, o operation, r request) reply {
		r.body = strings.Replace(r.body, `"signature": "`, `"signature": "0`, 1)
		return send(g, o, r)
	}),

	"POST /leases/extend 403 BAD_SIGNATURE":   forgedExtend(func(l *lease.Lease) { l.Secret = "forged" }),
	"POST /leases/extend 404 LEASE_NOT_FOUND": forgedExtend(func(l *lease.Lease) { l.ID = 8 }),
	"POST /leases/extend 409 CONFLICT":        lapsed,

	"GET /v1/locks 400 INVALID_REQUEST":          instead(request{"/v1/locks?limit=0", ``}),
	"GET /v1/locks/{key} 400 INVALID_REQUEST":    instead(request{"/v1/locks/a%0Ab", ``}),
	"GET /v1/locks/{key} 404 LOCK_NOT_FOUND":     instead(request{"/v1/locks/unknown", ``}),
	"POST /v1/locks/{key}/acquire 409 LOCK_HELD": instead(request{"/v1/locks/k/acquire", `{}`}, request{"/v1/locks/k/acquire", `{}`}), // LS-ACQ-001
	"POST /v1/locks/{key}/acquire 409 REQUEST_ID_REUSED": instead(
		request{"/v1/locks/k/acquire", `{"request_id": "r"}`}, request{"/v1/locks/k/acquire", `{"request_id": "r", "ttl_seconds": 7}`}),
	"POST /v1/locks/{key}/acquire 409 LOCK_EXPIRED": fails(fmt.Errorf("%w: its term was over", lock.ErrExpired)),
	"POST /v1/locks/{key}/acquire 503 LOCK_FENCED":  fails(&lock.FencedError{UntilMS: testNow + 90_000, RemainingMS: 90_000, Reason: "restarted"}),

	"POST /v1/locks/{key}/renew 409 LOCK_NOT_OWNED":   instead(request{"/v1/locks/unknown/renew", ``}),
	"POST /v1/locks/{key}/release 409 LOCK_NOT_OWNED": instead(request{"/v1/locks/unknown/release", ``}),
	"POST /v1/locks/{key}/renew 409 LOCK_EXPIRED":     lapsed, // LS-INV-004
	"POST /v1/locks/{key}/release 409 LOCK_EXPIRED":   lapsed,
	"POST /v1/locks/{key}/renew 409 REQUEST_ID_REUSED": instead(request{"/v1/locks/k/acquire", ``},
		request{"/v1/locks/k/renew", `{"request_id": "r"}`}, request{"/v1/locks/k/renew", `{"request_id": "r", "ttl_seconds": 7}`}),
	"POST /v1/locks/{key}/release 409 REQUEST_ID_REUSED": instead(request{"/v1/locks/k/acquire", `{"request_id": "r"}`}, request{"/v1/locks/k/release", `{"request_id": "r"}`}),

	"POST /v1/sequences/{key}/next 409 SEQUENCE_EXHAUSTED": instead(
		request{"/v1/sequences/k/next", `{"max_value": 1, "on_max": "error"}`}, request{"/v1/sequences/k/next", `{"max_value": 1, "on_max": "error"}`}),
	"POST /v1/sequences/{key}/next 409 REQUEST_ID_REUSED": instead(
		request{"/v1/sequences/k/next", `{"request_id": "r"}`}, request{"/v1/sequences/k/next", `{"request_id": "r", "count": 2}`}),
	"POST /v1/sequences/{key}/next 503 SEQUENCE_FENCED": fails(&sequence.FencedError{Key: "numbers", Reason: "restarted"}),

	"GET /v1/placements/{kind}/{identity} 400 INVALID_REQUEST": instead(request{"/v1/placements/room/a%0Ab", ``}),
	"POST /v1/placements/{kind}/{identity}/store 409 PLACEMENT_STALE": instead(
		request{"/v1/placements/room/lobby/store", `{"owner": "a:1", "membership": 1, "version": 1, "token": 4}`},
		request{"/v1/placements/room/lobby/store", `{"owner": "b:1", "membership": 2, "version": 1, "token": 5}`}),

	"GET /readyz 503 OVERLOADED": on(nil, func(g *rig, o operation, r request) reply {
		g.server.stopping.Store(true)
		return send(g, o, r)
	}),
}

func forgedExtend(change func(*lease.Lease)) provocation {
	return on(nil, func(g *rig, o operation, _ request) reply {
		l := g.granted()
		change(&l)
		return send(g, o, request{"/leases/extend", extension(g.t, l, l.Secret)})
	})
}

var lapsed = on(nil, func(g *rig, o operation, r request) reply {
	g.clock.Add(time.Hour.Milliseconds())
	return send(g, o, r)
})

// TestContractIsKept provokes every answer that the file describes, by operation,
// status and code. Each that is described must have a way to be provoked, and each
// way an answer that is described; all other answers are held to the file too, here as in
// every test of this package.
func TestContractIsKept(t *testing.T) {
	c, err := theContract()
	must.Succeed(t, err)
	used := map[string]bool{}
	answers := 0
	for _, o := range c.operations() {
		if good[o.String()] == nil {
			t.Errorf("%v: the test has no request that succeeds", o)
			continue
		}
		for _, status := range c.statuses(o) {
			codes := c.codes(c.follow(c.names(o, "responses", fmt.Sprint(status))))
			if len(codes) == 0 {
				codes = []problem.Code{""}
			}
			for _, code := range codes {
				answers++
				general := fmt.Sprintf("%d %s", status, code)
				special := o.String() + " " + general
				provoke := here[special]
				if used[special] = true; provoke == nil {
					provoke = everywhere[general]
					used[general] = true
				}
				if provoke == nil {
					t.Errorf("%s is described, and the test has no way to provoke it", special)
					continue
				}
				t.Run(special, func(t *testing.T) {
					// Seeds 000-4.2-1, 002-3-5 and 002-4-4.
					if r := provoke(t, o); r.status != status || r.problem.Code != code {
						t.Errorf("status %d, %s", r.status, r.body)
					}
				})
			}
		}
	}
	for special := range here {
		if !used[special] {
			t.Errorf("%s can be provoked, and is not described", special)
		}
	}
	for general := range everywhere {
		if !used[general] {
			t.Errorf("%s is in the table, and nowhere described", general)
		}
	}
	if answers < 100 {
		t.Errorf("only %d answers are described", answers)
	}
	t.Logf("%d answers of %d operations", answers, len(c.operations()))
}

// A path or a method that is not described is answered as the file says.
func TestContractElsewhere(t *testing.T) {
	c, err := theContract()
	must.Succeed(t, err)
	g := contractRig(t, nil)
	for _, path := range []string{"/v1", "/lease/7/x", "/locks", "//", "/v1/locks/", "/.", "/lease/../leases"} {
		g.want(path, g.send("GET", path, "", ""), problem.NotFound)
	}
	for _, o := range c.operations() {
		for _, method := range []string{"PUT", "PATCH", "OPTIONS", "DELETE", "POST", "GET"} {
			if _, known := c.find(method, o.path); known {
				continue
			}
			r := g.send(method, strings.NewReplacer("{id}", "7", "{key}", "k", "{kind}", "k", "{identity}", "i").Replace(o.path), "", "")
			g.want(method+" "+o.path, r, problem.MethodNotAllowed)
			if allowed := strings.Split(r.header.Get("Allow"), ", "); !slices.Contains(allowed, o.method) {
				t.Errorf("%s %s: allowed is %v", method, o.path, allowed)
			}
		}
	}
}
