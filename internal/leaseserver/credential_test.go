package leaseserver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// The tokens of the tests. Each is longer than what can be guessed.
const (
	tokenHost   = "host-token-of-the-default-tenant"
	tokenOther  = "another-token-of-the-default-tenant"
	tokenAcme   = "token-of-the-tenant-acme"
	tokenGlobex = "token-of-the-tenant-globex"
	tokenLocks  = "token-for-locks-and-nothing-else"
	tokenAdmin  = "token-of-the-operator-here"
)

var testTokens = func() string {
	sum := sha256.Sum256([]byte(tokenOther))
	return `
- {token: ` + tokenHost + `, owner: hosts, scopes: [leases]}
- {token_sha256: ` + hex.EncodeToString(sum[:]) + `, tenant: default, owner: other-hosts, scopes: [leases]}
- {token: ` + tokenAcme + `, tenant: acme, owner: a, scopes: [leases]}
- {token: ` + tokenGlobex + `, tenant: globex, owner: g, scopes: [leases]}
- {token: ` + tokenLocks + `, owner: l, scopes: [locks, sequences]}
- {token: ` + tokenAdmin + `, owner: operator, scopes: [admin, leases]}
`
}()

func tenantsRig(t *testing.T) *rig {
	return newRig(t, func(g *rig) {
		g.tokens(testTokens)
		g.pool("acme/orders", "acme")
		g.pool("globex/orders", "globex")
		g.services.Named["acme/default"] = g.services.Default // shares the operator's pool
	})
}

// Who may do what.
func TestAccess(t *testing.T) {
	g := tenantsRig(t)
	const ok = problem.Code("")
	for _, test := range []struct {
		name, method, target, token, body string
		code                              problem.Code
	}{
		{"no token", "POST", "/lease", "", "", problem.Unauthenticated},
		{"unknown token", "POST", "/lease", tokenHost + "x", "", problem.Unauthenticated},
		{"a digest is no token", "POST", "/lease", hex.EncodeToString(make([]byte, 32)), "", problem.Unauthenticated},
		{"token", "POST", "/lease", tokenHost, "", ok},
		{"token by its digest", "POST", "/lease", tokenOther, "", ok},
		{"any service of its own", "POST", "/lease", tokenHost, `{"serviceId":"whatever"}`, ok},
		{"another tenant's service", "POST", "/lease", tokenHost, `{"serviceId":"acme/orders"}`, problem.Forbidden},
		{"wrong scope", "POST", "/lease", tokenLocks, "", problem.Forbidden},
		{"tenant's service", "POST", "/lease", tokenAcme, `{"serviceId":"orders"}`, ok},
		{"tenant's default service", "POST", "/lease", tokenAcme, ``, ok},
		{"a tenant without one", "POST", "/lease", tokenGlobex, ``, problem.Forbidden},
		{"a tenant's service that is not there", "POST", "/lease", tokenAcme, `{"serviceId":"payments"}`, problem.Forbidden},
		{"a tenant that names another", "POST", "/lease", tokenAcme, `{"serviceId":"globex/orders"}`, problem.Forbidden},
		{"a tenant that names itself", "POST", "/lease", tokenAcme, `{"serviceId":"acme/orders"}`, problem.Forbidden},
		{"list without a token", "GET", "/leases", "", "", problem.Unauthenticated},
		{"list another tenant's", "GET", "/leases?serviceId=globex/orders", tokenAcme, "", problem.Forbidden},
		{"stats", "GET", "/stats", tokenHost, "", problem.Forbidden},
		{"stats of the operator", "GET", "/stats", tokenAdmin, "", ok},
		{"metrics", "GET", "/metrics", tokenHost, "", problem.Forbidden},
		{"metrics of the operator", "GET", "/metrics", tokenAdmin, "", ok},
		{"health", "GET", "/healthz", "", "", ok},
		{"readiness", "GET", "/readyz", "", "", ok},
		{"page", "GET", "/", "", "", ok},
	} {
		r := g.send(test.method, test.target, test.token, test.body)
		if r.problem.Code != test.code || test.code == ok && r.status != 200 {
			t.Errorf("%s: status %d, %s, want %q", test.name, r.status, r.body, test.code)
		}
		if (r.header.Get("WWW-Authenticate") != "") != (test.code == problem.Unauthenticated) {
			t.Errorf("%s: WWW-Authenticate is %q", test.name, r.header.Get("WWW-Authenticate"))
		}
	}
	for _, header := range []string{"Basic " + tokenHost, tokenHost, "Bearer", "Bearer  ", "bearer\t" + tokenHost} {
		g.want(header, g.send("POST", "/lease", "", "", "Authorization", header), problem.Unauthenticated)
	}
	if r := g.send("POST", "/lease", "", "", "Authorization", "bearer "+tokenHost); r.status != 200 {
		t.Errorf("the scheme's case counts: %+v", r)
	}
}

