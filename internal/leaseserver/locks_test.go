package leaseserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/keyname"
	"github.com/kazahana/kazahana/internal/lock"
	lockhttp "github.com/kazahana/kazahana/internal/lock/http"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// elapsed is a clock for waiting.
type elapsed struct{ began time.Time }

func (e elapsed) Elapsed() time.Duration { return time.Since(e.began) }

const keepingTokens = `
- {token: ` + tokenHost + `, owner: hosts, scopes: [locks, sequences]}
- {token: ` + tokenOther + `, owner: other-hosts, scopes: [locks, sequences]}
- {token: ` + tokenAcme + `, tenant: acme, owner: hosts, scopes: [locks, sequences]}
- {token: ` + tokenAdmin + `, owner: operator, scopes: [admin, leases]}
`

// keep gives the rig locks, sequences and activation records, in memory.
func (g *rig) keep(store lock.Store) {
	host := lock.NewHost(store, elapsed{time.Now()}, long)
	g.t.Cleanup(func() {
		if err := host.Close(context.Background()); err != nil {
			g.t.Error(err)
		}
	})
	g.options.Locks = &Locks{Store: store, Host: host}
	g.options.Sequences = &Sequences{Store: sequence.OnRecords(memory.New(g.clock.Load))}
	g.options.Placements = &Placements{Records: storage.OnRecords(memory.New(nil))}
}

func lockRig(t *testing.T, change func(*rig)) *rig {
	t.Helper()
	return newRig(t, func(g *rig) {
		g.tokens(keepingTokens)
		g.keep(lock.OnRecords(memory.New(g.clock.Load)))
		if change != nil {
			change(g)
		}
	})
}

// locked is the answer of a request that must succeed.
func (g *rig) locked(op, key, token, body string) lockhttp.Answer {
	g.t.Helper()
	r := g.send("POST", "/v1/locks/"+key+"/"+op, token, body)
	var out lockhttp.Answer
	if err := json.Unmarshal([]byte(r.body), &out); r.status != 200 || err != nil {
		g.t.Fatalf("%s of %s with %s: status %d, %s", op, key, body, r.status, r.body)
	}
	return out
}

// The names and the values of an answer are those of the contract.
func TestLockAnswer(t *testing.T) {
	g := lockRig(t, nil)
	r := g.send("POST", "/v1/locks/orders%2F42/acquire", tokenHost, `{"ttl_seconds": 30, "request_id": "r", "lease_id": "00112233445566778899aabbccddeeff"}`)
	at := time.UnixMilli(testNow).UTC()
	want := fmt.Sprintf(`{"tenant_id":"default","lock_key":"orders/42","lease_id":"00112233445566778899aabbccddeeff","owner_id":"hosts","fencing_token":1,`+
		`"state":"ACTIVE","acquired_at":"%s","expires_at":"%s","expires_in_ms":30000,"owner_suffix":""}`,
		at.Format("2006-01-02T15:04:05.000Z"), at.Add(30*time.Second).Format("2006-01-02T15:04:05.000Z"))
	if r.status != 200 || strings.TrimSpace(r.body) != want {
		t.Errorf("status %d, %s\nwant %s", r.status, r.body, want)
	}
	again := g.locked("acquire", "orders%2F42", tokenHost, `{"ttl_seconds": 30, "request_id": "r"}`)
	if !again.Repeated || again.FencingToken != 1 {
		t.Errorf("again: %+v", again)
	}
	held := g.send("POST", "/v1/locks/orders%2F42/acquire", tokenOther, `{"ttl_seconds": 30, "request_id": "r"}`)
	g.want("held", held, problem.LockHeld)
	if p := held.problem; p.OwnerID != "hosts" || p.RetryAfterMS != 30_000 || p.FencingToken != 1 || p.OwnerSuffix != nil || p.RequestDigest != nil || p.RequestMark != "" ||
		held.header.Get("Retry-After") != "30" || strings.Contains(p.Detail, "this owner") {
		t.Errorf("held: %s, %v", held.body, held.header)
	}
	own := g.send("POST", "/v1/locks/orders%2F42/acquire", tokenHost, `{"ttl_seconds": 30, "request_id": "other"}`)
	g.want("held by the caller", own, problem.LockHeld)
	if !strings.Contains(own.problem.Detail, "this owner holds the lock already, by another request: lock \"orders/42\" is held by \"hosts\" until 20") {
		t.Errorf("held by the caller: %s", own.body)
	}
	for body, want := range map[string]int64{`{"ttl_ms": 1500}`: 1500, `{"ttl_seconds": 60}`: 60_000} { // LS-RNW-002
		if got := g.locked("renew", "orders%2F42", tokenHost, body); got.ExpiresInMS != want {
			t.Errorf("renewed with %s: %+v", body, got)
		}
	}
	if got := g.locked("release", "orders%2F42", tokenHost, ``); got.State != lock.Released || got.ExpiresInMS != 0 {
		t.Errorf("released: %+v", got)
	}
	for _, metric := range []string{
		`kazahana_server_lock_requests_total{op="acquire",result="ok"} 2`, `kazahana_server_lock_requests_total{op="acquire",result="held"} 2`,
		`kazahana_server_lock_requests_total{op="release",result="ok"} 1`, `kazahana_server_lock_requests_total{op="renew",result="expired"} 0`,
		`kazahana_server_lock_waiters 0`,
	} {
		if m := g.send("GET", "/metrics", tokenAdmin, "").body; !strings.Contains(m, metric) {
			t.Errorf("there is no %s", metric)
		}
	}
}

