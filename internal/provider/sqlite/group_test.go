package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const groupNow = snowflake.DefaultEpochMS + 1000

func groupProvider(t *testing.T) *Provider {
	t.Helper()
	return mustOpen(t, Config{Path: newPath(memoryDir(t)), Services: defaultServices(), NowMS: func() int64 { return groupNow }})
}

// together runs the jobs in one transaction.
func together(t *testing.T, p *Provider, jobs ...*job) {
	t.Helper()
	if _, err := submit(context.Background(), p, func() (struct{}, error) {
		p.writeAll(jobs)
		return struct{}{}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// acquiring is a job that acquires one lease, and where it goes.
func acquiring(ctx context.Context) (*job, *[]lease.Lease) {
	var leases []lease.Lease
	return &job{ctx: ctx, op: func(t *transaction) (err error) {
		leases, err = t.acquire(provider.DefaultTerms(), provider.AcquireRequest{RequestID: provider.NewSecret()})
		return err
	}}, &leases
}

func records(t *testing.T, p *Provider) int {
	t.Helper()
	list, err := p.List(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// What fails alone takes nothing else with it, and leaves nothing behind.
func TestGroupKeepsApart(t *testing.T) {
	p := groupProvider(t)
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Fatal(err) // makes the pool and its ring
	}
	gone, cancel := context.WithCancel(context.Background())
	a, aLeases := acquiring(context.Background())
	undone, _ := acquiring(context.Background())
	grant := undone.op
	undone.op = func(t *transaction) error { return errors.Join(grant(t), provider.ErrConflict) }
	never, _ := acquiring(gone)
	leaving, _ := acquiring(context.Background())
	left, leave := context.WithCancel(context.Background())
	leaving.ctx, grant = left, leaving.op
	leaving.op = func(t *transaction) error { defer leave(); return grant(t) }
	forged := &job{ctx: context.Background(), op: func(t *transaction) error {
		return t.release(provider.DefaultPool, provider.ReleaseRequest{ID: 99999, BitSeq: 8, TimestampMS: groupNow})
	}}
	b, bLeases := acquiring(context.Background())
	committed := 0
	for _, j := range []*job{a, undone, never, leaving, forged, b} {
		j.committed = func() { committed++ }
	}
	cancel()
	together(t, p, a, undone, never, leaving, forged, b)
	for name, test := range map[string]struct {
		j    *job
		want error
	}{
		"first": {a, nil}, "undone": {undone, provider.ErrConflict}, "gone before": {never, context.Canceled},
		"gone meanwhile": {leaving, context.Canceled}, "not found": {forged, provider.ErrNotFound}, "last": {b, nil},
	} {
		if !errors.Is(test.j.err, test.want) {
			t.Errorf("%s: %v, want %v", name, test.j.err, test.want)
		}
	}
	if n := records(t, p); n != 3 || committed != 2 {
		t.Errorf("%d records and %d committed, want 3 and 2", n, committed)
	}
	if (*aLeases)[0].ID == (*bLeases)[0].ID {
		t.Error("one commit granted a slot twice")
	}
	if err := checkIndex(p); err != nil {
		t.Error(err)
	}
}

// An error of the database ends the transaction for all: after some of them
// SQLite has rolled back, and what follows would commit by itself.
func TestGroupFailsTogether(t *testing.T) {
	p := groupProvider(t)
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Fatal(err)
	}
	a, _ := acquiring(context.Background())
	broken := &job{ctx: context.Background(), op: func(t *transaction) error {
		_, err := t.exec("INSERT INTO pool (id, name, epoch_ms, bit_ts, levels) VALUES (1, 'x', 0, 0, 0)")
		return err
	}}
	b, _ := acquiring(context.Background())
	together(t, p, a, broken, b)
	for _, j := range []*job{a, broken, b} {
		if j.err == nil {
			t.Error("a job of the group reports success")
		}
	}
	if n := records(t, p); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Nobody is told of a grant before it is on the disk, whoever shares its commit.
func TestGroupCommitFails(t *testing.T) {
	p := groupProvider(t)
	stop := errors.New("the power fails")
	p.at = func(step string) error {
		if step == stepWritten {
			return stop
		}
		return nil
	}
	a, _ := acquiring(context.Background())
	b, _ := acquiring(context.Background())
	together(t, p, a, b)
	if !errors.Is(a.err, stop) || !errors.Is(b.err, stop) {
		t.Errorf("%v, %v", a.err, b.err)
	}
	p.at = func(string) error { return nil }
	if n := records(t, p); n != 0 {
		t.Errorf("%d records", n)
	}
}

// A full pool is an answer, to the one as to the other.
func TestGroupFull(t *testing.T) {
	p := groupProvider(t)
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 5, End: 6}
	var jobs []*job
	for range 3 {
		jobs = append(jobs, &job{ctx: context.Background(), op: func(t *transaction) error {
			_, err := t.acquire(terms, provider.AcquireRequest{})
			return err
		}})
	}
	together(t, p, jobs...)
	var full *provider.FullError
	if jobs[0].err != nil || !errors.As(jobs[1].err, &full) || !errors.As(jobs[2].err, &full) {
		t.Errorf("%v, %v, %v", jobs[0].err, jobs[1].err, jobs[2].err)
	}
	if n := records(t, p); n != 1 {
		t.Errorf("%d records", n)
	}
}

// Those that wait while another process has the lock leave when their time is
// up, and the others are served when it is free.
func TestGroupWaitsForTheLock(t *testing.T) {
	path := filepath.Join(memoryDir(t), "leases.db")
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	other := mustOpen(t, Config{Path: path, Services: defaultServices()})
	if _, err := submit(context.Background(), other, func() (struct{}, error) {
		_, err := other.session.exec("BEGIN IMMEDIATE")
		return struct{}{}, err
	}); err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(context.Background())
	impatient, _ := acquiring(gone)
	patient, leases := acquiring(context.Background())
	var all sync.WaitGroup
	all.Go(func() { together(t, p, impatient, patient) })
	leave()
	if _, err := submit(context.Background(), other, func() (struct{}, error) {
		_, err := other.session.exec("COMMIT")
		return struct{}{}, err
	}); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if !errors.Is(impatient.err, context.Canceled) || patient.err != nil || len(*leases) != 1 {
		t.Errorf("%v; %v, %v", impatient.err, patient.err, *leases)
	}
	if n := records(t, p); n != 1 {
		t.Errorf("%d records", n)
	}
}

// Callers at once share commits, and each gets a slot of its own.
func TestManyAcquireTogether(t *testing.T) {
	p := groupProvider(t)
	commits := 0
	p.at = func(step string) error {
		if step == stepCommitted {
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
