package leaseserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

func TestRelease(t *testing.T) {
	g := newRig(t, func(g *rig) { g.services.Default.IDs = provider.IDRange{Low: 5, End: 6} })
	sign := func(l lease.Lease) string { return lease.Sign(l.Secret, l.ID, testNow) }
	body := func(l lease.Lease) string {
		return fmt.Sprintf(`{"signature":"%s","timestamp":%d}`, sign(l), testNow)
	}
	query := func(l lease.Lease) string {
		return "?" + url.Values{"signature": {sign(l)}, "timestamp": {strconv.FormatInt(testNow, 10)}, "bitSeq": {"8"}}.Encode()
	}
	now := int64(testNow)
	for name, release := range map[string]func(lease.Lease) reply{
		"in the body":         func(l lease.Lease) reply { return g.send("DELETE", "/lease/5", "", body(l)) },
		"in the query":        func(l lease.Lease) reply { return g.send("DELETE", "/lease/5"+query(l), "", "") },
		"in the query and {}": func(l lease.Lease) reply { return g.send("DELETE", "/lease/5"+query(l), "", "{}") },
		"twice is once": func(l lease.Lease) reply { // seed 000-7.2-3
			g.send("DELETE", "/lease/5", "", body(l))
			return g.send("DELETE", "/lease/5", "", body(l))
		},
		"with a wrong service": func(l lease.Lease) reply { return g.send("DELETE", "/lease/5?serviceId=unknown", "", body(l)) },
	} {
		l := g.acquire("", "")
		if r := release(l); r.status != 204 || r.body != "" { // seed 000-4.1-2
			t.Errorf("%s: status %d, %q", name, r.status, r.body)
		}
		now += 2 // past the timestamp, and within the window
		g.clock.Store(now)
	}
	l := g.acquire("", "")
	good := body(l)
	at := func(l lease.Lease, ms int64, more string) string {
		return fmt.Sprintf(`{"signature":"%s","timestamp":%d%s}`, lease.Sign(l.Secret, 5, ms), ms, more)
	}
	for name, test := range map[string]struct {
		target, body string
		code         problem.Code
	}{
		"forged":        {"/lease/5", `{"signature":"00","timestamp":` + strconv.FormatInt(testNow, 10) + `}`, problem.BadSignature},
		"no signature":  {"/lease/5", `{"timestamp":` + strconv.FormatInt(testNow, 10) + `}`, problem.BadSignature},
		"no timestamp":  {"/lease/5", `{"signature":"00"}`, problem.InvalidRequest},
		"bad timestamp": {"/lease/5?timestamp=soon", ``, problem.InvalidRequest},
		// Seed 000-4.5-3.
		"too old":         {"/lease/5", fmt.Sprintf(`{"signature":"%s","timestamp":%d}`, lease.Sign(l.Secret, 5, testNow-40_000), testNow-40_000), problem.TimestampSkew},
		"too far ahead":   {"/lease/5", at(l, now+31_000, ""), problem.TimestampSkew},
		"its end, unsaid": {"/lease/5", at(l, l.Expired-1, ""), problem.TimestampSkew},
		"not its end":     {"/lease/5", at(l, l.Expired-2, `,"atEnd":true`), problem.TimestampSkew},
		"end, unsaid":     {"/lease/5?atEnd=false", at(l, l.Expired-1, ""), problem.TimestampSkew},
		"another machine": {"/lease/6", good, problem.LeaseNotFound},
		"another layout":  {"/lease/5?bitSeq=9", good, problem.LeaseNotFound},
		"negative layout": {"/lease/5?bitSeq=-1", good, problem.LeaseNotFound},
		"no number":       {"/lease/five", good, problem.InvalidRequest},
	} {
		g.want(name, g.send("DELETE", test.target, "", test.body), test.code)
	}
	full := g.send("POST", "/lease", "", "")
	g.want("full", full, problem.NoMachineID)
	if full.header.Get("Retry-After") != "60" || full.problem.Pool != "default" || full.problem.Slots != 1 || full.problem.NextEndMS != l.ReservedUntil {
		t.Errorf("full: Retry-After %q, %+v", full.header.Get("Retry-After"), full.problem)
	}
	// As of the lease's end, said in the body or in the query.
	for _, test := range []struct{ target, more string }{{"/lease/5", `,"atEnd":true`}, {"/lease/5?atEnd=true", ""}} {
		if r := g.send("DELETE", test.target, "", at(l, l.Expired-1, test.more)); r.status != 204 {
			t.Errorf("%+v: status %d, %q", test, r.status, r.body)
		}
		if full := g.send("POST", "/lease", "", ""); full.problem.NextEndMS != l.Expired {
			t.Errorf("released as of %d, it is free at %d", l.Expired, full.problem.NextEndMS)
		}
		g.clock.Store(l.Expired)
		l = g.acquire("", "")
	}
}