// Any key arrives as it was meant, with any bytes.
func TestLockKeys(t *testing.T) {
	g := lockRig(t, nil)
	keys := []string{
		"a", "a/b", "/", "//", "a//b", "/a/", ".", "..", "a/../b", "acquire", "x/acquire", "%2F", "a b", "?x=1", "#", "ключ", "錠前", "🔒", `\`, `"`, "a;b", "+",
		strings.Repeat("k", lock.MaxKey), strings.Repeat("錠", lock.MaxKey/3), strings.Repeat("%", lock.MaxKey),
	}
	escape := func(key string) string { return strings.ReplaceAll(url.PathEscape(key), ".", "%2E") }
	for i, key := range keys {
		if got := g.locked("acquire", escape(key), tokenHost, fmt.Sprintf(`{"owner_suffix": "%d"}`, i)); got.LockKey != key {
			t.Errorf("%q became %q", key, got.LockKey)
		}
	}
	for i, key := range keys {
		r := g.send("GET", "/v1/locks/"+escape(key), tokenHost, "")
		var got lockhttp.Answer
		if err := json.Unmarshal([]byte(r.body), &got); err != nil || got.LockKey != key || *got.OwnerSuffix != fmt.Sprint(i) {
			t.Errorf("%q: status %d, %s", key, r.status, r.body)
		}
	}
	for path, code := range map[string]problem.Code{
		strings.Repeat("k", lock.MaxKey+1): problem.InvalidRequest, "%00": problem.InvalidRequest, "a%0Ab": problem.InvalidRequest,
		"%FF": problem.InvalidRequest, "a/b": problem.NotFound, "": problem.NotFound, ".": problem.NotFound, "..": problem.NotFound,
		"a/../b": problem.NotFound, "a//acquire": problem.NotFound,
	} {
		g.want(path, g.send("POST", "/v1/locks/"+path+"/acquire", tokenHost, ""), code)
	}
}

