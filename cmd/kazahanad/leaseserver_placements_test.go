package main

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Daemons that reach one Redis directly and through a lease server are members of one
// placement, with the same records; and a user of a daemon's socket makes no member of
// it, though the daemon's users and its placement have the same token.
func TestPlacementThroughALeaseServer(t *testing.T) {
	t.Parallel()
	direct, through := newSite(t), newSite(t)
	store := direct.StartRedis().URL()
	direct.Initialised(store)
	const token = "a-token-of-our-own-hosts"
	tokens, tokenFile := through.Path("tokens.yaml"), through.Path("token")
	testkit.WriteFile(t, tokens, "- {token: "+token+", owner: hosts, scopes: [locks, sequences, placements]}\n")
	testkit.WriteFile(t, tokenFile, token)
	server := through.StartLeaseServer("127.0.0.1:0", "--provider", "memory:", "--store", store, "--tokens-file", tokens).URL() + "?token_file=" + tokenFile
	direct.Start("--provider", "none:", "--store", store, "--placement-authority", "a:1")
	through.Start("--provider", "none:", "--store", server, "--placement-authority", "b:1")
	snapshot := func(s *site, args ...string) (report daemon.SnapshotPage) {
		testkit.DecodeJSON(t, s.Kazahanad(append([]string{"placement", "--json"}, args...)...).OK(t), &report)
		return report
	}
	clients := []*caller.Client{direct.executor(), through.executor()}
	await.Eventually(t, "both see both, and what they serve", func() bool {
		a, b := snapshot(direct), snapshot(through)
		return len(a.Members) == 2 && reflect.DeepEqual(a.Members, b.Members) && !slices.ContainsFunc(a.Members, func(m daemon.SnapshotMember) bool { return len(m.Kinds) != 2 })
	})

	for i, s := range []*site{direct, through} {
		client := clients[i]
		locals := 0
		for i := range 20 { // their hosts follow from the names, and are both
			r, err := resolve(t.Context(), client, "room", fmt.Sprint(i))
			must.Succeed(t, err)
			if r.Locality == "local" {
				locals++
				if key := snapshot(s, "room/"+r.Identity).Key; key == nil || key.Record == nil || key.Record.Owner != r.Authority || key.Record.Token != r.Token {
					t.Errorf("%+v has the record %+v", r, key)
				}
			}
		}
		if locals == 0 || locals == 20 {
			t.Errorf("%d of 20 actors are on this host", locals)
		}
	}

	must.Succeed(t, through.Dial().Try("Lock.Acquire", nil, "members/evil:1", map[string]any{"ttl_ms": 600_000}))
	locks, err := backend.OpenStore(server, backend.StoreOptions{})
	must.Succeed(t, err)
	defer locks.Close()
	for tenant, want := range map[string]string{placementTenant: "[members/a:1 members/b:1]", "default": "[members/evil:1]"} {
		page, err := locks.Locks.List(t.Context(), tenant, "members/", lock.MaxList)
		var keys []string
		for _, l := range page {
			keys = append(keys, l.Key)
		}
		if err != nil || fmt.Sprint(keys) != want {
			t.Errorf("the locks of %s are %v, want %s (%v)", tenant, keys, want, err)
		}
	}
}
