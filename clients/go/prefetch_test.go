package kazahana

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/wire"
)

// source counts up, and notes when each ID was asked for.
type source struct {
	mu    sync.Mutex
	last  uint64
	took  time.Duration
	err   error
	asked map[uint64]time.Time // by the first ID of a batch
	sizes []int
}

// fetch answers with runs of up to maxRun.
func (s *source) fetch(n int) (runs []wire.Range, err error) {
	began := time.Now()
	time.Sleep(s.took) // a bubble's time stands still while a mutex is waited for
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sizes = append(s.sizes, n)
	if s.err != nil {
		return nil, s.err
	}
	for left := n; left > 0; {
		run := wire.Range{Start: s.last + 1, Count: min(left, 1+rand.N(maxRun))}
		runs = append(runs, run)
		left -= run.Count
		for range run.Count {
			s.last++
			s.asked[s.last] = began
		}
	}
	return runs, nil
}

const maxRun = 40

// get is Client.NextID without the client.
func (p *prefetcher) get(ctx context.Context) (ID, error) {
	return (&Client{ahead: p}).NextID(ctx)
}

// batches are the sizes of those that were asked for.
func (s *source) batches() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sizes)
}

func newSource(took time.Duration) *source { return &source{took: took, asked: map[uint64]time.Time{}} }

// An ID is never older than the age allowed when it is handed out, whatever the
// pauses between calls.
func TestPrefetchedIDsAreFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxAge = 50 * time.Millisecond
		s := newSource(time.Millisecond)
		p := newPrefetcher(8, maxAge, s.fetch)
		var last ID
		for range 5000 {
			if rand.N(3) == 0 {
				time.Sleep(rand.N(60 * time.Millisecond))
			}
			id, err := p.get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if id <= last {
				t.Fatalf("%d after %d", id, last)
			}
			last = id
			s.mu.Lock()
			if age := time.Since(s.asked[uint64(id)]); age > maxAge {
				t.Fatalf("an ID of %v", age)
			}
			s.mu.Unlock()
		}
		if int(last) < 5100 {
			t.Errorf("the last ID is %d: nothing was thrown away", last)
		}
		p.close()
	})
}

// A suspended machine's monotonic clock stands still; the wall clock tells.
func TestPrefetchNoticesSuspend(t *testing.T) {
	s := newSource(0)
	p := newPrefetcher(64, time.Hour, s.fetch)
	if id, err := p.get(t.Context()); id != 1 || err != nil {
		t.Fatal(id, err)
	}
	for b := p.now.Load(); b != nil; b = b.rest {
		b.wallUntil = time.Now().Add(-time.Second).UnixNano()
	}
	for i := range wallEvery {
		id, err := p.get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if id > 64 {
			break
		}
		if i == wallEvery-1 {
			t.Errorf("%d IDs from before the suspend", wallEvery)
		}
	}
	p.close()
}

// A wall clock that was set back does not make IDs younger.
func TestPrefetchedIDsAgeWhateverTheWallClockSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := uint64(0)
		p := newPrefetcher(64, time.Second, func(n int) ([]wire.Range, error) {
			last += 1000
			return []wire.Range{{Start: last, Count: n}}, nil
		})
		for i := range uint64(wallEvery) {
			if id, err := p.get(t.Context()); uint64(id) != 1000+i || err != nil {
				t.Fatal(id, err)
			}
		}
		synctest.Wait() // the next answer is here, too
		for _, b := range []*batch{p.now.Load(), p.next} {
			b.wallUntil = math.MaxInt64
		}
		time.Sleep(time.Second + 1)
		if id, err := p.get(t.Context()); id < 3000 || err != nil {
			t.Errorf("after the maximal age came %d (%v), which was asked for before", id, err)
		}
		p.close()
	})
}

// What is left of an answer comes before the next one.
func TestAnAnswerIsUsedToItsEnd(t *testing.T) {
	p := newPrefetcher(8, time.Hour, newSource(0).fetch)
	far := time.Now().Add(time.Hour).UnixNano()
	p.now.Store(chain([]wire.Range{{Start: 1, Count: 1}, {Start: 10, Count: 1}}, time.Hour, far))
	p.now.Load().refillAt = -1
	for i, want := range []ID{1, 10, 100} {
		if id, err := p.get(t.Context()); id != want || err != nil {
			t.Errorf("%d, not %d (%v)", id, want, err)
		}
		if i == 0 {
			p.accept(chain([]wire.Range{{Start: 100, Count: 9}}, time.Hour, far), p.era)
		}
	}
	p.close()
}

