package leaseserver

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/record/memory"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	placementhttp "github.com/kazahana/kazahana/internal/placement/storage/http"
	"github.com/kazahana/kazahana/internal/problem"
)

const (
	placementTokens = `
- {token: ` + tokenHost + `, owner: hosts, scopes: [placements]}
- {token: ` + tokenAcme + `, tenant: acme, owner: hosts, scopes: [placements]}
- {token: ` + tokenOther + `, owner: others, scopes: [leases, locks, sequences]}
- {token: ` + tokenAdmin + `, owner: operator, scopes: [admin]}
`
	firstRecord = `{"owner":"a:1","membership":3,"pid":"p","version":1,"token":4,"snapshot":"c25hcA=="}`
)

func placementRig(t *testing.T) *rig {
	t.Helper()
	return newRig(t, func(g *rig) {
		g.tokens(placementTokens)
		g.keep(lock.OnRecords(memory.New(g.clock.Load)))
	})
}

// loaded is the record of the actor, by the path's last two segments.
func (g *rig) loaded(actor, token string) placementhttp.Loaded {
	g.t.Helper()
	r := g.send("GET", "/v1/placements/"+actor, token, "")
	var out placementhttp.Loaded
	if err := json.Unmarshal([]byte(r.body), &out); r.status != 200 || err != nil {
		g.t.Fatalf("%s: status %d, %s", actor, r.status, r.body)
	}
	return out
}

// The names and the values of an answer are those of the contract, and each
// request is counted.
func TestPlacementAnswer(t *testing.T) {
	g := placementRig(t)
	const lobby = "/v1/placements/room/lobby"
	for _, test := range []struct{ method, path, body, want string }{
		{"GET", lobby, "", `{"kind":"room","identity":"lobby","owner":"","membership":0,"pid":"","version":0,"token":0}`},
		{"POST", lobby + "/store", firstRecord, `{"kind":"room","identity":"lobby","version":1,"token":4}`},
		{"POST", lobby + "/store", firstRecord, `{"kind":"room","identity":"lobby","version":1,"token":4}`},
		{"GET", lobby, "", `{"kind":"room","identity":"lobby",` + firstRecord[1:]},
		{"POST", lobby + "/remove", `{"owner":"a:1","membership":3,"version":1,"token":4,"keep":true}`, `{"kind":"room","identity":"lobby","version":1,"token":4}`},
		{"GET", lobby, "", `{"kind":"room","identity":"lobby","owner":"","membership":0,"pid":"","version":1,"token":4,"snapshot":"c25hcA=="}`},
	} {
		if r := g.send(test.method, test.path, tokenHost, test.body); r.status != 200 || strings.TrimSpace(r.body) != test.want {
			t.Errorf("%s %s: status %d, %s\nwant %s", test.method, test.path, r.status, r.body, test.want)
		}
	}
	g.want("it was removed", g.send("POST", lobby+"/store", tokenHost, firstRecord), problem.PlacementStale)
	m := g.send("GET", "/metrics", tokenAdmin, "").body
	for _, metric := range []string{
		`{op="load",result="ok"} 3`, `{op="store",result="ok"} 2`, `{op="store",result="stale"} 1`, `{op="remove",result="ok"} 1`, `{op="remove",result="timeout"} 0`,
	} {
		if !strings.Contains(m, "kazahana_server_placement_requests_total"+metric) {
			t.Errorf("there is no %s", metric)
		}
	}
	if !strings.Contains(m, `kazahana_provider_request_duration_seconds_count{op="placement_store"} 3`) {
		t.Error("the calls of the store are not counted")
	}
}

