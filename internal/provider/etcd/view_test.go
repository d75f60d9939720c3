package etcd

import (
	"errors"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// viewOf waits until the provider's view of the default pool is loaded.
func viewOf(t testing.TB, p *Provider) *view {
	t.Helper()
	pl := p.pool(provider.DefaultTerms())
	for deadline := time.Now().Add(callTime); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := provider.Verify(within(t, callTime), p, "", nil); err != nil {
			t.Fatal(err)
		}
		p.useView(pl, time.Now())
		pl.mu.Lock()
		v := pl.view
		pl.mu.Unlock()
		if v.revision() > 0 {
			return v
		}
	}
	t.Fatal("there is no view")
	return nil
}

func acquireOne(t testing.TB, p *Provider) lease.Lease {
	t.Helper()
	leases, err := p.Acquire(within(t, 10*time.Second), provider.AcquireRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return leases[0]
}

// A daemon that acquires now and then follows nothing; a lease server does.
func TestViewIsForThoseWhoAcquireOften(t *testing.T) {
	p := mustOpen(t, config(t, defaultServices(), nil))
	pl := p.pool(provider.DefaultTerms())
	now := time.Now()
	for range 5 {
		now = now.Add(viewIdle + time.Second)
		if v := p.useView(pl, now); v != nil {
			t.Fatal("there is a view although acquires are rare")
		}
	}
	if p.useView(pl, now.Add(time.Second)) == nil {
		t.Error("there is no view although acquires are frequent")
	}
}

// Changes that a view was never told of cost races, and grant nothing twice,
// even where it says that it knows everything.
func TestViewThatMissedChangesGrantsNothingTwice(t *testing.T) {
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 0, End: 64}
	coarse := terms.WithBitSeq(10)
	coarse.IDs = provider.IDRange{Low: 0, End: 16}
	services := provider.Services{Default: terms, Named: map[string]provider.Terms{"coarse": coarse}}
	cfg := config(t, services, nil)
	p, q := mustOpen(t, cfg), mustOpen(t, cfg)
	all := []lease.Lease{acquireOne(t, p)}
	v := viewOf(t, p)
	for i := range 24 {
		by, service := q, ""
		if i%2 == 1 {
			by = p
			v.mu.Lock()
			v.marks = v.marks[:i%3*len(v.marks)/3] // most of it was missed
			v.line = pool.NewLine(pool.EmptyLine(v.pool.timeline), poolMarks(v.marks))
			v.mu.Unlock()
		}
		if i%3 == 0 {
			service = "coarse"
		}
		leases, err := by.Acquire(within(t, 10*time.Second), provider.AcquireRequest{Service: service})
		var full *provider.FullError
		var busy *provider.BusyError
		if err != nil && !errors.As(err, &full) && !errors.As(err, &busy) {
			t.Fatal(err)
		}
		all = append(all, leases...)
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.Slot().Overlaps(b.Slot()) {
				t.Errorf("%v and %v overlap", a, b)
			}
		}
	}
}

// A record that was never seen overlaps the slot: finer, coarser, or of a
// bit_seq that nobody used when the state was read.
func TestTransactionSeesWhatTheSearchDidNot(t *testing.T) {
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 5, End: 6}
	for name, other := range map[string]struct {
		bitSeq int
		id     int64
		known  bool // the bit_seq was in use before
	}{
		"the same":            {8, 5, true},
		"finer":               {6, 21, true},
		"coarser":             {10, 1, true},
		"new finer bit_seq":   {6, 20, false},
		"new coarser bit_seq": {9, 2, false},
	} {
		others := terms.WithBitSeq(other.bitSeq)
		others.IDs = provider.IDRange{Low: other.id, End: other.id + 1}
		elsewhere := others
		elsewhere.IDs = provider.IDRange{Low: 60, End: 61}
		services := provider.Services{Default: terms, Named: map[string]provider.Terms{"other": others, "elsewhere": elsewhere}}
		cfg := config(t, services, nil)
		p, q := mustOpen(t, cfg), mustOpen(t, cfg)
		ctx := within(t, 10*time.Second)
		if other.known {
			if _, err := q.Acquire(ctx, provider.AcquireRequest{Service: "elsewhere"}); err != nil {
				t.Fatal(err)
			}
		}
		taken := false
		p.at = func(step string) error {
			if step == stepChosen && !taken {
				taken = true
				if _, err := q.Acquire(ctx, provider.AcquireRequest{Service: "other"}); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			return nil
		}
		leases, err := p.Acquire(ctx, provider.AcquireRequest{})
		if err == nil {
			t.Errorf("%s: %v was granted over it", name, leases)
		}
	}
}

