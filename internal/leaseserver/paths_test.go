package leaseserver

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// No answer to a tenant names a file of the server, with any refusal or failure of the store.
func TestPathsReachNoTenant(t *testing.T) {
	dir := t.TempDir()
	store, err := backend.OpenStore("sqlite:"+filepath.Join(dir, "store.db"), backend.StoreOptions{})
	must.Succeed(t, err)
	p, err := backend.OpenLeaseFile(t.Context(), backend.LeaseFile{Path: filepath.Join(dir, "leases.db"), Services: provider.Services{Default: provider.DefaultTerms()}})
	must.Succeed(t, err)
	g := newRig(t, func(g *rig) {
		g.keep(store.Locks)
		g.options.Sequences, g.options.Placements = &Sequences{Store: store.Sequences}, &Placements{Records: store.Placements}
		g.options.Provider = p
	})
	refused := 0
	try := func(method, target, body string) {
		t.Helper()
		r := g.send(method, target, "", body)
		if r.status >= 400 {
			refused++
		}
		for _, part := range []string{dir, "sqlite:", ".db"} {
			if strings.Contains(r.body, part) {
				t.Errorf("%s %s: %d %s", method, target, r.status, r.body)
			}
		}
	}
	all := func() {
		t.Helper()
		try("GET", "/v1/locks/none", "")
		try("GET", "/v1/locks", "")
		for _, op := range []string{"renew", "release"} {
			try("POST", "/v1/locks/none/"+op, `{}`)
			try("POST", "/v1/locks/held/"+op, `{"lease_id": "x"}`)
		}
		try("POST", "/v1/locks/held/acquire", `{"request_id": "1"}`)
		try("POST", "/v1/locks/held/acquire", `{"request_id": "2"}`)
		try("POST", "/v1/locks/other/acquire", `{"request_id": "1", "ttl_seconds": 1}`)
		try("POST", "/v1/sequences/s/next", `{"request_id": "1"}`)
		try("POST", "/v1/sequences/s/next", `{"request_id": "1", "count": 2}`)
		try("POST", "/v1/sequences/s/next", `{"step": 7}`)
		try("POST", "/v1/sequences/s/declare", `{"last": 1}`)
		try("GET", "/v1/placements/k/i", "")
		try("POST", "/v1/placements/k/i/store", `{"owner": "a:1", "membership": 1, "version": 9, "token": 5}`)
		try("POST", "/v1/placements/k/i/remove", `{"owner": "a:1", "membership": 1, "version": 9, "token": 4}`)
		try("POST", "/lease", `{"requestId": "r"}`)
		try("POST", "/lease", `{"requestId": "r", "maxThroughputPerMs": 64}`)
		try("DELETE", "/lease/7", `{"signature": "x", "timestamp": 1}`)
		try("POST", "/leases/verify", `{"leases":[{"id":1,"bitSeq":8,"created":1,"signature":"s"}]}`)
		try("GET", "/leases/at?low=1792&at=1", "")
		try("GET", "/readyz", "")
	}
	all()
	if refused < 8 {
		t.Errorf("only %d requests were refused", refused)
	}
	refused = 0
	if err := p.Close(); err != nil { // from now on everything fails
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	all()
	if refused < 18 {
		t.Errorf("only %d requests failed", refused)
	}
}
