package etcd

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// A scan and a view are two ways to the same answer.
func TestScanAgreesWithView(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a pool")
	}
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1e9)
	base := provider.DefaultTerms()
	base.Term, base.Quarantine = time.Minute, time.Minute
	wide := base.WithBitSeq(14)
	some := base
	some.IDs = provider.IDRange{Low: 100, End: 900}
	services := provider.Services{Default: base, Named: map[string]provider.Terms{"coarse": base.WithBitSeq(10), "wide": wide, "some": some}}
	p := mustOpen(t, config(t, services, clock.Load))
	random := rand.New(rand.NewPCG(5, 6))
	ctx := within(t, time.Minute)
	for range 60 {
		service := []string{"", "", "coarse", "some"}[random.IntN(4)]
		_, err := p.Acquire(ctx, provider.AcquireRequest{Service: service, ThroughputPerMS: random.Int64N(256 * 60)})
		if err != nil {
			t.Fatal(err)
		}
		clock.Add(random.Int64N(3000))
	}
	pl := p.pool(base)
	for service, terms := range map[string]provider.Terms{"": base, "coarse": services.Named["coarse"], "wide": wide, "some": some} {
		for _, cursor := range []int64{terms.Range().Low, terms.Range().Low + terms.Range().Count()/2, terms.Range().End - 1} {
			for _, ahead := range []int64{-60_000, 0, 60_000, 120_000} {
				a := &acquisition{p: p, pool: pl, terms: terms, ring: pool.RingOf(terms), now: clock.Load() + ahead, key: "/none"}
				st, err := a.read(ctx)
				if err != nil {
					t.Fatal(err)
				}
				st.cursor = cursor
				if st.view == nil || !st.view.reached(ctx, st.last) {
					t.Fatal("there is no view")
				}
				const want = 20
				fromView, ok, viewErr := a.lookUp(st, want)
				line, marks, err := a.scan(ctx, st, 1<<20)
				if err != nil || !ok {
					t.Fatal(err, ok)
				}
				fromScan, scanErr := a.choose(st, line, marks, want, viewSpare)
				if viewErr != nil || scanErr != nil {
					if viewErr == nil || scanErr == nil || viewErr.Error() != scanErr.Error() {
						t.Errorf("%q: the view says %v, the scan %v", service, viewErr, scanErr)
					}
					continue
				}
				n := min(want, len(fromView.ids), len(fromScan.ids))
				if n == 0 || !slices.Equal(fromView.ids[:n], fromScan.ids[:n]) {
					t.Errorf("%q from %d, %d ms ahead: the view has %v, the scan %v", service, cursor, ahead, fromView.ids[:n], fromScan.ids[:n])
				}
				for _, id := range fromScan.ids[:n] {
					if a, b := fromScan.bases[id], fromView.bases[id]; a.number != b.number || a.inside != b.inside || !slices.Equal(a.coarser, b.coarser) {
						t.Errorf("machine ID %d is free by %+v for the scan, by %+v for the view", id, a, b)
					}
				}
			}
		}
	}
}
