package etcd

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func acquireOne(t testing.TB, p *Provider) lease.Lease {
	t.Helper()
	leases, err := p.Acquire(testContext(t), provider.AcquireRequest{})
	must.Succeed(t, err)
	return leases[0]
}

// of is terms that grant some machine IDs.
func of(terms provider.Terms, low, end int64) provider.Terms {
	terms.IDs = provider.IDRange{Low: low, End: end}
	return terms
}

func giveBack(t testing.TB, p *Provider, l lease.Lease, atMS int64) {
	t.Helper()
	must.Succeed(t, p.Release(testContext(t), providertest.SignedRelease(l, atMS)))
}

// A record that the search did not see overlaps the slot: finer, coarser, or of a bit_seq
// that was not in use when the state was read.
func TestTransactionSeesWhatTheSearchDidNot(t *testing.T) {
	terms := of(provider.DefaultTerms(), 5, 6)
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
		services := provider.Services{Default: terms, Named: map[string]provider.Terms{
			"other":     of(terms.WithBitSeq(other.bitSeq), other.id, other.id+1),
			"elsewhere": of(terms.WithBitSeq(other.bitSeq), 60, 61),
		}}
		cfg := config(t, services, nil)
		p, q := mustOpen(t, cfg), mustOpen(t, cfg)
		ctx := testContext(t)
		if other.known {
			if _, err := q.Acquire(ctx, provider.AcquireRequest{Service: "elsewhere"}); err != nil {
				t.Fatal(err)
			}
		}
		p.atFirst(stepChosen, func() error {
			_, err := q.Acquire(ctx, provider.AcquireRequest{Service: "other"})
			return err
		})
		if leases, err := p.Acquire(ctx, provider.AcquireRequest{}); err == nil {
			t.Errorf("%s: %v was granted over it", name, leases)
		}
	}
}

// atFirst calls f the first time that the step is reached.
func (p *Provider) atFirst(step string, f func() error) {
	p.at = func(at string) error {
		if at != step {
			return nil
		}
		p.at = func(string) error { return nil }
		return f()
	}
}

// The pool is set up anew between looking and granting, with another timeline.
func TestPoolIsReplacedMeanwhile(t *testing.T) {
	cfg := config(t, defaultServices(), nil)
	p := mustOpen(t, cfg)
	acquireOne(t, p)
	p.atFirst(stepChosen, func() error {
		_, err := p.conn.KV.Put(testContext(t), cfg.Prefix+"default/pool", encode(poolRecord{EpochMS: 1, BitTS: 41}))
		return err
	})
	_, err := p.Acquire(testContext(t), provider.AcquireRequest{})
	if err == nil || !strings.Contains(err.Error(), "1970-01-01") || !strings.Contains(err.Error(), "2026-01-01") {
		t.Errorf("the error is %v, want one that names both epochs", err)
	}
	if err := p.Reach(testContext(t)); err == nil || !strings.Contains(err.Error(), "1970-01-01") {
		t.Errorf("Reach: %v", err)
	}
}

// The note of a bit_seq is removed between looking and granting: without it,
// others would not look for the record. It is written anew.
func TestLevelIsRemovedMeanwhile(t *testing.T) {
	p := mustOpen(t, config(t, defaultServices(), nil))
	acquireOne(t, p)
	keys := p.pool(provider.DefaultTerms()).keys
	p.atFirst(stepChosen, func() error {
		_, err := p.conn.KV.Delete(testContext(t), keys.level(8))
		return err
	})
	acquireOne(t, p)
	if levels, _, err := p.poolLevels(testContext(t), keys); err != nil || len(levels) != 1 {
		t.Errorf("a lease was granted, and its bit_seq is not noted: %v, %v", levels, err)
	}
}