// TestLSAUTH001OwnerIsTheCredential: LS-AUTH-001. Owner and tenant come from the
// credential; a body that claims another owner is refused, and nothing is done.
func TestLSAUTH001OwnerIsTheCredential(t *testing.T) {
	g := lockRig(t, nil)
	for body, want := range map[string]string{
		``: "hosts", `{"owner_id": "hosts"}`: "hosts", `{"owner_id": "hosts/1000"}`: "hosts/1000", `{"owner_suffix": "1000"}`: "hosts/1000",
		`{"owner_suffix": ""}`: "hosts", `{"owner_id": "hosts/a", "owner_suffix": "a"}`: "hosts/a",
	} {
		if got := g.locked("acquire", "k", tokenHost, body); got.OwnerID != want || got.TenantID != "default" {
			t.Errorf("%s: %+v", body, got)
		}
		g.locked("release", "k", tokenHost, body)
	}
	for _, op := range []string{"acquire", "renew", "release"} {
		for body, code := range map[string]problem.Code{
			`{"owner_id": "other-hosts"}`: problem.Forbidden, `{"owner_id": "hosts2"}`: problem.Forbidden, `{"owner_id": "host"}`: problem.Forbidden,
			`{"owner_id": "other-hosts/hosts"}`: problem.Forbidden, `{"owner_id": "/hosts"}`: problem.Forbidden, `{"owner_id": "HOSTS"}`: problem.Forbidden,
			`{"tenant_id": "acme"}`: problem.InvalidRequest, `{"owner_id": "hosts", "owner_suffix": "a"}`: problem.InvalidRequest, `{"owner_id": "hosts/a b"}`: problem.InvalidRequest,
			`{"owner_suffix": "` + strings.Repeat("x", 128) + `"}`: problem.InvalidRequest,
		} {
			g.want(op+body, g.send("POST", "/v1/locks/k/"+op, tokenHost, body), code)
		}
	}
	if got := g.locked("acquire", "k", tokenHost, `{"owner_suffix": "a"}`); got.FencingToken != 7 {
		t.Errorf("a request that was refused has acquired: %+v", got)
	}
	for name, token := range map[string]string{"another owner": tokenOther, "another tenant": tokenAcme} {
		for _, op := range []string{"renew", "release"} {
			g.want(name, g.send("POST", "/v1/locks/k/"+op, token, `{"owner_suffix": "a"}`), problem.LockNotOwned)
		}
	}
	// Another tenant's lock of this name is another lock, and is not shown.
	if got := g.locked("acquire", "k", tokenAcme, ``); got.TenantID != "acme" || got.OwnerID != "hosts" {
		t.Errorf("another tenant: %+v", got)
	}
	if page := g.send("GET", "/v1/locks", tokenOther, "").body; strings.Contains(page, "acme") || !strings.Contains(page, `"owner_id":"hosts/a"`) || strings.Contains(page, "owner_suffix") {
		t.Errorf("the list is %s", page)
	}
	g.want("no scope", g.send("GET", "/v1/locks", tokenAdmin, ""), problem.Forbidden)
}

// A request ID belongs to its credential: another credential can neither get its answer
// nor make it useless.
func TestRequestIDsOfOthers(t *testing.T) {
	for _, id := range []string{"r", strings.Repeat("r", lock.MaxRequestID)} {
		g := lockRig(t, nil)
		body := fmt.Sprintf(`{"request_id": "%s"}`, id)
		g.locked("acquire", "k", tokenHost, body)
		g.locked("release", "k", tokenHost, `{}`)
		if got := g.locked("acquire", "k", tokenOther, body); got.Repeated || got.FencingToken != 2 {
			t.Errorf("another owner's request: %+v", got)
		}
		// One's own users share the credential, and its request IDs.
		g.want("another user", g.send("POST", "/v1/locks/k/acquire", tokenOther, strings.Replace(body, "{", `{"owner_suffix": "b", `, 1)), problem.RequestIDReused)
		held := g.send("POST", "/v1/locks/k/acquire", tokenOther, `{"owner_suffix": "b"}`)
		if p := held.problem; p.OwnerSuffix == nil || *p.OwnerSuffix != "" || string(p.RequestDigest) != keyname.KeptRequestID(keyname.MarkedRequestID(p.RequestMark, id)) {
			t.Errorf("a credential is not told what it holds: %s", held.body)
		}
		next := func(token string) string { return g.send("POST", "/v1/sequences/s/next", token, body).body }
		if a, b, again := next(tokenHost), next(tokenOther), next(tokenHost); a == b || a != again {
			t.Errorf("values %s, another owner's %s, again %s", a, b, again)
		}
	}
	g := lockRig(t, nil)
	for _, id := range []string{strings.Repeat("r", lock.MaxRequestID+1), "a b", strings.Repeat("a ", 60), "ü"} {
		g.want(id, g.send("POST", "/v1/locks/k/acquire", tokenHost, fmt.Sprintf(`{"request_id": "%s"}`, id)), problem.InvalidRequest)
		g.want(id, g.send("POST", "/v1/sequences/k/next", tokenHost, fmt.Sprintf(`{"request_id": "%s"}`, id)), problem.InvalidRequest)
	}
}

// A request ID that is the lease ID too reaches the store as it is. Its owner is told of it,
// another is not.
func TestLeaseIDAsRequestID(t *testing.T) {
	g := lockRig(t, nil)
	const id = "0123456789abcdef0123456789abcdef"
	body := fmt.Sprintf(`{"request_id": "%s", "lease_id": "%[1]s"}`, id)
	g.locked("acquire", "new", tokenHost, body)
	if got := g.locked("acquire", "new", tokenHost, body); !got.Repeated {
		t.Errorf("made again, it answers %+v", got)
	}
	for token, want := range map[string]string{tokenHost: keyname.KeptRequestID(id), tokenOther: ""} {
		held := g.send("POST", "/v1/locks/new/acquire", token, `{"request_id": "r"}`)
		if p := held.problem; string(p.RequestDigest) != want {
			t.Errorf("told is %s", held.body)
		}
	}
}

