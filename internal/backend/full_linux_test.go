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
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// One user makes keys in a file until it is refused, below the limit of all. Another one's keys
// are made. When others fill the disk, there are no new keys, and leases, locks and sequences
// that exist are kept, also over a restart; when there is room again, everything goes on, up to
// the limit.
func TestFullDisk(t *testing.T) {
	ring.All(t)
	const size, most = 64 << 20, 8 << 20
	dir := disktest.Small(t, fmt.Sprint(size))
	url := "sqlite:" + filepath.Join(dir, "store.db")
	open := func() *Store {
		s, err := OpenStore(url, StoreOptions{Limits: bounds.Limits{Keys: 1 << 18, Bytes: most}})
		must.Succeed(t, err)
		return s
	}
	s := open()
	next := func(payer, key string) error {
		_, err := s.Sequences.Next(bounds.Pay(t.Context(), payer), sequence.Request{Tenant: "default", Key: key, Count: 1, Options: sequence.DefaultOptions()})
		return err
	}
	holding := request(lock.Acquire, "held", "innocent", time.Hour)
	do := func(op lock.Op) error {
		r := holding
		if r.Op = op; op == lock.Release {
			r.TTLMS = 0
		}
		_, err := s.Locks.Do(bounds.Pay(t.Context(), "innocent"), r)
		return err
	}
	must := func(errs ...error) {
		t.Helper()
		must.Succeed(t, errors.Join(errs...))
	}
	must(do(lock.Acquire), next("innocent", "orders"))

	long := strings.Repeat("k", 400)
	fill := func(payer string) *record.FullError {
		for n := 0; ; n++ {
			err := next(payer, fmt.Sprint(long, payer, n))
			if full, ok := errors.AsType[*record.FullError](err); ok {
				return full
			}
			must(err)
		}
	}
	if got, want := fill("greedy"), (record.FullError{Setting: record.SettingDisk, Limit: most - most/4, Payer: "greedy"}); *got != want {
		t.Errorf("refused by %v", got)
	}
	must(next("innocent", "another"))

	terms := provider.Services{Default: provider.DefaultTerms()}
	openLeases := func() *Leases {
		p, err := OpenLeaseFile(t.Context(), LeaseFile{Path: filepath.Join(dir, "leases.db"), Services: terms})
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
	if got := fill("innocent"); *got != (record.FullError{}) {
		t.Errorf("on a full disk, refused by %v", got)
	}
	must(s.Close(), p.Close())
	s, p = open(), openLeases()
	keep()
	free()
	keep() // the file looks for room now and then only
	must(next("innocent", "yet another"))
	fill("another")
	if got, want := fill("one more"), (record.FullError{Setting: record.SettingDisk, Limit: most}); *got != want {
		t.Errorf("refused by %v", got)
	}
	keep()
	must(do(lock.Release), s.Close(), p.Close())
}
