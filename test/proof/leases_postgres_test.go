package proof

import (
	"context"
	"fmt"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/record"
)

// leaseModel is the product's pool over the model of PostgreSQL.
type leaseModel struct {
	*pool.Provider
	records  *records
	greatest int64 // that the clock has shown
}

// atHand is the way of a process to a server beside it: the world loses the calls before.
type atHand struct{ *records }

func (atHand) turn(context.Context, string) error { return nil }

func (a atHand) send(_ context.Context, _ string, do func(record.Store) error) error {
	return do(a.records)
}

// openLeasesOnModel has the world lease from a model, all by one process.
func (w *world) openLeasesOnModel(services provider.Services, nowMS func() int64) provider.Provider {
	l := &leaseModel{}
	l.records = &records{w: w, kind: w.kind, area: pool.AreaOf(services), clock: func() int64 {
		now := nowMS()
		l.greatest = max(l.greatest, now)
		return now
	}}
	l.records.begin()
	l.records.first = l.records.first.granting(services.LongestMS())
	l.records.lives = l.records.first
	client := l.records.client(atHand{l.records}, l.records, nil)
	l.records.users = func() []*session { return []*session{client.(*session)} }
	p, err := pool.New(pool.Config{Records: client, Services: services, Info: provider.Info{Name: "postgres"}, Random: w.rnd.Int64N})
	must(err, nil)
	l.Provider, w.leaseModel = p, l
	return l
}

// fallBack has the server forget. Of two servers, the clocks differ by less than any quarantine:
// that of the second is not behind.
func (l *leaseModel) fallBack() {
	w := l.records.w
	before := l.all()
	w.skew += max(0, l.greatest-l.records.now())
	l.records.fallBack(w.rnd.IntN(30))
	w.skew, l.records.ahead = w.skew+l.records.ahead, 0
	if l.all() != before {
		w.trail.befalls("Restore")
		w.count("stores restored")
	}
}

// all is what the model has of grants.
func (l *leaseModel) all() string {
	heads, err := l.records.Store.List(context.Background(), "block/", "", record.MaxPage)
	must(err, nil)
	return fmt.Sprint(heads)
}