// The pool is removed between looking and granting, and set up anew with
// another timeline.
func TestPoolIsReplacedMeanwhile(t *testing.T) {
	cfg := config(t, defaultServices(), nil)
	p := mustOpen(t, cfg)
	acquireOne(t, p)
	p.at = func(string) error {
		p.at = func(string) error { return nil }
		_, err := p.conn.KV.Put(within(t, callTime), cfg.Prefix+"default/pool", encode(poolRecord{EpochMS: 1, BitTS: 41}))
		return err
	}
	_, err := p.Acquire(within(t, callTime), provider.AcquireRequest{})
	if err == nil || !strings.Contains(err.Error(), "1970-01-01") || !strings.Contains(err.Error(), "2026-01-01") {
		t.Errorf("the error is %v, want one that names both epochs", err)
	}
	if err := p.Reach(within(t, callTime)); err == nil || !strings.Contains(err.Error(), "1970-01-01") {
		t.Errorf("Reach: %v", err)
	}
}

// TestLargePoolIsScanned: a pool that no view holds works all the same.
func TestLargePoolIsScanned(t *testing.T) {
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1e9)
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 0, End: 3000}
	p := mustOpen(t, config(t, provider.Services{Default: terms}, clock.Load))
	pl := p.pool(provider.DefaultTerms())
	pl.noViewBefore = time.Now().Add(time.Hour)
	seen := map[int64]bool{}
	for len(seen) < 3000 {
		leases, err := p.Acquire(within(t, 10*time.Second), provider.AcquireRequest{ThroughputPerMS: 256 * 256})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range leases {
			if seen[l.ID] {
				t.Fatalf("%v was granted twice", l)
			}
			seen[l.ID] = true
		}
		clock.Add(1000)
	}
	weighed := 0
	p.at = func(step string) error {
		if step == stepWeighing {
			weighed++
		}
		return nil
	}
	_, err := p.Acquire(within(t, 10*time.Second), provider.AcquireRequest{})
	full, ok := err.(*provider.FullError)
	if !ok || full.NextEndMS != snowflake.DefaultEpochMS+1e9+2*terms.Term.Milliseconds() {
		t.Errorf("the error is %+v", err)
	}
	if want := bits.Len(3000 / scanPage); weighed > want { // of twice as many records each time
		t.Errorf("the scan of 3000 records looked at all that it had read %d times, want %d at most", weighed, want)
	}
	// Round and round: the longest free one each time, found within a page or two.
	clock.Add(time.Hour.Milliseconds())
	last := acquireOne(t, p)
	for range 20 {
		l := acquireOne(t, p)
		if l.ID != (last.ID+1)%3000 {
			t.Errorf("machine ID %d follows %d", l.ID, last.ID)
		}
		last = l
	}
}

// The note of a bit_seq is removed between looking and granting: without it,
// others would not look for the record. It is written anew.
func TestLevelIsRemovedMeanwhile(t *testing.T) {
	p := mustOpen(t, config(t, defaultServices(), nil))
	acquireOne(t, p)
	keys := p.pool(provider.DefaultTerms()).keys
	p.at = func(string) error {
		p.at = func(string) error { return nil }
		_, err := p.conn.KV.Delete(within(t, callTime), keys.level(8))
		return err
	}
	acquireOne(t, p)
	if levels, _, err := p.poolLevels(within(t, callTime), keys); err != nil || len(levels) != 1 {
		t.Errorf("a lease was granted, and its bit_seq is not noted: %v, %v", levels, err)
	}
}

