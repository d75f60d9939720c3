package sequence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/record/memory"
)

var errLost = errors.New("the answer was lost")

// slow is a store behind a network: it takes a moment, counts calls, and may
// lose answers.
type slow struct {
	*Records
	calls int
	lose  int // so many answers from now on
	// others is how many values another host takes before each call.
	others int
}

func (s *slow) Next(ctx context.Context, r Request) (Range, error) {
	s.calls++
	time.Sleep(time.Millisecond)
	if s.others > 0 {
		other := r
		other.Count, other.AtLeast, other.RequestID = s.others, 0, ""
		if _, err := s.Records.Next(ctx, other); err != nil {
			return Range{}, err
		}
	}
	got, err := s.Records.Next(ctx, r)
	if s.lose > 0 {
		s.lose--
		return Range{}, errLost
	}
	return got, err
}

// world is a host and its store in a bubble of time.
type world struct {
	*testing.T
	store *slow
	host  *Blocks
}

func inWorld(t *testing.T, test func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, store: &slow{Records: OnRecords(memory.New(nil))}}
		w.host = w.newHost()
		test(w)
	})
}

func (w *world) newHost() *Blocks {
	start := time.Now()
	return NewBlocks(w.store, func() time.Duration { return time.Since(start) })
}

func blocksOf(n int) Options {
	o := DefaultOptions()
	o.Block = n
	return o
}

func asking(count int, o Options) Request {
	return Request{Tenant: "t", Key: "k", Count: count, Options: o}
}

func (w *world) take(host *Blocks, r Request, want ...int64) {
	w.Helper()
	if got, err := host.Next(w.Context(), r); err != nil || !slices.Equal(got.Values(), want) {
		w.Errorf("%v (%v), want %v", got, err, want)
	}
}

func (w *world) called(want int) {
	w.Helper()
	if w.store.calls != want {
		w.Errorf("the store was called %d times, want %d", w.store.calls, want)
	}
}

func TestBlocksTakeInAdvance(t *testing.T) {
	inWorld(t, func(w *world) {
		o := blocksOf(10)
		w.take(w.host, asking(1, o), 1)
		w.take(w.host, asking(8, o), 2, 3, 4, 5, 6, 7, 8, 9)
		w.called(1)
		other := w.newHost()
		w.take(other, asking(1, o), 11)
		w.take(w.host, asking(1, o), 10)
		w.take(other, asking(9, o), 12, 13, 14, 15, 16, 17, 18, 19, 20)
		w.called(2)
		w.take(other, asking(8, o), 21, 22, 23, 24, 25, 26, 27, 28)
		w.take(other, asking(4, o), 29, 30, 31, 32) // what follows is its own too
		w.take(w.host, asking(12, o), 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52)
		w.called(5)                                                     // more than a block, in one call
		w.take(other, asking(9, o), 53, 54, 55, 56, 57, 58, 59, 60, 61) // 33 to 40 are skipped
		o.Block = 0
		w.take(w.host, asking(1, o), 63)
		w.take(w.host, asking(1, o), 64)
		w.called(8)
	})
}

func TestBlocksAtTheMaximum(t *testing.T) {
	inWorld(t, func(w *world) {
		o := blocksOf(4)
		o.Max = 10
		w.take(w.host, asking(9, o), 1, 2, 3, 4, 5, 6, 7, 8, 9)
		w.take(w.host, asking(1, o), 10) // less than a block is left
		w.take(w.host, asking(3, o), 1, 2, 3)
		w.take(w.host, asking(6, o), 4, 5, 6, 7, 8, 9)
		w.take(w.host, asking(2, o), 1, 2) // as a whole, in the next run
		w.take(w.host, asking(2, o), 3, 4)

		fail := o
		fail.OnMax, fail.Step = Fail, 2
		r := asking(4, fail)
		r.Key = "fail"
		w.take(w.host, r, 2, 4, 6, 8)
		r.Count = 2
		var e *ExhaustedError
		if got, err := w.host.Next(w.Context(), r); !errors.As(err, &e) || e.Left != 1 {
			w.Errorf("%v (%v), want an ExhaustedError with 1 left", got, err)
		}
		r.Count = 1
		w.take(w.host, r, 10)
	})
}

// One call at a time goes to the store, and all who wait are served by it.
func TestBlocksShareACall(t *testing.T) {
	inWorld(t, func(w *world) {
		const callers = 50
		var mu sync.Mutex
		var all []int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				got, err := w.host.Next(w.Context(), asking(2, blocksOf(20)))
				if err != nil {
					w.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, got.Values()...)
			})
		}
		wg.Wait()
		w.called(2 * callers / 20)
		slices.Sort(all) // callers tell what they got in any order
		if all[0] != 1 || all[len(all)-1] != 2*callers || len(slices.Compact(all)) != 2*callers {
			w.Errorf("the values are %v", all)
		}
	})
}

