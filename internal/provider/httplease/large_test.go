package httplease_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A large pool arrives whole, in order, and so does the answer about more leases than one
// request may verify.
func TestLargePool(t *testing.T) {
	services := provider.Services{Default: provider.DefaultTerms()}
	inner, err := providertest.OverMemory(memory.New(nil), services)
	must.Succeed(t, err)
	p, err := open(inner, services, nil)
	must.Succeed(t, err)
	defer p.Close()
	var leases []lease.Lease
	for range 9 {
		more, err := p.Acquire(t.Context(), provider.AcquireRequest{ThroughputPerMS: 256 << 8})
		must.Succeed(t, err)
		leases = append(leases, more...)
	}
	got, err := p.List(t.Context(), "")
	want, wantErr := inner.List(t.Context(), "")
	if err != nil || wantErr != nil || len(want) != len(leases) || len(want) < 2*leaseapi.MaxVerify {
		t.Fatal(err, wantErr, len(want))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d records arrived, of %d", len(got), len(want))
	}
	leases[3].Secret, leases[2*leaseapi.MaxVerify].Secret = "x", "y"
	lost, err := provider.Verify(t.Context(), p, "", leases)
	if err != nil || !slices.Equal(lost, []lease.Lease{leases[3], leases[2*leaseapi.MaxVerify]}) {
		t.Errorf("%v, %v", lost, err)
	}
}
