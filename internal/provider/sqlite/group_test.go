package sqlite

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const groupNow = snowflake.DefaultEpochMS + 1000

func groupProvider(t *testing.T) *Provider {
	t.Helper()
	return mustOpen(t, Config{Path: newPath(memoryDir(t)), Services: defaultServices(), NowMS: func() int64 { return groupNow }})
}

func records(t *testing.T, p *Provider) int {
	t.Helper()
	list, err := p.List(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A full pool is an answer, to the one as to the other, and takes nothing of
// what shares its commit with it.
func TestGroupFull(t *testing.T) {
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 5, End: 6}
	p := mustOpen(t, Config{
		Path: newPath(memoryDir(t)), Services: provider.Services{Default: terms}, NowMS: func() int64 { return groupNow },
	})
	const callers = 30
	var granted, refused atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			_, err := p.Acquire(context.Background(), provider.AcquireRequest{})
			var full *provider.FullError
			switch {
			case err == nil:
				granted.Add(1)
			case errors.As(err, &full):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if granted.Load() != 1 || refused.Load() != callers-1 || records(t, p) != 1 {
		t.Errorf("%d granted, %d refused, %d records", granted.Load(), refused.Load(), records(t, p))
	}
	if counted, err := p.Counters(context.Background(), ""); err != nil || counted["get_id_no_available_id"] != callers-1 {
		t.Errorf("counted %v (%v)", counted, err)
	}
}

// Callers at once share commits, and each gets a slot of its own.
func TestManyAcquireTogether(t *testing.T) {
	p := groupProvider(t)
	commits := 0
	p.at = func(step string) error {
		if step == sqlitefile.StepCommitted {
			commits++
		}
		return nil
	}
	const callers = 500
	var mu sync.Mutex
	seen := map[int64]bool{}
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			leases, err := p.Acquire(context.Background(), provider.AcquireRequest{RequestID: provider.NewSecret()})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[leases[0].ID] {
				t.Errorf("%v, %v", leases, err)
				return
			}
			seen[leases[0].ID] = true
		})
	}
	all.Wait()
	if len(seen) != callers || commits >= callers {
		t.Errorf("%d slots in %d commits", len(seen), commits)
	}
	if err := checkIndex(p); err != nil {
		t.Error(err)
	}
}

// Extensions at once share commits. One that is refused is counted, and takes
// nothing of the others with it.
func TestManyExtendTogether(t *testing.T) {
	p := groupProvider(t)
	const callers = 200
	var leases []lease.Lease
	for range callers {
		granted, err := p.Acquire(context.Background(), provider.AcquireRequest{})
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, granted[0])
	}
	commits := 0
	p.at = func(step string) error {
		if step == sqlitefile.StepCommitted {
			commits++
		}
		return nil
	}
	var all sync.WaitGroup
	for i, l := range leases {
		all.Go(func() {
			forged := i%2 == 1
			if forged {
				l.Secret = provider.NewSecret()
			}
			longer, err := provider.Extend(context.Background(), p, "", l)
			if !forged && (err != nil || longer.Key() != l.Key()) || forged && !errors.Is(err, provider.ErrBadSignature) {
				t.Errorf("forged %v: %v, %v", forged, longer, err)
			}
		})
	}
	all.Wait()
	counted, err := p.Counters(context.Background(), "")
	if err != nil || counted["extend_ttl_success"] != callers/2 || counted["extend_ttl_ownership_error"] != callers/2 {
		t.Errorf("counted %v (%v)", counted, err)
	}
	if commits >= callers {
		t.Errorf("%d extensions in %d commits", callers, commits)
	}
	if err := checkIndex(p); err != nil {
		t.Error(err)
	}
}