func TestMalformedRequests(t *testing.T) {
	g := newRig(t, nil)
	for name, test := range map[string]struct {
		method, target, body string
		code                 problem.Code
	}{
		"no JSON":           {"POST", "/lease", "throughput=1", problem.InvalidRequest},
		"half of it":        {"POST", "/lease", `{"serviceId":`, problem.InvalidRequest},
		"more than one":     {"POST", "/lease", `{} {}`, problem.InvalidRequest},
		"a list":            {"POST", "/lease", `[]`, problem.InvalidRequest},
		"null":              {"POST", "/lease", `null`, problem.InvalidRequest},
		"a wrong type":      {"POST", "/lease", `{"serviceId":7}`, problem.InvalidRequest},
		"a fraction":        {"POST", "/lease", `{"throughputPerMs":0.5}`, problem.InvalidRequest},
		"beyond an integer": {"POST", "/lease", `{"throughputPerMs":1e30}`, problem.InvalidRequest},
		"much meta":         {"POST", "/lease", `{"meta":{"a":"` + strings.Repeat("x", provider.MaxMetaBytes) + `"}}`, problem.InvalidRequest},
		"a long request ID": {"POST", "/lease", `{"requestId":"` + strings.Repeat("x", provider.MaxNameBytes+1) + `"}`, problem.InvalidRequest},
		"a huge body":       {"POST", "/lease", `{"x":"` + strings.Repeat("x", leaseapi.MaxRequestBytes) + `"}`, problem.TooLarge},
		"no throughput":     {"POST", "/lease", `{"throughputPerMs":0}`, problem.InvalidRequest},
		"less than none":    {"POST", "/lease", `{"throughputPerMs":-1}`, problem.InvalidRequest},
		"more than any":     {"POST", "/lease", `{"throughputPerMs":9007199254740992}`, problem.InvalidRequest},
		"a number as text":  {"POST", "/lease", `{"throughputPerMs":"5"}`, problem.InvalidRequest},
		"an exponent":       {"POST", "/lease", `{"throughputPerMs":1e3}`, problem.InvalidRequest},
		"verify nothing":    {"POST", "/leases/verify", `{"leases":[{}]}`, problem.InvalidRequest},
		"verify unsigned":   {"POST", "/leases/verify", `{"leases":[{"id":1,"bitSeq":8,"created":1}]}`, problem.InvalidRequest},
		"verify a secret":   {"POST", "/leases/verify", `{"leases":[{"id":1,"bitSeq":8,"created":1,"secret":"s"}]}`, problem.InvalidRequest},
		"extend nothing":    {"POST", "/leases/extend", ``, problem.InvalidRequest},
		"extend to no end":  {"POST", "/leases/extend", `{"id":2,"bitSeq":8,"created":1,"signature":"00"}`, problem.InvalidRequest},
		"a signed ID":       {"DELETE", "/lease/+5?signature=00&timestamp=1", ``, problem.InvalidRequest},
		"a padded ID":       {"DELETE", "/lease/05?signature=00&timestamp=1", ``, problem.InvalidRequest},
		"at no time":        {"GET", "/leases/at?low=1", "", problem.InvalidRequest},
		"a broken query":    {"GET", "/leases?serviceId=%zz", "", problem.InvalidRequest},
		"nowhere":           {"GET", "/lock", "", problem.NotFound},
		"GET":               {"GET", "/lease", "", problem.MethodNotAllowed},
		"PUT":               {"PUT", "/leases", "", problem.MethodNotAllowed},
	} {
		g.want(name, g.send(test.method, test.target, "", test.body), test.code)
	}
	if records := g.send("GET", "/leases", "", ""); !strings.Contains(records.body, `"records":[]`) {
		t.Errorf("a malformed request took a lease: %s", records.body)
	}
	many := slices.Repeat([]lease.Lease{g.acquire("", "")}, leaseapi.MaxVerify+1)
	g.want("verify many", g.send("POST", "/leases/verify", "", verification(t, many...)), problem.InvalidRequest)
}