func TestMalformedLockRequests(t *testing.T) {
	g := lockRig(t, nil)
	for _, body := range []string{
		`{"ttl_seconds": 0}`, `{"ttl_seconds": 86401}`, `{"ttl_seconds": -1}`, `{"ttl_seconds": 1.5}`, `{"ttl_seconds": "1"}`, `{"ttl_ms": 99}`,
		`{"ttl_ms": 86400001}`, `{"ttl_ms": 1000, "ttl_seconds": 1}`, `{"wait_ms": -1}`, `{"lease_id": "x"}`, `{"ttl_seconds": 9223372036854775807}`, `[]`, `x`,
	} {
		g.want(body, g.send("POST", "/v1/locks/k/acquire", tokenHost, body), problem.InvalidRequest)
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "limit=-9223372036854775808", "after=%00", "after=%zz"} {
		g.want(query, g.send("GET", "/v1/locks?"+query, tokenHost, ""), problem.InvalidRequest)
	}
	for _, path := range []string{"/v1", "/v1/locks/k/hold", "/v1/locks/k/acquire/x", "/v1/sequences", "/v1/sequences/k"} {
		g.want(path, g.send("POST", path, tokenHost, ""), problem.NotFound)
	}
	g.want("two keys", g.send("POST", "/v1/locks/%2F/%2F", tokenHost, ""), problem.NotFound)
	g.want("method", g.send("GET", "/v1/locks/k/acquire", tokenHost, ""), problem.MethodNotAllowed)
	if page := g.send("GET", "/v1/locks", tokenHost, "").body; strings.TrimSpace(page) != `{"locks":[]}` {
		t.Errorf("a malformed request acquired: %s", page)
	}
	without := newRig(t, nil)
	for path, method := range map[string]string{
		"/v1/locks": "GET", "/v1/locks/k": "GET", "/v1/locks/k/acquire": "POST", "/v1/locks/k/renew": "POST", "/v1/locks/k/release": "POST", "/v1/sequences/k/next": "POST",
	} {
		without.want(path, without.send(method, path, "", ""), problem.NotSupported)
	}
}

// A certificate's subject is the owner: as it is, where that can be a name.
func TestLockOwnerOfACertificate(t *testing.T) {
	names := map[string]bool{}
	for _, test := range []struct {
		subject pkix.Name
		want    string // "" = a digest
	}{
		{pkix.Name{CommonName: "host-a"}, "certificate:CN=host-a"},
		{pkix.Name{CommonName: "host-a/1000"}, ""},
		{pkix.Name{CommonName: "host-a", Organization: []string{"Acme Inc"}}, ""},
		{pkix.Name{CommonName: "host-b", Organization: []string{"Acme Inc"}}, ""},
		{pkix.Name{CommonName: strings.Repeat("x", 64)}, ""},
	} {
		g := newRig(t, func(g *rig) {
			g.keep(lock.OnRecords(memory.New(g.clock.Load)))
			g.options.ClientCertificates = true
		})
		r := httptest.NewRequest("POST", "/v1/locks/k/acquire", strings.NewReader(`{"owner_suffix": "1000"}`))
		r.Header.Set("Content-Type", "application/json")
		r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: test.subject}}}}
		w := httptest.NewRecorder()
		g.server.ServeHTTP(w, r)
		var got lockhttp.Answer
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
			t.Fatalf("%v: status %d, %s", test.subject, w.Code, w.Body)
		}
		own, suffix, _ := strings.Cut(got.OwnerID, "/")
		if suffix != "1000" || names[own] || test.want != "" && own != test.want || test.want == "" && !strings.HasPrefix(own, "certificate:sha256=") {
			t.Errorf("%v became %q", test.subject, got.OwnerID)
		}
		names[own] = true
	}
}

// waiting is a request for a lock that another owner holds, on a connection.
type waiting struct {
	cancel context.CancelFunc
	reply  chan *http.Response // nil when there was none
}

