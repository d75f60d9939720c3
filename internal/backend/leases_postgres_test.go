package backend

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// mustOpenLeases opens leases on the server; services have terms of their own.
func mustOpenLeases(t *testing.T, url string, services map[string]provider.Terms) provider.Provider {
	t.Helper()
	p, err := OpenProvider(url, ProviderOptions{Services: services})
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, p.Close()) })
	return p
}

// acquire takes one lease of a service.
func acquire(ctx context.Context, p provider.Provider, service, request string) (lease.Lease, error) {
	leases, err := p.Acquire(ctx, provider.AcquireRequest{Service: service, RequestID: request})
	if err != nil {
		return lease.Lease{}, err
	}
	return leases[0], nil
}

// mustBeFenced checks that an operation is refused by a fence that lasts for least, or for longer.
func mustBeFenced(t *testing.T, what string, err error, least time.Duration) {
	t.Helper()
	var fenced *provider.FencedError
	if !errors.As(err, &fenced) || time.Until(time.UnixMilli(fenced.UntilMS)) < least-time.Minute {
		t.Errorf("%s: the error is %v, want a fence of %v", what, err, least)
	}
}

// A standby that is promoted may have forgotten leases. It grants, repeats and extends nothing for
// as long as those of any process last, and takes leases back.
func TestLeasesOfAPromotedPostgres(t *testing.T) {
	primary := postgrestest.New(t)
	url := primary.URL()
	p := mustOpenLeases(t, url, nil)
	held, err := acquire(t.Context(), p, "", "held")
	must.Succeed(t, err)
	extended, err := acquire(t.Context(), p, "", "")
	must.Succeed(t, err)
	standby := primary.Standby("standby")
	primary.Stop()
	standby.Promote()

	url = standby.Move(url, primary)
	after := mustOpenLeases(t, url, nil)
	usual := provider.DefaultTerms().Term + provider.DefaultTerms().Quarantine
	_, err = acquire(t.Context(), after, "", "another")
	mustBeFenced(t, "an acquire", err, usual)
	_, err = acquire(t.Context(), after, "", "held")
	mustBeFenced(t, "an acquire that is repeated", err, usual)
	_, err = provider.Extend(t.Context(), after, "", extended)
	mustBeFenced(t, "an extension", err, usual)
	if lost, err := provider.Verify(t.Context(), after, "", []lease.Lease{held, extended}); err != nil || len(lost) > 0 {
		t.Errorf("%v are lost: %v", lost, err)
	}
	must.Succeed(t, after.Release(t.Context(), providertest.SignedRelease(held, time.Now().UnixMilli())))

	// A process with longer leases may have had a lease that was forgotten.
	long := provider.DefaultTerms()
	long.Pool, long.Term, long.Quarantine = "long", 5*time.Hour, 5*time.Hour
	longer := mustOpenLeases(t, url, map[string]provider.Terms{"long": long})
	must.Succeed(t, longer.Ready(t.Context()))
	_, err = acquire(t.Context(), after, "", "another")
	mustBeFenced(t, "an acquire after a process with longer terms has looked", err, 10*time.Hour)

	must.Succeed(t, after.Init(t.Context(), ""))
	for service, p := range map[string]provider.Provider{"": after, "long": longer} {
		if _, err := acquire(t.Context(), p, service, ""); err != nil {
			t.Errorf("after Init, service %q: %v", service, err)
		}
	}
}
