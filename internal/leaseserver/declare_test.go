package leaseserver

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/sequence"
)

// A declaration ends up in the store, under the operator's tenant; it needs the scope
// admin.
func TestSequenceDeclare(t *testing.T) {
	g := contractRig(t, func(g *rig) {
		g.tokens(`
- {token: a-token-of-an-operator-of-acme, tenant: acme, owner: op, scopes: [sequences, admin]}
- {token: a-token-of-a-user-of-acme, tenant: acme, owner: user, scopes: [sequences]}
`)
		g.options.Sequences.Options = func(tenant, key string) (sequence.Options, bool) {
			o := sequence.DefaultOptions()
			o.Step = 10
			return o, strings.HasPrefix(key, "day/")
		}
	})
	const operator, user = "a-token-of-an-operator-of-acme", "a-token-of-a-user-of-acme"
	refused := func(r reply, status int, code problem.Code) {
		t.Helper()
		if r.status != status || r.problem.Code != code {
			t.Errorf("%d %s, want %d %s: %s", r.status, r.problem.Code, status, code, r.body)
		}
	}
	declare := func(key, token, body string) reply {
		return g.send("POST", "/v1/sequences/"+key+"/declare", token, body)
	}
	next := func(key string) reply { return g.send("POST", "/v1/sequences/"+key+"/next", user, "") }
	refused(declare("orders", user, `{"last": 41}`), http.StatusForbidden, problem.Forbidden)
	refused(declare("orders", operator, `{}`), http.StatusBadRequest, problem.InvalidRequest)
	refused(declare("orders", operator, `{"last": -1}`), http.StatusBadRequest, problem.InvalidRequest)
	refused(declare("orders", operator, `{"last": 5, "max_value": 4}`), http.StatusBadRequest, problem.InvalidRequest)
	if got := declare("orders", operator, `{"last": 41}`); got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}
	if got := next("orders"); !strings.Contains(got.body, `"values":[42]`) {
		t.Errorf("it goes on with %s", got.body)
	}
	// The configuration says how its keys count, and no request.
	refused(declare("day%2F1", operator, `{"last": 30, "step": 7}`), http.StatusBadRequest, problem.InvalidRequest)
	if got := declare("day%2F1", operator, `{"last": 30}`); got.status != http.StatusOK {
		t.Errorf("%+v", got)
	}
	if got := next("day%2F1"); !strings.Contains(got.body, `"values":[40]`) {
		t.Errorf("it goes on with %s", got.body)
	}
}