// wait sends one and returns when it waits.
func (g *rig) wait(client *http.Client, address, body string) *waiting {
	g.t.Helper()
	before := g.server.waiters.Load()
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiting{cancel, make(chan *http.Response, 1)}
	go func() {
		defer close(w.reply)
		r, err := http.NewRequestWithContext(ctx, "POST", "http://"+address+"/v1/locks/k/acquire", strings.NewReader(body))
		if err != nil {
			g.t.Error(err)
			return
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+tokenOther)
		res, err := client.Do(r)
		if err != nil {
			return
		}
		b, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		res.Body = io.NopCloser(bytes.NewReader(b))
		w.reply <- res
	}()
	await.Eventually(g.t, "the request waits", func() bool { return g.server.waiters.Load() > before })
	return w
}

func (g *rig) client() *http.Client {
	c := &http.Client{Transport: &http.Transport{}}
	g.t.Cleanup(c.CloseIdleConnections)
	return c
}

// TestWaitersTakeNoPlaces: however many wait for locks, leases are granted, and
// the lock changes hands.
func TestWaitersTakeNoPlaces(t *testing.T) {
	g := lockRig(t, func(g *rig) { g.options.MaxInFlight = 1 })
	address := g.listening(Listening{})
	held := g.locked("acquire", "k", tokenHost, `{"ttl_seconds": 3600}`)
	first := g.wait(g.client(), address, `{"wait_ms": 30000, "request_id": "a"}`)
	await.Eventually(t, "the first is in line", func() bool { return g.server.o.Locks.Host.HasQueue("default", "k") })
	second := g.wait(g.client(), address, `{"wait_ms": 30000, "request_id": "b"}`)
	g.acquire(tokenAdmin, "")
	if n := len(g.server.slots); n != 0 {
		t.Errorf("%d places are taken", n)
	}
	if m := g.send("GET", "/metrics", tokenAdmin, "").body; !strings.Contains(m, "kazahana_server_lock_waiters 2") {
		t.Error("those who wait are not counted")
	}
	for i, w := range []*waiting{first, second} {
		g.locked("release", "k", map[int]string{0: tokenHost, 1: tokenOther}[i], `{}`)
		res := <-w.reply
		var got lockhttp.Answer
		if res == nil || json.NewDecoder(res.Body).Decode(&got) != nil || res.StatusCode != 200 || got.FencingToken != held.FencingToken+int64(i)+1 {
			t.Fatalf("waiter %d: %v, %+v", i, res, got)
		}
	}
}

// TestWaitersKeepNoBodies: net/http has the request of a waiter, and its body is gone from it.
func TestWaitersKeepNoBodies(t *testing.T) {
	g := lockRig(t, nil)
	next, seen := g.server.handler, make(chan *http.Request, 2)
	g.server.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		next.ServeHTTP(w, r)
	})
	g.locked("acquire", "k", tokenHost, `{"ttl_seconds": 3600}`)
	<-seen
	w := g.wait(g.client(), g.listening(Listening{}), `{"wait_ms": 30000}`+strings.Repeat(" ", 50_000))
	if body := (<-seen).Body.(*wholeBody); body.bytes != nil {
		t.Errorf("a request that waits keeps %d bytes", len(body.bytes))
	}
	w.cancel()
	<-w.reply
}

// TestWaitersHaveALimit: of the connections half may wait, and of these a client has three
// quarters. The answer says so; others are not affected, nor are requests that do not wait.
func TestWaitersHaveALimit(t *testing.T) {
	g := lockRig(t, nil)
	paused := make(chan time.Duration, 10)
	over := make(chan time.Time)
	close(over)
	g.server.after = func(d time.Duration) <-chan time.Time { paused <- d; return over }
	address := g.listening(Listening{MaxConnections: 8})
	g.locked("acquire", "k", tokenHost, `{"ttl_seconds": 3600}`)
	for range 2 {
		g.wait(g.client(), address, `{"wait_ms": 30000}`)
	}
	last := g.wait(g.client(), address, `{"wait_ms": 30000}`)
	refused := func(token, words string) {
		t.Helper()
		r := g.sendFrom("127.0.0.1:9", "POST", "/v1/locks/k/acquire", token, `{"wait_ms": 1}`)
		g.want("one more", r, problem.Overloaded)
		select {
		case d := <-paused: // else a client that asks again at once keeps the server busy
			if d != refusalPause {
				t.Errorf("the refusal is answered after %v", d)
			}
		default:
			t.Error("the refusal is answered at once")
		}
		if !strings.Contains(r.problem.Detail, words) {
			t.Error(r.problem.Detail)
		}
	}
	refused(tokenOther, "3 requests of this client wait for locks here, three quarters of all that may")
	if seen := g.options.Refusals.Recent(); len(seen) != 1 || seen[0].Limit != "max_connections" {
		t.Errorf("seen %v", seen)
	}
	g.want("one that does not wait", g.send("POST", "/v1/locks/k/acquire", tokenOther, ``), problem.LockHeld)
	g.locked("renew", "k", tokenHost, `{"ttl_seconds": 3600}`)
	leave, err := g.server.joinWaiters("another client")
	must.Succeed(t, err)
	refused(tokenAcme, "4 requests wait for locks here, which is the limit")
	leave()
	last.cancel()
	await.Eventually(t, "the place is given back", func() bool { return g.server.waiters.Load() == 2 })
	g.want("when one has gone", g.sendFrom("127.0.0.1:9", "POST", "/v1/locks/k/acquire", tokenOther, `{"wait_ms": 1}`), problem.LockHeld)
}