// Any actor arrives as it was meant, with any bytes in its name.
func TestPlacementKeys(t *testing.T) {
	g := placementRig(t)
	names := []string{"a", ".", "..", "-", "store", "%2F", "a b", "?x=1", "#", "ключ", "🔒", `\`, `"`, "a;b", "+"}
	escape := func(name string) string { return strings.ReplaceAll(url.PathEscape(name), ".", "%2E") }
	stored := map[string]placement.Key{}
	for _, kind := range append(names, strings.Repeat("k", placement.MaxKind)) {
		for _, identity := range append(names, "/", "//", "a/b", "/a/", "a/../b", strings.Repeat("錠", placement.MaxIdentity/3)) {
			actor := escape(kind) + "/" + escape(identity)
			stored[actor] = placement.Key{Kind: kind, Identity: identity}
			body := strings.Replace(firstRecord, `"token":4`, fmt.Sprintf(`"token":%d`, len(stored)), 1)
			if r := g.send("POST", "/v1/placements/"+actor+"/store", tokenHost, body); r.status != 200 {
				t.Errorf("%s: status %d, %s", actor, r.status, r.body)
			}
			if got := g.loaded(actor, tokenHost); got.Kind != kind || got.Identity != identity || got.Token != int64(len(stored)) {
				t.Errorf("%q %q became %+v", kind, identity, got)
			}
		}
	}
	for actor, key := range stored {
		r, err := g.options.Placements.Records.Load(t.Context(), "default@placement", key)
		if err != nil || r.Token != g.loaded(actor, tokenHost).Token {
			t.Errorf("%s is not %v: %+v, %v", actor, key, r, err)
		}
	}
	for actor, code := range map[string]problem.Code{
		"%2F/a": problem.InvalidRequest, "%2F/-": problem.InvalidRequest, "%2F/%2F": problem.InvalidRequest, "a%2Fb/c": problem.InvalidRequest,
		"a/%00": problem.InvalidRequest, "a%0A/b": problem.InvalidRequest, "a/%FF": problem.InvalidRequest,
		strings.Repeat("k", placement.MaxKind+1) + "/a": problem.InvalidRequest, "a/" + strings.Repeat("i", placement.MaxIdentity+1): problem.InvalidRequest,
		"a": problem.NotFound, "a/": problem.NotFound, "/a": problem.NotFound, "a/b/c": problem.NotFound, "a/..": problem.NotFound, "./a": problem.NotFound,
	} {
		g.want(actor, g.send("GET", "/v1/placements/"+actor, tokenHost, ""), code)
	}
}

// TestLockArea: the locks that daemons hold for placement are out of reach for requests
// without an area, though they come with the same credential, for credentials without the
// scope, and for other tenants.
func TestLockArea(t *testing.T) {
	const daemon, user, theirs = "a-token-of-the-daemons-here", "a-token-of-a-program-here", "a-token-of-daemons-elsewhere"
	g := lockRig(t, func(g *rig) {
		g.tokens(`
- {token: ` + daemon + `, owner: hosts, scopes: [locks, placements]}
- {token: ` + theirs + `, tenant: acme, owner: hosts, scopes: [locks, placements]}
- {token: ` + user + `, owner: program, scopes: [locks]}
- {token: a-token-for-the-wrong-thing, owner: hosts, scopes: [placements]}
`)
	})
	do := func(method, path, token string) reply { return g.send(method, "/v1/locks"+path, token, "") }
	const area, key = "?area=placement", "/members%2Fa:1"
	for _, test := range []struct{ query, token, tenant string }{
		{area, daemon, "default@placement"}, {"", daemon, "default"}, {area, theirs, "acme@placement"}, {"", theirs, "acme"},
	} {
		if r := do("POST", key+"/acquire"+test.query, test.token); r.status != 200 || !strings.Contains(r.body, `"tenant_id":"`+test.tenant+`"`) {
			t.Errorf("%+v: status %d, %s", test, r.status, r.body)
		}
	}
	// What a member announces is shown to members; the locks of programs have no note.
	note := `{"note":"cart/room"}`
	if r := g.send("POST", "/v1/locks"+key+"/renew"+area, daemon, note); r.status != 200 || !strings.Contains(do("GET", area, daemon).body, `"note":"cart/room"`) {
		t.Errorf("the note of a member: status %d, %s", r.status, r.body)
	}
	g.want("a note of a program", g.send("POST", "/v1/locks"+key+"/renew", daemon, note), problem.InvalidRequest)
	// One's own lock of the key is another lock than the daemon's.
	for _, op := range []string{"/renew", "/release"} {
		if r := do("POST", key+op, daemon); r.status != 200 {
			t.Errorf("status %d, %s", r.status, r.body)
		}
	}
	for path, method := range map[string]string{"": "GET", key: "GET", key + "/acquire": "POST", key + "/renew": "POST", key + "/release": "POST"} {
		g.want(path, do(method, path+area, user), problem.Forbidden)
		g.want(path, do(method, path+"?area=users", daemon), problem.InvalidRequest)
		g.want(path, do(method, path+area, "a-token-for-the-wrong-thing"), problem.Forbidden)
	}
	held := do("GET", key+area, daemon)
	if !strings.Contains(held.body, `"state":"ACTIVE"`) || !strings.Contains(held.body, `"fencing_token":1`) {
		t.Errorf("the daemons' lock is %s", held.body)
	}
	if page := do("GET", area, daemon); strings.Count(page.body, "lock_key") != 1 || !strings.Contains(page.body, "default@placement") {
		t.Errorf("the daemons' locks are %s", page.body)
	}
	if page := do("GET", "", daemon); strings.TrimSpace(page.body) != `{"locks":[]}` {
		t.Errorf("the users' locks are %s", page.body)
	}
	if _, err := ParseTokens([]byte("- {token: a-token-with-a-clever-tenant, tenant: default@placement, owner: o, scopes: [locks]}")); err == nil || !strings.Contains(err.Error(), "@placement") {
		t.Errorf("a tenant with the name of an area: %v", err)
	}
}

func TestMalformedPlacementRequests(t *testing.T) {
	g := placementRig(t)
	with := func(field, value string) string {
		var body map[string]json.RawMessage
		if err := json.Unmarshal([]byte(firstRecord), &body); err != nil {
			t.Fatal(err)
		}
		body[field] = json.RawMessage(value)
		return mustJSON(t, body)
	}
	long := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	tooLarge := base64.StdEncoding.EncodeToString(make([]byte, placement.MaxSnapshot+1))
	for _, op := range []string{"store", "remove"} {
		send := func(body string) reply { return g.send("POST", "/v1/placements/room/lobby/"+op, tokenHost, body) }
		for _, body := range []string{
			``, `{}`, `[]`, `x`, with("owner", `""`), with("owner", `"a\n"`), with("owner", `7`), with("owner", long(placement.MaxAuthority+1)), with("membership", `0`),
			with("version", `0`), with("version", `-1`), with("version", `1.5`), with("version", `9223372036854775808`), with("token", `0`), with("token", `"4"`),
			with("pid", long(placement.MaxPID+1)), with("snapshot", `"`+tooLarge+`"`), with("snapshot", `{}`),
		} {
			g.want(op+" "+body[:min(len(body), 100)], send(body), problem.InvalidRequest)
		}
		bad := send(with("snapshot", `"c25hcA"`))
		g.want("bad base64", bad, problem.InvalidRequest)
		if !strings.Contains(bad.problem.Detail, "base64") {
			t.Errorf("the detail is %q", bad.problem.Detail)
		}
		g.want("a huge body", send(with("snapshot", `"`+strings.Repeat("A", 200_000)+`"`)), problem.TooLarge)
	}
	if got := g.loaded("room/lobby", tokenHost); got.Version != 0 {
		t.Errorf("a malformed request has stored %+v", got)
	}
	without := newRig(t, nil)
	for path, method := range map[string]string{"": "GET", "/store": "POST", "/remove": "POST"} {
		without.want(path, without.send(method, "/v1/placements/room/lobby"+path, "", ""), problem.NotSupported)
	}
}
