//go:build go1.25

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
)

// source counts up, and notes when each ID was asked for.
type source struct {
	mu    sync.Mutex
	last  ID
	took  time.Duration
	err   error
	asked map[ID]time.Time // by the first ID of a batch
	sizes []int
}

func (s *source) fetch(n int) (ids []ID, err error) {
	began := time.Now()
	time.Sleep(s.took) // a bubble's time stands still while a mutex is waited for
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sizes = append(s.sizes, n)
	if s.err != nil {
		return nil, s.err
	}
	ids = count(s.last+1, n)
	for _, s.last = range ids {
		s.asked[s.last] = began
	}
	return ids, nil
}

// count returns n IDs from the first one on.
func count(first ID, n int) (ids []ID) {
	for i := range n {
		ids = append(ids, first+ID(i))
	}
	return ids
}

const getTimeout = 10 * time.Second

// alone is a prefetcher whose client has no daemon.
type alone struct {
	*prefetcher
	client *Client
}

func newAhead(least int, maxAge time.Duration, fetch func(n int) ([]ID, error)) alone {
	p := newPrefetcher(least, maxAge, func(_ context.Context, _ time.Duration, n int) ([]ID, error) { return fetch(n) })
	return alone{p, &Client{ahead: p, timeout: getTimeout}}
}

func (a alone) get(ctx context.Context) (ID, error) { return a.client.NextID(ctx) }

// batches are the requested sizes.
func (s *source) batches() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sizes)
}

func newSource(took time.Duration) *source { return &source{took: took, asked: map[ID]time.Time{}} }

// An ID is never older than the age allowed when it is handed out, with any pauses between calls.
func TestPrefetchedIDsAreFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxAge = 50 * time.Millisecond
		s := newSource(time.Millisecond)
		p := newAhead(8, maxAge, s.fetch)
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
			if age := time.Since(s.asked[id]); age > maxAge {
				t.Fatalf("an ID of %v", age)
			}
			s.mu.Unlock()
		}
		if int(last) < 5100 {
			t.Errorf("the last ID is %d: nothing was thrown away", last)
		}
	})
}

// An ID that was asked for after the call began is used, even if the answer takes longer
// than the maximal age. A call that began later waits for the next answer.
func TestSlowAnswersAreUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, fetches := newSource(time.Second), 0
		p := newAhead(8, 50*time.Millisecond, func(n int) ([]ID, error) {
			if fetches++; fetches > 2 {
				return nil, errors.New("asked once more")
			}
			return s.fetch(n)
		})
		later := make(chan ID)
		go func() {
			time.Sleep(time.Second / 2)
			id, err := p.get(t.Context())
			if err != nil {
				t.Error(err)
			}
			later <- id
		}()
		if id, err := p.get(t.Context()); id != 1 || err != nil {
			t.Error(id, err)
		}
		if id := <-later; id != 9 {
			t.Errorf("an ID of half a second, %d", id)
		}
	})
}

// The time limit of a call counts from its begin, however many answers are thrown away.
func TestDeadlineOverSeveralAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, late := time.Now(), errors.New("late")
		var p *prefetcher
		p = newPrefetcher(8, time.Hour, func(_ context.Context, left time.Duration, n int) ([]ID, error) {
			const takes = getTimeout * 2 / 3
			time.Sleep(min(takes, left))
			if left < takes {
				return nil, late
			}
			p.drop() // as another call that asks for IDs
			return count(1, n), nil
		})
		c := &Client{ahead: p, timeout: getTimeout}
		if id, err := c.NextID(t.Context()); !errors.Is(err, late) || time.Since(began) != getTimeout {
			t.Errorf("%d, %v after %v", id, err, time.Since(began))
		}
	})
}

// A suspended machine's monotonic clock stands still; the wall clock tells.
func TestPrefetchNoticesSuspend(t *testing.T) {
	s := newSource(0)
	p := newAhead(64, time.Hour, s.fetch)
	if id, err := p.get(t.Context()); id != 1 || err != nil {
		t.Fatal(id, err)
	}
	p.now.Load().wallUntil = time.Now().Add(-time.Second).UnixNano()
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
}

// A wall clock that was set back does not make IDs younger.
func TestPrefetchedIDsAgeWhateverTheWallClockSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := ID(0)
		p := newAhead(64, time.Second, func(n int) ([]ID, error) {
			last += 1000
			return count(last, n), nil
		})
		for i := range ID(wallEvery) {
			if id, err := p.get(t.Context()); id != 1000+i || err != nil {
				t.Fatal(id, err)
			}
		}
		p.now.Load().wallUntil = math.MaxInt64
		time.Sleep(time.Second + 1)
		if id, err := p.get(t.Context()); id < 2000 || err != nil {
			t.Errorf("after the maximal age came %d (%v), which was asked for before", id, err)
		}
	})
}