// A store that was set up anew from a backup is behind what the view has seen.
func TestStoreGoesBack(t *testing.T) {
	p := mustOpen(t, config(t, defaultServices(), nil))
	acquireOne(t, p)
	v := viewOf(t, p)
	v.mu.Lock()
	v.rev += 1 << 40
	v.mu.Unlock()
	acquireOne(t, p)
	for deadline := time.Now().Add(callTime); ; time.Sleep(time.Millisecond) {
		v.mu.Lock()
		ended := v.ended
		v.mu.Unlock()
		if ended {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the view is still in use")
		}
	}
}

// Two changes of one record at the same time: one is made on what the other
// has left.
func TestRewriteIsMadeOnWhatWasRead(t *testing.T) {
	p := mustOpen(t, config(t, defaultServices(), nil))
	l := acquireOne(t, p)
	keys := p.pool(provider.DefaultTerms()).keys
	ctx := within(t, callTime)
	before, err := p.slots(ctx, keys, []pool.Key{pool.KeyOf(l)})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UnixMilli()
	if err := p.Release(ctx, provider.ReleaseRequest{ID: l.ID, BitSeq: 8, TimestampMS: now, Signature: lease.Sign(l.Secret, l.ID, now)}); err != nil {
		t.Fatal(err)
	}
	if done, err := p.rewrite(ctx, p.conn.Call, keys, before[0].record, before[0].rev); done || err != nil {
		t.Errorf("a record was replaced that had changed: %v, %v", done, err)
	}
	if lost, err := provider.Verify(ctx, p, "", []lease.Lease{l}); err != nil || len(lost) != 1 {
		t.Errorf("the release is gone: %v, %v", lost, err)
	}
}

// A view that has not come as far as the latest change does not say that the
// pool is full, nor whose turn it is.
func TestViewThatLagsIsNotBelieved(t *testing.T) {
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 0, End: 2}
	cfg := config(t, provider.Services{Default: terms}, nil)
	p, q := mustOpen(t, cfg), mustOpen(t, cfg)
	a, _ := acquireOne(t, p), acquireOne(t, p)
	v := viewOf(t, p)
	v.mu.Lock()
	lagging := &view{pool: v.pool, end: func() {}, marks: slices.Clone(v.marks), line: pool.NewLine(pool.EmptyLine(v.pool.timeline), poolMarks(v.marks)), rev: v.rev, moved: make(chan struct{})}
	v.mu.Unlock()
	v.end()
	for !func() bool { v.pool.mu.Lock(); defer v.pool.mu.Unlock(); return v.pool.view == nil }() {
		time.Sleep(time.Millisecond)
	}
	v.pool.mu.Lock()
	v.pool.view = lagging // nobody tells it anything
	v.pool.mu.Unlock()
	at := time.Now().UnixMilli() - 1000
	if err := q.Release(within(t, callTime), provider.ReleaseRequest{ID: a.ID, BitSeq: 8, TimestampMS: at, Signature: lease.Sign(a.Secret, a.ID, at)}); err != nil {
		t.Fatal(err)
	}
	if l := acquireOne(t, p); l.ID != a.ID {
		t.Errorf("%v was granted, want machine ID %d", l, a.ID)
	}
}

// While a lease is being extended, a host whose clock is ahead is granted a
// slot of another layout that overlaps it.
func TestExtensionSeesWhatWasNotRead(t *testing.T) {
	for _, bitSeq := range []int{6, 10} {
		terms := provider.DefaultTerms()
		terms.IDs = provider.IDRange{Low: 5, End: 6}
		other := terms.WithBitSeq(bitSeq)
		other.IDs = provider.IDRange{Low: 5 << 8 >> bitSeq, End: 5<<8>>bitSeq + 1}
		cfg := config(t, provider.Services{Default: terms, Named: map[string]provider.Terms{"other": other}}, nil)
		p := mustOpen(t, cfg)
		cfg.NowMS = func() int64 { return time.Now().Add(time.Hour).UnixMilli() }
		q := mustOpen(t, cfg)
		l := acquireOne(t, p)
		p.at = func(string) error {
			p.at = func(string) error { return nil }
			_, err := q.Acquire(within(t, callTime), provider.AcquireRequest{Service: "other"})
			return err
		}
		if longer, err := provider.Extend(within(t, callTime), p, "", l); !errors.Is(err, provider.ErrConflict) {
			t.Errorf("beside a grant of bit_seq %d: %v, %v", bitSeq, longer, err)
		}
	}
}