// TestBodiesAreStrict: a misspelt, unknown or doubled field of a request for a lock or a
// sequence is refused, by its name, and nothing is done.
func TestBodiesAreStrict(t *testing.T) {
	g := lockRig(t, nil)
	g.locked("acquire", "k", tokenHost, `{"ttl_ms": 60000}`)
	for path, bodies := range map[string]map[string]string{
		"locks/free/acquire": {
			`{"wait_m": 5}`: `did you mean "wait_ms"?`, `{"TTL_MS": 500}`: `did you mean "ttl_ms"?`, `{"requestId": "r"}`: `did you mean "request_id"?`,
			`{"ttlSeconds": 600}`: `did you mean "ttl_seconds"?`, `{"tenant_id": "other"}`: `there is no field "tenant_id"`,
			`{"ttl_ms": 500, "ttl_ms": 60000}`: `the field "ttl_ms" is there twice`, `{"colour": {"ttl_ms": [1]}}`: `there are lock_key, area, ttl_seconds, ttl_ms, wait_ms`,
		},
		"locks/k/renew":         {`{"ttl_m": 5}`: `did you mean "ttl_ms"?`},
		"locks/k/release":       {`{"lease": "x"}`: `did you mean "lease_id"?`, `{"leaseId": "x", "requestId": "r"}`: `did you mean "lease_id"?`},
		"sequences/new/next":    {`{"cout": 2}`: `did you mean "count"?`, `{"max_valu": 2}`: `did you mean "max_value"?`},
		"sequences/new/declare": {`{"lasts": 2}`: `did you mean "last"?`, `{"last": 1, "step": 1, "step": 2}`: `the field "step" is there twice`},
	} {
		token := map[bool]string{true: tokenAdmin, false: tokenHost}[strings.HasSuffix(path, "declare")]
		for body, words := range bodies {
			r := g.send("POST", "/v1/"+path, token, body)
			g.want(path+" "+body, r, problem.InvalidRequest) // seed 002-4-4
			if !strings.Contains(r.problem.Detail, words) {
				t.Errorf("%s %s: %s", path, body, r.problem.Detail)
			}
		}
	}
	g.want("what was refused", g.send("GET", "/v1/locks/free", tokenHost, ""), problem.LockNotFound)
	g.locked("release", "k", tokenHost, `{}`)
}