// Two changes of one record at the same time: one is made on what the other has left.
func TestRewriteIsMadeOnWhatWasRead(t *testing.T) {
	p := mustOpen(t, config(t, defaultServices(), nil))
	l := acquireOne(t, p)
	pl := p.pool(provider.DefaultTerms())
	before, err := p.slots(testContext(t), pl.keys, []pool.Key{pool.KeyOf(l)})
	must.Succeed(t, err)
	giveBack(t, p, l, time.Now().UnixMilli())
	if done, err := p.rewrite(testContext(t), p.conn.Commit, pl, before[0].record.record(pl.timeline), before[0]); done || err != nil {
		t.Errorf("a record was replaced that had changed: %v, %v", done, err)
	}
	if lost, err := provider.Verify(testContext(t), p, "", []lease.Lease{l}); err != nil || len(lost) != 1 {
		t.Errorf("the release is gone: %v, %v", lost, err)
	}
}

// While a lease is being extended, a host whose clock is ahead is granted a
// slot of another layout that overlaps it.
func TestExtensionSeesWhatWasNotRead(t *testing.T) {
	for _, bitSeq := range []int{6, 10} {
		terms := of(provider.DefaultTerms(), 5, 6)
		first := int64(5 << 8 >> bitSeq)
		cfg := config(t, provider.Services{Default: terms, Named: map[string]provider.Terms{"other": of(terms.WithBitSeq(bitSeq), first, first+1)}}, nil)
		p := mustOpen(t, cfg)
		cfg.NowMS = func() int64 { return time.Now().Add(time.Hour).UnixMilli() }
		q := mustOpen(t, cfg)
		l := acquireOne(t, p)
		p.atFirst(stepExtending, func() error {
			_, err := q.Acquire(testContext(t), provider.AcquireRequest{Service: "other"})
			return err
		})
		if longer, err := provider.Extend(testContext(t), p, "", l); !errors.Is(err, provider.ErrConflict) {
			t.Errorf("beside a grant of bit_seq %d: %v, %v", bitSeq, longer, err)
		}
	}
}

// The queue of a process does not say that the pool is full, nor whose turn it is, when
// another process has changed a slot; and nothing of it is granted by a clock that was
// put back behind it, or after the store was restored.
func TestQueueIsNotBelieved(t *testing.T) {
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1e9)
	cfg := config(t, provider.Services{Default: of(provider.DefaultTerms(), 0, 6)}, clock.Load)
	p, q := mustOpen(t, cfg), mustOpen(t, cfg)
	a := acquireOne(t, p) // the queue has the other five
	b := acquireOne(t, q)
	p.contended = func() { t.Error("the first one of the queue was tried, which another process has by now") }
	c := acquireOne(t, p)
	if b.ID != (a.ID+1)%6 || c.ID != (a.ID+2)%6 {
		t.Errorf("machine IDs %d, %d and %d were granted, want each after the one before", a.ID, b.ID, c.ID)
	}
	d := []lease.Lease{acquireOne(t, q), acquireOne(t, q), acquireOne(t, q)}
	noneTwice(t, append(d, a, b, c))
	giveBack(t, q, a, clock.Load())
	clock.Add(1000)
	if got := acquireOne(t, p); got.ID != a.ID {
		t.Errorf("machine ID %d was granted, want %d, the one that was given back", got.ID, a.ID)
	}

	clock.Add(time.Hour.Milliseconds())
	acquireOne(t, p) // all have ended: the queue has five
	clock.Add(-2 * time.Hour.Milliseconds())
	var full *provider.FullError
	if _, err := p.Acquire(testContext(t), provider.AcquireRequest{}); !errors.As(err, &full) {
		t.Errorf("an hour before all leases end: %v, want a FullError", err)
	}

	pl := p.pool(provider.DefaultTerms())
	clock.Add(3 * time.Hour.Milliseconds())
	acquireOne(t, p)
	at := func(nowMS, changes int64) bool {
		a := p.acquisition(provider.DefaultTerms(), provider.AcquireRequest{}, nowMS)
		for ring, q := range pl.queues {
			a.ring = ring
			return a.inOrder(&state{changes: q.changes + changes})
		}
		return false
	}
	if now := clock.Load(); !at(now, 0) || !at(now+maxQueueAge.Milliseconds(), 0) || at(now+maxQueueAge.Milliseconds()+1, 0) || at(now-1, 0) || at(now, -1) {
		t.Error("a queue is believed for another time, or where the store has seen fewer changes")
	}
	pl.rev += 1 << 40
	st, err := p.acquisition(provider.DefaultTerms(), provider.AcquireRequest{}, clock.Load()).read(testContext(t))
	if err != nil || len(pl.queues) != 0 {
		t.Errorf("the store is at %d, behind what was seen, and the queue is still in use (%v)", st.rev, err)
	}
}