// A lost answer costs no values.
func TestBlocksLostAnswer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.store.lose = 2
		for range 2 {
			if got, err := w.host.Next(w.Context(), asking(3, blocksOf(10))); !errors.Is(err, errLost) {
				w.Errorf("%v (%v)", got, err)
			}
		}
		w.take(w.host, asking(12, blocksOf(10)), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
		w.called(4)
	})
}

// A block is not used when the key may have started over in the store, and a
// key in use does not expire there.
func TestBlocksOfKeysThatExpire(t *testing.T) {
	inWorld(t, func(w *world) {
		o := blocksOf(10)
		o.TTL = time.Hour
		w.take(w.host, asking(1, o), 1)
		time.Sleep(30*time.Minute - 2*time.Millisecond)
		w.take(w.host, asking(1, o), 2)
		time.Sleep(20 * time.Minute)
		w.take(w.host, asking(1, o), 11) // the store hears of it
		time.Sleep(25 * time.Minute)
		w.take(w.host, asking(1, o), 12)
		other := w.newHost()
		time.Sleep(25 * time.Minute)
		w.take(w.host, asking(1, o), 21)
		time.Sleep(time.Hour)
		w.take(other, asking(1, o), 1)
		w.take(w.host, asking(1, o), 11) // not 22, which the next run will have too
	})
}

// A batch that is larger than a block takes one call: busy hosts take values between any
// two.
func TestBlocksBatchBesideBusyHosts(t *testing.T) {
	inWorld(t, func(w *world) {
		o := blocksOf(4)
		w.take(w.host, asking(2, o), 1, 2)
		w.store.others = 1
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		got, err := w.host.Next(ctx, asking(6, o))
		if err != nil || got.Count != 6 || got.First <= 4 {
			w.Errorf("a batch of 6: %v (%v)", got.Values(), err)
		}
		w.called(2)
	})
}

func TestBlocksRepeatedRequest(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asking(3, blocksOf(4))
		w.take(w.host, asking(2, r.Options), 1, 2)
		r.RequestID = "named"
		w.take(w.host, r, 3, 4, 5)
		w.take(w.host, asking(1, r.Options), 6)
		w.take(w.host, r, 3, 4, 5)
		r.Count = 1
		if got, err := w.host.Next(w.Context(), r); !errors.Is(err, ErrRequestReused) {
			w.Errorf("%v (%v), want ErrRequestReused", got, err)
		}
		// It is one of the key's latest; an older one is a new call, as it is on another host.
		old := r
		old.RequestID, old.Count = NewRequestID(), 2
		w.take(w.host, old, 7, 8)
		for i := range MaxReceipts - 1 {
			w.take(w.host, named(r.Options), int64(9+i))
		}
		w.take(w.host, old, 7, 8)
		w.take(w.host, named(r.Options), 8+MaxReceipts)
		w.take(w.host, old, 9+MaxReceipts, 10+MaxReceipts)
		w.take(w.newHost(), old, 13+MaxReceipts, 14+MaxReceipts)
	})
}

// named is a request for one value with a new ID.
func named(o Options) Request {
	r := asking(1, o)
	r.RequestID = NewRequestID()
	return r
}

// Values held for keys are bounded, and so is what that costs: a gap.
func TestBlocksAreBounded(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asking(1, blocksOf(5))
		take := func(key string) int64 {
			r.Key = key
			got, err := w.host.Next(w.Context(), r)
			if err != nil {
				w.Fatal(err)
			}
			return got.First
		}
		for i := range maxBlocks {
			take(fmt.Sprint(i))
		}
		take("one more")
		if got := take("one more"); got != 2 {
			w.Errorf("the key used last gave way: %d, want 2", got)
		}
		if n := len(w.host.blocks); n != maxBlocks {
			w.Errorf("%d keys are held, want %d", n, maxBlocks)
		}
		gaps := 0
		for n := range maxBlocks {
			if take(fmt.Sprint(n)) == 6 {
				gaps++
			}
		}
		if gaps == 0 {
			w.Error("no key gave way")
		}
	})
}

func TestBlocksCallerWhoLeaves(t *testing.T) {
	inWorld(t, func(w *world) {
		var all sync.WaitGroup
		all.Go(func() { w.take(w.host, asking(1, blocksOf(5)), 1) })
		synctest.Wait() // the store is being asked
		ctx, cancel := context.WithTimeout(w.Context(), time.Microsecond)
		defer cancel()
		if got, err := w.host.Next(ctx, asking(1, blocksOf(5))); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("%v (%v), want DeadlineExceeded", got, err)
		}
		all.Wait()
		w.take(w.host, asking(1, blocksOf(5)), 2)
	})
}