// TestUpkeepIsNotRefused: however many requests are under way and wait, a lock can be
// renewed, looked at and given back. Where too many do just that, the next ones wait.
func TestUpkeepIsNotRefused(t *testing.T) {
	g := lockRig(t, func(g *rig) { g.options.MaxInFlight = 3 })
	g.locked("acquire", "k", tokenHost, `{"ttl_seconds": 3600}`)
	for range 3 {
		leave, err := g.server.enter(t.Context())
		must.Succeed(t, err)
		defer leave()
	}
	g.want("another acquire", g.send("POST", "/v1/locks/other/acquire", tokenHost, ``), problem.Overloaded)
	if seen := g.options.Refusals.Recent(); len(seen) != 1 || seen[0].Limit != "max_in_flight" {
		t.Errorf("seen %+v", seen)
	}
	g.locked("renew", "k", tokenHost, `{"ttl_seconds": 3600}`)
	for range cap(g.server.upkeep) {
		g.server.upkeep <- struct{}{}
	}
	seen := make(chan reply)
	go func() { seen <- g.send("GET", "/v1/locks/k", tokenHost, "") }()
	<-g.server.upkeep
	if r := <-seen; r.status != http.StatusOK {
		t.Errorf("%+v", r)
	}
	g.locked("release", "k", tokenHost, `{}`)
	for range cap(g.server.upkeep) - 1 {
		<-g.server.upkeep
	}
	if n := len(g.server.upkeep); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// TestSlowBodiesTakeNoPlace: a request, of any kind, has a place when its body is there. So one
// client that sends slowly keeps no other from being served.
func TestSlowBodiesTakeNoPlace(t *testing.T) {
	g := newRig(t, func(g *rig) {
		g.options.MaxInFlight = 1
		g.keep(lock.OnRecords(memory.New(g.clock.Load)))
	})
	var slow sync.WaitGroup
	defer slow.Wait()
	routes := 0
	for _, pattern := range g.server.patterns {
		method, path, _ := strings.Cut(pattern, " ")
		if method != http.MethodPost && method != http.MethodDelete {
			continue
		}
		routes++
		body, end := io.Pipe()
		r := httptest.NewRequest(method, strings.NewReplacer("{", "", "}", "").Replace(path), body)
		slow.Go(func() {
			g.server.ServeHTTP(httptest.NewRecorder(), r)
			_ = body.Close()
		})
		if _, err := io.WriteString(end, "{"); err != nil { // returns when it is read
			t.Fatalf("%s: %v", pattern, err)
		}
		defer end.Close()
		if slots, upkeep := len(g.server.slots), len(g.server.upkeep); slots+upkeep > 0 {
			t.Errorf("%s: %d places are taken, and %d for the upkeep of locks", pattern, slots, upkeep)
		}
	}
	if routes < 8 {
		t.Errorf("only %d routes take bodies", routes)
	}
	g.locked("acquire", "mine", "", `{"ttl_seconds": 3600}`)
	g.locked("renew", "mine", "", `{"ttl_seconds": 3600}`)
}

// TestWaitOutlivesTheTimeForABody: the time that a peer has for its request does
// not end a wait, and neither does a slow line.
func TestWaitOutlivesTheTimeForABody(t *testing.T) {
	g := lockRig(t, nil)
	g.server.phases = phases{header: 500 * time.Millisecond, read: 500 * time.Millisecond, write: long, idle: long}
	address := g.listening(Listening{})
	g.locked("acquire", "k", tokenHost, `{"ttl_seconds": 3600}`)
	w := g.wait(g.client(), address, `{"wait_ms": 700}`)
	if res := <-w.reply; res == nil || res.StatusCode != 409 {
		t.Errorf("%v", res)
	}
}

// TestWaitersAreToldOfTheStop at once, and when to come back.
func TestWaitersAreToldOfTheStop(t *testing.T) {
	g := lockRig(t, nil)
	address, stop, _ := g.serving(Listening{})
	g.locked("acquire", "k", tokenHost, `{"ttl_seconds": 3600}`)
	var all []*waiting
	for range 3 {
		all = append(all, g.wait(g.client(), address, `{"wait_ms": 30000}`))
	}
	stop()
	for _, w := range all {
		res := <-w.reply
		var p problem.Problem
		if res == nil || json.NewDecoder(res.Body).Decode(&p) != nil || res.StatusCode != 503 || p.Code != problem.Overloaded || res.Header.Get("Retry-After") == "" {
			t.Errorf("%v, %+v", res, p)
		}
	}
}

// TestWaitEndsWithTheConnection: a client that has gone is given nothing.
func TestWaitEndsWithTheConnection(t *testing.T) {
	g := lockRig(t, nil)
	address := g.listening(Listening{})
	g.locked("acquire", "k", tokenHost, `{"ttl_seconds": 3600}`)
	gone := g.wait(g.client(), address, `{"wait_ms": 30000}`)
	gone.cancel()
	<-gone.reply
	await.Eventually(g.t, "nobody waits", func() bool { return g.server.waiters.Load() == 0 })
	g.locked("release", "k", tokenHost, `{}`)
	await.Eventually(g.t, "the line is gone", func() bool { return !g.server.o.Locks.Host.HasQueue("default", "k") })
	if got := g.locked("acquire", "k", tokenHost, ``); got.FencingToken != 2 {
		t.Errorf("somebody had it in between: %+v", got)
	}
}

// TestWaitReleasesWhatNobodyCanAskFor: a lock granted to a client that has gone is released,
// unless the request ID lets it ask again.
func TestWaitReleasesWhatNobodyCanAskFor(t *testing.T) {
	for body, want := range map[string]lock.Status{
		`{"wait_ms": 30000, "ttl_seconds": 3600}`: lock.Released, `{"wait_ms": 30000, "ttl_seconds": 3600, "request_id": "r"}`: lock.Active,
	} {
		slow := &slowLocks{entered: make(chan struct{}, 100), letGo: make(chan struct{})}
		g := lockRig(t, func(g *rig) {
			slow.Store = lock.OnRecords(memory.New(g.clock.Load))
			g.keep(slow)
		})
		address := g.listening(Listening{})
		w := g.wait(g.client(), address, body)
		<-slow.entered
		w.cancel()
		<-w.reply
		await.Eventually(g.t, "nobody waits", func() bool { return g.server.waiters.Load() == 0 })
		close(slow.letGo)
		await.Eventually(g.t, "the line is gone", func() bool { return !g.server.o.Locks.Host.HasQueue("default", "k") })
		if l, err := slow.Get(t.Context(), "default", "k"); err != nil || l.State != want {
			t.Errorf("%s: the lock is %+v, %v; want it %s", body, l, err, want)
		}
	}
}

// TestHastyDoesNotOvertake: a client that does not wait is not served before waiting ones.
func TestHastyDoesNotOvertake(t *testing.T) {
	slow := &slowLocks{entered: make(chan struct{}, 100), letGo: make(chan struct{})}
	g := lockRig(t, func(g *rig) {
		slow.Store = lock.OnRecords(memory.New(g.clock.Load))
		g.keep(slow)
	})
	address := g.listening(Listening{})
	w := g.wait(g.client(), address, `{"wait_ms": 30000, "owner_suffix": "first"}`)
	<-slow.entered // the first in line is on its way to the store
	hasty := make(chan reply, 1)
	go func() { hasty <- g.send("POST", "/v1/locks/k/acquire", tokenHost, `{}`) }()
	select {
	case <-slow.entered:
		t.Error("the store was asked for one who does not wait")
	case <-time.After(20 * time.Millisecond): // it would be there at once
	}
	close(slow.letGo)
	if res := <-w.reply; res == nil || res.StatusCode != 200 {
		t.Errorf("the first in line: %v", res)
	}
	g.want("the hasty one", <-hasty, problem.LockHeld)
}

// slowLocks are locks with acquires that wait to be let go.
type slowLocks struct {
	lock.Store
	entered chan struct{}
	letGo   chan struct{}
}

func (s *slowLocks) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	s.entered <- struct{}{}
	select {
	case <-s.letGo:
	case <-ctx.Done():
		return lock.Lease{}, ctx.Err()
	}
	return s.Store.Do(ctx, r)
}