// A page in a browser can send some requests without asking first; none of those
// takes a machine ID.
func TestBrowsersAreRefused(t *testing.T) {
	g := newRig(t, nil)
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", ";;"} {
		g.want(media, g.send("POST", "/lease", "", `{}`, "Content-Type", media), problem.UnsupportedMedia)
	}
	g.want("another site", g.send("POST", "/lease", "", "", "Sec-Fetch-Site", "cross-site"), problem.Forbidden)
	credentials := newRig(t, func(g *rig) { g.tokens(testTokens) }) // with them the host's name does not matter
	credentials.want("a read by another site", credentials.send("GET", "/leases", tokenHost, "", "Sec-Fetch-Site", "cross-site"), problem.Forbidden)
	link := httptest.NewRequest("GET", "http://localhost/leases", nil)
	link.Header.Set("Sec-Fetch-Site", "cross-site")
	link.Header.Set("Sec-Fetch-Mode", "navigate")
	w := httptest.NewRecorder()
	if g.server.ServeHTTP(w, link); w.Code != 200 {
		t.Errorf("a link that a user follows: %d", w.Code)
	}
	g.want("another origin", g.send("POST", "/lease", "", "", "Origin", "https://evil.example"), problem.Forbidden)
	for host, refused := range map[string]bool{
		"evil.example:7464": true, "evil.example": true, "localhost:7464": false, "127.0.0.1:7464": false, "[::1]:7464": false,
	} {
		r := httptest.NewRequest("POST", "/lease", nil)
		r.Host = host
		r.Header.Set("Origin", "http://"+host)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		w := httptest.NewRecorder()
		if g.server.ServeHTTP(w, r); (w.Code == 403) != refused {
			t.Errorf("a page of %s: %d", host, w.Code)
		}
	}
	if r := httptest.NewRequest("POST", "http://lease-server.example/lease", nil); ofRenamedPage(r) {
		t.Error("a client that is no browser is refused")
	}
	if r := g.send("POST", "/lease", "", `{}`, "Content-Type", "application/json; charset=utf-8"); r.status != 200 {
		t.Errorf("%+v", r)
	}
}

func TestProviderFailure(t *testing.T) {
	f := &stub{err: errors.New("dial tcp redis.internal:6379: connection refused")}
	g := newRig(t, func(g *rig) { f.Provider, g.options.Provider = least{p: g.memory()}, f })
	if r := g.send("GET", "/readyz", "", ""); r.status != 200 {
		t.Errorf("ready before: %+v", r)
	}
	r := g.send("POST", "/lease", "", "")
	g.want("unavailable", r, problem.Unavailable)
	if strings.Contains(r.body, "redis") || r.header.Get("Retry-After") == "" {
		t.Errorf("%+v", r)
	}
	g.want("not ready", g.send("GET", "/readyz", "", ""), problem.Unavailable)
	if r := g.send("GET", "/healthz", "", ""); r.status != 200 {
		t.Errorf("healthz: %+v", r)
	}
	g.clock.Add(unreadyAfterFailure.Milliseconds())
	if r := g.send("GET", "/readyz", "", ""); r.status != 200 {
		t.Errorf("ready after a while: %+v", r)
	}
	f.err = &provider.FencedError{UntilMS: g.clock.Load() + 30_000, Reason: "the store was restarted"}
	r = g.send("POST", "/lease", "", "")
	g.want("fenced", r, problem.Fenced)
	if r.header.Get("Retry-After") != "30" || r.problem.UntilMS != g.clock.Load()+30_000 || r.problem.Reason != "the store was restarted" {
		t.Errorf("%+v", r)
	}
	f.err = nil
	for _, target := range []string{"/leases", "/leases/at?low=1&at=1", "/stats"} {
		g.want(target, g.send("GET", target, "", ""), problem.NotSupported)
	}
	l := provider.DefaultTerms().Grant(7, testNow, "s")
	g.want("extend", g.send("POST", "/leases/extend", "", extension(t, l, l.Secret)), problem.NotSupported)
	g.want("verify", g.send("POST", "/leases/verify", "", verification(t, l)), problem.NotSupported)
}

// verification is the body of POST /leases/verify, as their holder sends it.
func verification(t testing.TB, leases ...lease.Lease) string {
	var body leaseapi.VerifyRequest
	for _, l := range leases {
		body.Leases = append(body.Leases, leaseapi.Claim{
			ID: &l.ID, BitSeq: &l.BitSeq, Created: &l.Created, Signature: lease.SignVerify(l.Secret, l.ID, l.Created),
		})
	}
	return mustJSON(t, body)
}

// extension is the body of POST /leases/extend.
func extension(t testing.TB, l lease.Lease, secret string) string {
	return mustJSON(t, leaseapi.ExtendRequest{
		Claim:   leaseapi.Claim{ID: &l.ID, BitSeq: &l.BitSeq, Created: &l.Created, Signature: lease.SignExtend(secret, l.ID, l.Created, l.Expired)},
		Expired: &l.Expired,
	})
}