// An acquire that loses the race for one machine ID goes on with another of its queue, and
// reads nothing again, if the queue is long enough for thousands of hosts that lose the
// same race. If not, it looks at more of the pool once.
// Seed 003-4.4-1.
func TestLostRace(t *testing.T) {
	for cursor, looks := range map[string]int{"100": 1, "5000": 2} {
		cfg := config(t, defaultServices(), nil)
		p, q := mustOpen(t, cfg), mustOpen(t, cfg)
		acquireOne(t, mustOpen(t, cfg)) // the pool is there
		a := p.acquisition(provider.DefaultTerms(), provider.AcquireRequest{RequestID: "r"}, time.Now().UnixMilli())
		if _, err := p.conn.KV.Put(testContext(t), a.pool.keys.cursor(8, a.ring.IDs), cursor); err != nil {
			t.Fatal(err)
		}
		races := 0
		p.contended = func() { races++ }
		p.atFirst(stepChosen, func() error {
			acquireOne(t, q)
			return nil
		})
		leases, err := a.run(testContext(t))
		if err != nil || len(leases) != 1 || races != 1 || a.attempts != looks {
			t.Errorf("from %s: %v and the error %v after %d lost races and %d looks at the pool, want a lease after 1 and %d", cursor, leases, err, races, a.attempts, looks)
		}
		if rest := len(a.pool.queues[a.ring].ids); rest < spread {
			t.Errorf("from %s: the loser had %d machine IDs to choose from, want %d", cursor, rest, spread)
		}
	}
}

// Where little is left, the queue may have what an acquire is trying already. It tries
// nothing twice in one transaction.
func TestQueueHasWhatIsTried(t *testing.T) {
	cfg := config(t, provider.Services{Default: of(provider.DefaultTerms(), 0, 4)}, nil)
	p, q := mustOpen(t, cfg), mustOpen(t, cfg)
	a := p.acquisition(cfg.Services.Default, provider.AcquireRequest{ThroughputPerMS: 3 * 256, RequestID: "r"}, time.Now().UnixMilli())
	var first lease.Lease
	var others []lease.Lease
	p.atFirst(stepChosen, func() error {
		var tried []candidate
		for key := range a.pool.busy {
			tried = append(tried, candidate{id: key.ID()})
		}
		a.pool.queues[a.ring].ids = tried
		for !a.pool.busy[a.ring.Key(first.ID)] || first.Created == 0 { // at the second try, at the latest
			others = append(others, first)
			first = acquireOne(t, q)
		}
		return nil
	})
	leases, err := a.run(testContext(t))
	if err != nil || len(leases) == 0 {
		t.Errorf("%v and the error %v, want leases", leases, err)
	}
	noneTwice(t, append(append(leases, first), others[1:]...))
}

