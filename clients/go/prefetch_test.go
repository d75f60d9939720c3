package kazahana

import (
	"errors"
	"math/rand/v2"
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
	last  uint64
	took  time.Duration
	err   error
	asked map[uint64]time.Time // by the first ID of a batch
	sizes []int
}

func (s *source) fetch(n int) ([]uint64, error) {
	began := time.Now()
	time.Sleep(s.took) // a bubble's time stands still while a mutex is waited for
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sizes = append(s.sizes, n)
	if s.err != nil {
		return nil, s.err
	}
	ids := make([]uint64, n)
	for i := range ids {
		s.last++
		ids[i] = s.last
		s.asked[s.last] = began
	}
	return ids, nil
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