// One tenant fills keys until it is refused: with when to come back, and with the limit's name.
// Its keys can be renewed and released, and other tenants' new keys are made.
func TestFullForATenant(t *testing.T) {
	g := newRig(t, func(g *rig) {
		g.tokens(keepingTokens)
		records := bounds.New(memory.New(g.clock.Load), bounds.Limits{Keys: 13}, func() time.Duration { return time.Duration(g.clock.Load()) * time.Millisecond })
		g.keep(lock.OnRecords(records))
		g.options.Sequences.Store = sequence.OnRecords(records)
	})
	first := g.locked("acquire", "k0", tokenHost, `{"ttl_seconds": 3600}`)
	for i := range 8 {
		g.locked("acquire", fmt.Sprint("other", i), tokenOther, `{"ttl_seconds": 3600}`)
	}
	g.locked("acquire", "k1", tokenHost, `{"ttl_seconds": 3600, "wait_ms": 1000}`)
	for _, path := range []string{"locks/k2/acquire", "sequences/k2/next"} {
		r := g.send("POST", "/v1/"+path, tokenHost, ``)
		g.want(path, r, problem.StoreFull)
		if !strings.Contains(r.problem.Detail, `max_keys: tenant "default" may have 10 keys, three quarters`) || r.header.Get("Retry-After") != "60" {
			t.Errorf("%s: %s, Retry-After %q", path, r.problem.Detail, r.header.Get("Retry-After"))
		}
	}
	g.want("one that waits", g.send("POST", "/v1/locks/k2/acquire", tokenHost, `{"wait_ms": 1000}`), problem.StoreFull)
	g.locked("renew", "k0", tokenHost, `{"ttl_seconds": 3600}`)
	g.locked("release", "k0", tokenHost, fmt.Sprintf(`{"lease_id": %q}`, first.LeaseID))
	g.locked("acquire", "k2", tokenAcme, ``)
	g.clock.Add((3 * time.Hour).Milliseconds())
	g.locked("acquire", "k2", tokenHost, ``)
}