// A body is refused by its declared length, before a byte of it is read.
func TestBodyIsNotReadWhereItIsTooLong(t *testing.T) {
	g := newRig(t, nil)
	r := httptest.NewRequest("POST", "/lease", unread{t})
	r.ContentLength = leaseapi.MaxRequestBytes + 1
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	if g.server.ServeHTTP(w, r); w.Code != 413 || !strings.Contains(w.Body.String(), fmt.Sprint(leaseapi.MaxRequestBytes)) {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

type unread struct{ *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.Error("the body was read")
	return 0, io.EOF
}

// An extension shows no secret, and is the same when it is repeated.
func TestExtendAnswer(t *testing.T) {
	g := newRig(t, nil)
	l := g.acquire("", "")
	g.clock.Add(1000)
	first := g.send("POST", "/leases/extend", "", extension(t, l, l.Secret))
	if first.status != 200 || !strings.Contains(first.body, fmt.Sprintf(`"expired":%d`, l.Expired+1000)) || strings.Contains(first.body, "secret") {
		t.Errorf("extended: %+v", first)
	}
	g.clock.Add(1000)
	if again := g.send("POST", "/leases/extend", "", extension(t, l, l.Secret)); again.body != first.body {
		t.Errorf("the same request, overheard, has changed something: %q, then %q", first.body, again.body)
	}
}

func TestStatsAndMetrics(t *testing.T) {
	g := newRig(t, func(g *rig) {
		g.services.Default.IDs = provider.IDRange{Low: 0, End: 10}
		g.pool("orders", "orders")
	})
	g.acquire("", `{"throughputPerMs":1024}`)
	g.acquire("", `{"serviceId":"orders"}`)
	g.acquire("", `{"serviceId":"made-up"}`)
	g.clock.Add(10_000)
	g.acquire("", "")
	var stats leaseapi.Stats
	r := g.send("GET", "/stats", "", "")
	if err := json.Unmarshal([]byte(r.body), &stats); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{
		// Seed 001-8.
		"using_ids": 6, "unusing_ids": 4, "quarantined_ids": 0, "using_ttl_min": 590, "using_ttl_mid": 590, "using_ttl_max": 600,
		"client_get_id_success": 3,
	} {
		if got, ok := stats[name]; !ok || got != want {
			t.Errorf("%s is %d, want %d: %s", name, got, want, r.body)
		}
	}
	metrics := g.send("GET", "/metrics", "", "").body
	for _, line := range []string{
		`kazahana_server_leases_active{service="default"} 5`, `kazahana_server_leases_active{service="orders"} 1`,
		`kazahana_server_leases_active{service="other"} 1`,
		`kazahana_server_slots_free{pool="default"} 4`, `kazahana_server_slots_free{pool="orders"} 8191`,
		`kazahana_server_slots{pool="default"} 10`, `kazahana_server_slots{pool="orders"} 8192`,
		`kazahana_server_acquires_total{result="ok",service="other"} 1`, `kazahana_server_acquires_total{result="full",service="orders"} 0`,
		`kazahana_server_requests_total{route="/lease",status="200"} 4`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("no %s", line)
		}
	}
	if strings.Contains(metrics, "made-up") {
		t.Error("a client's choice of a name is a label")
	}
	g.clock.Add(provider.DefaultTerm.Milliseconds())
	if r := g.send("GET", "/stats", "", ""); !strings.Contains(r.body, `"quarantined_ids":6`) {
		t.Errorf("after the term: %s", r.body)
	}
}

// What a lease server behind this one thinks of this server is not about the caller.
func TestUpstreamsRefusal(t *testing.T) {
	unknown := problem.New(problem.Unauthenticated, "the token is not known here")
	for _, test := range []struct {
		err  error
		want problem.Code
	}{
		{fmt.Errorf("https://h: %w", unknown), problem.Unavailable},
		{fmt.Errorf("https://h: %w: %w", &problem.Problem{Status: 404}, errors.ErrUnsupported), problem.NotSupported}, // by a server that knows no such path
	} {
		g := newRig(t, func(g *rig) { g.options.Provider = &stub{Provider: g.memory(), err: test.err} })
		r := g.send("POST", "/leases/verify", "", `{"leases": []}`)
		g.want("a verification", r, test.want)
		if strings.Contains(r.body, "token") || r.header.Get("WWW-Authenticate") != "" {
			t.Errorf("%v %s", r.header, r.body)
		}
	}
}