// A guessed request ID does not give its lease to another owner, not even in one tenant.
func TestRequestIDsAreTheCredentials(t *testing.T) {
	g := tenantsRig(t)
	const body = `{"requestId":"guessed"}`
	mine := g.acquire(tokenHost, body)
	for _, token := range []string{tokenOther, tokenAdmin, tokenAcme} {
		if theirs := g.acquire(token, body); theirs.Secret == mine.Secret || theirs.ID == mine.ID {
			t.Errorf("%s was given the lease of another", token)
		}
	}
	if again := g.acquire(tokenHost, body); again != mine {
		t.Errorf("the owner was given %v, and %v before", again, mine)
	}
	if r := g.send("POST", "/lease", tokenHost, body); !strings.Contains(r.body, `"requestId":"guessed"`) {
		t.Errorf("the answer does not name its request: %s", r.body)
	}
	// Parts that are put together differently are not the same whole.
	a := scopedRequestID(Credential{Tenant: "ab", Owner: "c"}, "x")
	for _, b := range []string{
		scopedRequestID(Credential{Tenant: "a", Owner: "bc"}, "x"), scopedRequestID(Credential{Tenant: "ab", Owner: ""}, "cx"),
		scopedRequestID(Credential{Tenant: "ab", Owner: "c"}, "X"),
	} {
		if a == b {
			t.Error("two requests have one digest")
		}
	}
	if scopedRequestID(Credential{}, "") != "" {
		t.Error("no request ID became one")
	}
}

