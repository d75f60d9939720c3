package backend

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/provider"
	leasedb "github.com/kazahana/kazahana/internal/provider/sqlite"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/allowance"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// One user makes keys in a file until it is refused, far below the size of the disk. Another
// one's keys are made. When others fill the disk, leases, locks and sequences that exist are
// kept, also over a restart; when there is room again, everything goes on.
func TestFullDisk(t *testing.T) {
	ring.All(t)
	const size = 64 << 20
	dir := disktest.Small(t, fmt.Sprint(size))
	url := "sqlite:" + filepath.Join(dir, "store.db")
	open := func() *Store {
		s, err := OpenStore(url, StoreOptions{Quota: allowance.Limits{Keys: 1 << 18, Bytes: 256 << 20}})
		must.Succeed(t, err)
		return s
	}
	s := open()
	next := func(payer, key string) error {
		_, err := s.Sequences.Next(allowance.Pay(t.Context(), payer), sequence.Request{Tenant: "default", Key: key, Count: 1, Options: sequence.DefaultOptions()})
		return err
	}
	holding := request(lock.Acquire, "held", "innocent", time.Hour)
	do := func(op lock.Op) error {
		r := holding
		if r.Op = op; op == lock.Release {
			r.TTLMS = 0
		}
		_, err := s.Locks.Do(allowance.Pay(t.Context(), "innocent"), r)
		return err
	}
	must := func(errs ...error) {
		t.Helper()
		must.Succeed(t, errors.Join(errs...))
	}
	must(do(lock.Acquire), next("innocent", "orders"))

	var full *record.FullError
	long := strings.Repeat("k", 400)
	for n := 0; ; n++ {
		err := next("greedy", fmt.Sprint(long, n))
		if errors.As(err, &full) {
			break
		}
		must(err)
	}
	if full.Quota != "quota_disk" || full.Payer != "greedy" || full.Limit != size/diskShare/4 {
		t.Errorf("refused by %v", full)
	}
	must(next("innocent", "another"))

	terms := provider.Services{Default: provider.DefaultTerms()}
	openLeases := func() *leasedb.Provider {
		p, err := leasedb.Open(t.Context(), leasedb.Config{Path: filepath.Join(dir, "leases.db"), Services: terms})
		must(err)
		return p
	}
	p := openLeases()
	free := disktest.Fill(t, filepath.Join(dir, "rest"))
	keep := func() {
		t.Helper()
		for range 500 {
			must(do(lock.Renew), next("innocent", "orders"))
			leases, err := p.Acquire(t.Context(), provider.AcquireRequest{ThroughputPerMS: 1, RequestID: lock.NewLeaseID()})
			must(err)
			if len(leases) != 1 {
				t.Fatalf("%d leases", len(leases))
			}
		}
	}
	keep()
	must(s.Close(), p.Close())
	s, p = open(), openLeases()
	keep()
	free()
	must(next("innocent", "yet another"), do(lock.Release), s.Close(), p.Close())
}
