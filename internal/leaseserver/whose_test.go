package leaseserver

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// crowded is a store that too many calls wait for.
type crowded struct{ record.Store }

func (crowded) Change(context.Context, record.Ask, record.Rule) (int64, error) {
	return 0, fmt.Errorf("%w: %w", record.ErrCrowded, context.DeadlineExceeded)
}

// wantWhose checks that the statistics have one refusal, by this quota and because of tenant busy.
func (g *rig) wantWhose(key string) {
	g.t.Helper()
	if seen := g.options.Quotas.Recent(); len(seen) != 1 || seen[0].Quota != key || seen[0].Whose != "tenant busy" {
		g.t.Errorf("the statistics have %+v, want %s by tenant busy", seen, key)
	}
}

// TestWhoseStoreCalls: where the store is crowded, the statistics name the tenant with the most
// requests under way, and not the one that is refused.
func TestWhoseStoreCalls(t *testing.T) {
	g := lockRig(t, func(g *rig) { g.keep(lock.OnRecords(crowded{memory.New(g.clock.Load)})) })
	for _, tenant := range []string{"other", "busy", "busy", "busy", "other"} {
		leave, err := g.server.enter(t.Context(), tenant)
		must.Succeed(t, err)
		defer leave()
	}
	g.want("an acquire", g.send("POST", "/v1/locks/k/acquire", tokenHost, ``), problem.Overloaded)
	g.wantWhose(quota.FixedStoreCalls)
}

// TestWhoseUpkeep: likewise, where no place is left for the upkeep of locks, and none ends.
func TestWhoseUpkeep(t *testing.T) {
	g := lockRig(t, func(g *rig) { g.options.MaxInFlight, g.options.ProviderTimeout = 3, 10*time.Millisecond })
	for _, tenant := range []string{"busy", "other", "busy"} {
		leave, err := g.server.enterUpkeep(t.Context(), tenant)
		must.Succeed(t, err)
		defer leave()
	}
	g.want("a renewal", g.send("POST", "/v1/locks/k/renew", tokenHost, `{"ttl_seconds": 60}`), problem.Overloaded)
	g.wantWhose("max_in_flight")
}