// A tenant sees its own records of a pool that it shares, under its own names.
func TestListsAreTheTenants(t *testing.T) {
	g := tenantsRig(t)
	g.acquire(tokenHost, `{"serviceId":"web"}`)
	g.acquire(tokenAcme, ``) // in the operator's pool
	services := func(token, query string) string {
		var out leaseapi.RecordsResponse
		r := g.send("GET", "/leases"+query, token, "")
		must.Succeed(t, json.Unmarshal([]byte(r.body), &out))
		var names []string
		for _, record := range out.Records {
			names = append(names, record.ServiceID)
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	for _, test := range []struct{ token, query, want string }{
		{tokenHost, "", "web"}, {tokenAcme, "", "default"}, {tokenAcme, "?serviceId=orders", ""}, {tokenAdmin, "", "acme/default web"},
	} {
		if got := services(test.token, test.query); got != test.want {
			t.Errorf("%s%s sees %q, want %q", test.token, test.query, got, test.want)
		}
	}
}

// A lease is its holder's: another tenant's credential and the right secret do
// not reach another pool, and the right credential without the secret nothing.
func TestLeasesAreTheHolders(t *testing.T) {
	g := tenantsRig(t)
	l := g.acquire(tokenAcme, `{"serviceId":"orders"}`)
	release := func(token, service, secret string) reply {
		return g.send("DELETE", fmt.Sprintf("/lease/%d", l.ID), token,
			fmt.Sprintf(`{"serviceId":"%s","signature":"%s","timestamp":%d}`, service, lease.Sign(secret, l.ID, testNow), testNow))
	}
	g.want("another tenant", release(tokenGlobex, "orders", l.Secret), problem.LeaseNotFound)
	g.want("another secret", release(tokenAcme, "orders", "x"), problem.BadSignature)
	if r := release(tokenAcme, "orders", l.Secret); r.status != 204 {
		t.Errorf("%+v", r)
	}
}

func TestParseTokens(t *testing.T) {
	const scopes = ", owner: o, scopes: [leases]"
	for text, want := range map[string]string{
		"":                                     "YAML list",
		"[]":                                   "lists 0 tokens",
		"a: b":                                 "YAML list",
		"- sixteen-characters-and-more":        "YAML list",
		"- {token: short" + scopes + "}":       "16 or more",
		"- {tokn: aaaaaaaaaaaaaaaaaaaa}":       `no field "tokn"`,
		"- {owner: o, scopes: [leases]}":       "either token or token_sha256",
		"- {token_sha256: abcd" + scopes + "}": "64 hex digits",
		"- {token: aaaaaaaaaaaaaaaaaaaa, token_sha256: " + strings.Repeat("ab", 32) + scopes + "}":                         "either token or token_sha256",
		"- {token: aaaaaaaaaaaaaaaaaaaa, scopes: [leases]}":                                                                "tenant and owner",
		"- {token: aaaaaaaaaaaaaaaaaaaa, owner: a/b, scopes: [leases]}":                                                    "tenant and owner",
		"- {token: aaaaaaaaaaaaaaaaaaaa, tenant: a/b, owner: o, scopes: [leases]}":                                         "tenant and owner",
		"- {token: aaaaaaaaaaaaaaaaaaaa, tenant: " + strings.Repeat("t", 55) + ", owner: o, scopes: [placements]}":         "55 characters, and may have 54 with",
		"- {token: aaaaaaaaaaaaaaaaaaaa, owner: o}":                                                                        "scopes is missing",
		"- {token: aaaaaaaaaaaaaaaaaaaa, owner: o, scopes: [lease]}":                                                       `no scope "lease"`,
		"- {token: aaaaaaaaaaaaaaaaaaaa, owner: o, scopes: leases}":                                                        "YAML list",
		"- {token: aaaaaaaaaaaaaaaaaaaa" + scopes + "}\n- {token: aaaaaaaaaaaaaaaaaaaa" + scopes + "}":                     "entries 1 and 2",
		"- {token: aaaaaaaaaaaaaaaaaaaa" + scopes + "}\n- {token: aaaaaaaaaaaaaaaaaaaa, owner: !!int x, scopes: [leases]}": "",
	} {
		_, err := ParseTokens([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want one with %q", text, err, want)
		} else if strings.Contains(err.Error(), "aaaa") || strings.Contains(err.Error(), "sixteen") {
			t.Errorf("%q: the error shows a token: %v", text, err)
		}
	}
}

// A changed file is noticed; a broken one changes nothing.
func TestReloaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	write := func(token string) {
		t.Helper()
		// As an editor does: beside it, then in its place.
		next := path + ".new"
		must.Succeed(t, os.WriteFile(next, []byte("- {token: "+token+", owner: o, scopes: [leases]}"), 0o600))
		must.Succeed(t, os.Rename(next, path))
	}
	write(tokenHost)
	r, err := NewReloaded("tokens_file", []string{path}, func() (*Tokens, error) { return ReadTokens(path) }, zap.NewNop())
	must.Succeed(t, err)
	now := time.Unix(0, 0)
	r.now = func() time.Time { return now }
	r.checked = now
	known := func(token string) bool { _, ok := r.Get().find(token); return ok }
	write(tokenAdmin + "-longer")
	if !known(tokenHost) {
		t.Error("the file is looked at more often than it should be")
	}
	now = now.Add(reloadCheck)
	if known(tokenHost) || !known(tokenAdmin+"-longer") {
		t.Error("a changed file was not read")
	}
	write("short")
	now = now.Add(reloadCheck)
	if !known(tokenAdmin + "-longer") {
		t.Error("a broken file locked everybody out")
	}
	must.Succeed(t, os.Remove(path))
	now = now.Add(reloadCheck)
	if !known(tokenAdmin + "-longer") {
		t.Error("a missing file locked everybody out")
	}
	write(tokenAcme)
	r.Reload()
	if !known(tokenAcme) {
		t.Error("Reload did not read the file")
	}
	if _, err := NewReloaded("x", []string{path + "-"}, func() (*Tokens, error) { return ReadTokens(path + "-") }, zap.NewNop()); err == nil {
		t.Error("the first load must succeed")
	}
}
