package httplease_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/memory"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A pool larger than a page arrives whole, in order, and so does the answer about more
// leases than one request may verify.
func TestMoreThanOneRequestHolds(t *testing.T) {
	services := provider.Services{Default: provider.DefaultTerms()}
	inner, err := memory.New(memory.NewStore(nil), services)
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
	if err != nil || wantErr != nil || len(want) != len(leases) || len(want) < 2*leaseapi.MaxPage {
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

// A server that knows no pages sends all at once, and one that goes round in
// circles is refused.
func TestListOfOtherServers(t *testing.T) {
	record := `{"id":1,"created":1,"expired":2,"customEpoch":0,"bitReserve":1,"bitTs":41,"bitId":14,"bitSeq":8}`
	var asked atomic.Int64
	old := newStub(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		plain(http.StatusOK, "application/json", `{"records":[`+record+`]}`)(w, r)
	})
	if records, err := mustOpen(t, old.URL).List(t.Context(), ""); err != nil || len(records) != 1 || asked.Load() != 1 {
		t.Errorf("%d records, %v, after %d requests", len(records), err, asked.Load())
	}
	circle := newStub(t, plain(http.StatusOK, "application/json", `{"records":[`+record+`],"next":"1.8"}`))
	if _, err := mustOpen(t, circle.URL).List(t.Context(), ""); err == nil {
		t.Error("it goes round in circles")
	}
}