// A scan from any cursor finds what the line of all records says, and what each is free by.
func TestScanAgreesWithTheWholeLine(t *testing.T) {
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1e9)
	base := provider.DefaultTerms()
	base.Term, base.Quarantine = time.Minute, time.Minute
	services := provider.Services{Default: base, Named: map[string]provider.Terms{
		"coarse": base.WithBitSeq(10), "wide": base.WithBitSeq(14), "some": of(base, 100, 900),
	}}
	p := mustOpen(t, config(t, services, clock.Load))
	random := rand.New(rand.NewPCG(5, 6))
	ctx := testContext(t)
	for range 60 {
		service := []string{"", "", "coarse", "some"}[random.IntN(4)]
		_, err := p.Acquire(ctx, provider.AcquireRequest{Service: service, ThroughputPerMS: random.Int64N(256 * 60)})
		var full *provider.FullError // where a pool begins at random, the 800 may all be taken
		if err != nil && !errors.As(err, &full) {
			t.Fatal(err)
		}
		clock.Add(random.Int64N(3000))
	}
	keys := p.pool(base).keys
	all, _, err := p.page(ctx, keys, keys.slots(), after(keys.slots()), 0, 0)
	must.Succeed(t, err)
	var marks []mark
	for _, s := range all {
		marks = append(marks, s.mark())
	}
	slices.SortFunc(marks, compareMarks)
	whole := pool.NewLine(pool.EmptyLine(base.Timeline), poolMarks(marks))
	for _, service := range []string{"", "coarse", "wide", "some"} {
		terms := services.Of(service)
		for _, cursor := range []int64{terms.Range().Low, terms.Range().Low + terms.Range().Count()/2, terms.Range().End - 1} {
			for _, ahead := range []int64{-60_000, 0, 60_000, 120_000} {
				a := p.acquisition(terms, provider.AcquireRequest{}, clock.Load()+ahead)
				a.attempts, a.need = 2, 1<<20 // so that it reads all
				st, err := a.read(ctx)
				must.Succeed(t, err)
				st.cursor = cursor
				want, nextMS, err := a.ring.Choose(whole, cursor, 20, a.now)
				must.Succeed(t, err)
				found, err := a.find(ctx, st)
				if full, ok := errors.AsType[*provider.FullError](err); ok && len(want) == 0 && full.NextEndMS == nextMS {
					continue
				}
				if err != nil || len(found) < len(want) {
					t.Fatalf("%q from %d, %d ms ahead: %d found and the error %v, want %v", service, cursor, ahead, len(found), err, want)
				}
				for i, c := range found[:len(want)] {
					b := basisOf(marks, a.ring.Key(want[i]), st.levels)
					if c.id != want[i] || c.number != b.number || c.inside != b.inside || c.until != b.until || !slices.Equal(c.coarser, b.coarser) {
						t.Errorf("%q from %d, %d ms ahead: %+v, want machine ID %d by %+v", service, cursor, ahead, c, want[i], b)
					}
				}
				a.free(found)
			}
		}
	}
}

// In a pool of several pages the longest free one is found each time, and a full one says
// when the first lease ends.
func TestPoolOfSeveralPages(t *testing.T) {
	var clock atomic.Int64
	began := int64(snowflake.DefaultEpochMS + 1e9)
	clock.Store(began)
	terms := of(provider.DefaultTerms(), 0, 3000)
	p := mustOpen(t, config(t, provider.Services{Default: terms}, clock.Load))
	var all []lease.Lease
	for len(all) < 3000 {
		leases, err := p.Acquire(testContext(t), provider.AcquireRequest{ThroughputPerMS: 256 * 256})
		must.Succeed(t, err)
		all = append(all, leases...)
		clock.Add(1000)
	}
	noneTwice(t, all)
	_, err := p.Acquire(testContext(t), provider.AcquireRequest{})
	if full, ok := err.(*provider.FullError); !ok || full.NextEndMS != began+2*terms.Term.Milliseconds() {
		t.Errorf("the error is %+v", err)
	}
	clock.Add(time.Hour.Milliseconds())
	last := acquireOne(t, p)
	for i := range 20 {
		if i%4 == 3 {
			p.pool(terms).dropQueues()
		}
		l := acquireOne(t, p)
		if l.ID != (last.ID+1)%3000 {
			t.Errorf("machine ID %d follows %d", l.ID, last.ID)
		}
		last = l
	}
}