// The rest of an answer comes before the next one, with any gaps.
func TestAnAnswerIsUsedToItsEnd(t *testing.T) {
	answers := [][]ID{{1, 10}, {100}}
	p := newAhead(8, time.Hour, func(int) (ids []ID, err error) {
		ids, answers = answers[0], answers[1:]
		return ids, nil
	})
	for _, want := range []ID{1, 10, 100} {
		if id, err := p.get(t.Context()); id != want || err != nil {
			t.Errorf("%d, not %d (%v)", id, want, err)
		}
	}
}

func TestPrefetchSharedByGoroutines(t *testing.T) {
	s := newSource(0)
	p := newAhead(16, time.Minute, s.fetch)
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
		p := newAhead(8, time.Minute, s.fetch)
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
	})
}

// An answer with another number of IDs is an error: were it taken for one, an empty
// one would be asked for again and again.
func TestMiscountedAnswers(t *testing.T) {
	for _, n := range []int{0, 1, 9} {
		wrong := scripted(t, answering(func(c *peer, r *message) bool {
			ids := make([]any, n)
			for i := range ids {
				ids[i] = i + 1
			}
			return c.Reply(r.ID, ids)
		}))
		if ids, err := newClient(t, wrong).NextIDs(t.Context(), 8); !errors.Is(err, ErrProtocol) {
			t.Errorf("%d of 8: %v, %v", n, ids, err)
		}
		if id, err := newClient(t, wrong, WithPrefetch(8, 0)).NextID(t.Context()); !errors.Is(err, ErrProtocol) {
			t.Errorf("%d of 8 ahead: %v, %v", n, id, err)
		}
		if values, err := newClient(t, wrong).NextSequences(t.Context(), "k", 8); !errors.Is(err, ErrProtocol) {
			t.Errorf("%d of 8 of a sequence: %v, %v", n, values, err)
		}
	}
}

// The greatest ID has no next one, however integers overflow.
func TestPrefetchedIDsEnd(t *testing.T) {
	beyond := scripted(t, answering(func(c *peer, r *message) bool {
		return c.Reply(r.ID, []any{int64(math.MaxInt64), int64(math.MinInt64)})
	}))
	if id, err := newClient(t, beyond, WithPrefetch(2, 0)).NextID(t.Context()); !errors.Is(err, ErrProtocol) {
		t.Error(id, err)
	}
}

func TestPrefetchFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(time.Millisecond)
		s.err = errors.New("no")
		p := newAhead(8, time.Minute, s.fetch)
		if _, err := p.get(t.Context()); !errors.Is(err, s.err) {
			t.Error(err)
		}
		s.err = nil
		if id, err := p.get(t.Context()); id != 1 || err != nil {
			t.Error(id, err)
		}
	})
}

// One answer serves all who wait for it, and one more is asked for if it is too small.
func TestOneFetchForAllWhoWait(t *testing.T) {
	for waiting, fetches := range map[int]int{1: 1, 10: 1, 159: 1, 160: 1, 161: 2} {
		synctest.Test(t, func(t *testing.T) {
			s := newSource(time.Millisecond)
			p := newAhead(160, time.Hour, s.fetch)
			var all sync.WaitGroup
			for range waiting {
				all.Go(func() {
					if _, err := p.get(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if n := len(s.batches()); n != fetches {
				t.Errorf("%d batches for %d who waited", n, waiting)
			}
			for i := waiting; i < 160; i++ {
				if id, ok := p.take(); !ok || id != ID(i+1) {
					t.Errorf("%d, %v", id, ok)
				}
			}
		})
	}
}

// Batches grow while they are used up at once, and shrink again.
func TestBatchesGrowAndShrink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(0)
		p := newAhead(8, time.Minute, s.fetch)
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
		if all := s.batches(); all[len(all)-1] != 8 {
			t.Errorf("the last batch has %d", all[len(all)-1])
		}
	})
}

// A waiting call gets an ID of the answer that comes, however fast others take IDs. With
// one processor, a goroutine that takes IDs without a pause left the others none.
func TestWaitersAreServedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 3
		release := make(chan struct{})
		p := newAhead(64, time.Hour, func(int) ([]ID, error) {
			<-release
			return []ID{1, 2, 11, 12}, nil
		})
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
		synctest.Wait()
		close(release)
		for p.now.Load().ids == nil {
			runtime.Gosched()
		}
		if id, ok := p.take(); !ok || id != 12 {
			t.Errorf("%d, %v beside %d who wait", id, ok, waiters)
		}
		if id, ok := p.take(); ok {
			t.Errorf("%d is one too many", id)
		}
		seen := map[ID]bool{}
		for range waiters {
			seen[<-got] = true
		}
		if len(seen) != waiters || !seen[1] || !seen[2] || !seen[11] {
			t.Errorf("they got %v", seen)
		}
	})
}