func TestPrefetchSharedByGoroutines(t *testing.T) {
	s := newSource(0)
	p := newPrefetcher(16, time.Minute, s.fetch)
	const each, many = 5000, 8
	all := make([][]ID, many)
	var work sync.WaitGroup
	for i := range all {
		work.Go(func() {
			for range each {
				id, err := p.get(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				all[i] = append(all[i], id)
			}
			if !slices.IsSorted(all[i]) {
				t.Error("a goroutine's IDs do not ascend")
			}
		})
	}
	work.Wait()
	p.close()
	flat := slices.Concat(all...)
	slices.Sort(flat)
	if n := len(slices.Compact(flat)); n != each*many {
		t.Errorf("%d different IDs of %d", n, each*many)
	}
}

// IDs that were asked for another way are greater than all before, and less
// than all after.
func TestPrefetchKeepsTheOrder(t *testing.T) {
	d := newDaemon(t)
	c := d.client(WithPrefetch(64, time.Minute))
	var last ID
	for i := range 300 {
		var ids []ID
		var err error
		switch i % 10 {
		case 3:
			ids, err = c.NextIDs(t.Context(), 3)
		case 7:
			ids = make([]ID, 1)
			ids[0], err = c.NextID(t.Context(), ForService("default"))
		default:
			ids = make([]ID, 1)
			ids[0], err = c.NextID(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if id <= last {
				t.Fatalf("call %d: %d after %d", i, id, last)
			}
			last = id
		}
	}
}

// A batch that was asked for before a drop is not used after it.
func TestDropForgetsWhatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(time.Millisecond)
		p := newPrefetcher(8, time.Minute, s.fetch)
		var got atomic.Int64
		go func() {
			id, _ := p.get(t.Context())
			got.Store(int64(id))
		}()
		synctest.Wait() // the fetch is under way
		p.drop()
		time.Sleep(time.Second)
		if got.Load() != 9 {
			t.Errorf("after a drop came %d, of the batch asked for before", got.Load())
		}
		p.close()
	})
}

// An answer with another number of IDs is an error: were it taken for one, an empty
// one would be asked for again and again.
func TestMiscountedAnswers(t *testing.T) {
	for _, n := range []int{0, 1, 9} {
		wrong := scripted(t, answering(func(c *wire.ServerConn, r *wire.Request) bool {
			c.BeginArray(r.ID, n)
			c.AppendRange(1, n)
			return true
		}))
		if ids, err := newClient(t, wrong).NextIDs(t.Context(), 8); !errors.Is(err, ErrProtocol) {
			t.Errorf("%d of 8: %v, %v", n, ids, err)
		}
		if id, err := newClient(t, wrong, WithPrefetch(8, 0)).NextID(t.Context()); !errors.Is(err, ErrProtocol) {
			t.Errorf("%d of 8 ahead: %v, %v", n, id, err)
		}
	}
}

func TestPrefetchFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(time.Millisecond)
		s.err = errors.New("no")
		p := newPrefetcher(8, time.Minute, s.fetch)
		if _, err := p.get(t.Context()); !errors.Is(err, s.err) {
			t.Error(err)
		}
		s.err = nil
		if id, err := p.get(t.Context()); id != 1 || err != nil {
			t.Error(id, err)
		}
		p.close()
		if _, err := p.get(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// The next answer is fetched once a sixteenth of one is used, whatever runs it
// comes in.
func TestRefillIsAskedForOnce(t *testing.T) {
	for _, runs := range [][]wire.Range{
		{{Start: 1, Count: 160}},
		{{Start: 1, Count: 10}, {Start: 20, Count: 150}},
		{{Start: 1, Count: 5}, {Start: 20, Count: 5}, {Start: 30, Count: 1}, {Start: 40, Count: 149}},
		{{Start: 1, Count: 11}, {Start: 20, Count: 149}},
	} {
		var at []int64
		before := int64(0)
		for b := chain(runs, 0, 0); b != nil; b = b.rest {
			if b.refillAt >= 0 && b.refillAt < b.count {
				at = append(at, before+b.refillAt)
			}
			before += b.count
		}
		if before != 160 || !slices.Equal(at, []int64{10}) {
			t.Errorf("%v: %d IDs, a refill with %v", runs, before, at)
		}
	}
}

// Batches grow while they are used up at once, and shrink again.
func TestBatchesGrowAndShrink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(0)
		p := newPrefetcher(8, time.Minute, s.fetch)
		for range 10_000 {
			if _, err := p.get(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if biggest := slices.Max(s.batches()); biggest != 8*maxGrowth {
			t.Errorf("the biggest batch has %d", biggest)
		}
		for range 20_000 {
			time.Sleep(time.Millisecond)
			if _, err := p.get(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		p.close()
		if all := s.batches(); all[len(all)-1] != 8 {
			t.Errorf("the last batch has %d", all[len(all)-1])
		}
	})
}

// A waiting call gets an ID of the answer that comes, however fast others take IDs. With one processor, a goroutine that takes IDs without a pause left the
// others none.
func TestWaitersAreServedFirst(t *testing.T) {
	const waiters = 3
	p := newPrefetcher(64, time.Hour, func(int) ([]wire.Range, error) {
		t.Error("it fetches again")
		return nil, errors.New("no")
	})
	f := &fetching{done: make(chan struct{})}
	p.fetching = f // as if it were on its way
	got := make(chan ID, waiters)
	for range waiters {
		go func() {
			id, err := p.get(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- id
		}()
	}
	for registered := 0; registered < waiters; runtime.Gosched() {
		p.mu.Lock()
		registered = len(f.queue)
		p.mu.Unlock()
	}
	answer := chain([]wire.Range{{Start: 1, Count: 2}, {Start: 11, Count: 2}}, time.Hour, math.MaxInt64)
	answer.refillAt = -1
	p.accept(answer, p.era)
	if id, ok := p.take(); !ok || id != 12 {
		t.Errorf("%d, %v beside %d who wait", id, ok, waiters)
	}
	if id, ok := p.take(); ok {
		t.Errorf("%d is one too many", id)
	}
	close(f.done)
	seen := map[ID]bool{}
	for range waiters {
		seen[<-got] = true
	}
	if len(seen) != waiters || !seen[1] || !seen[2] || !seen[11] {
		t.Errorf("they got %v", seen)
	}
}
