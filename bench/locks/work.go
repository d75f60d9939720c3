package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/bench/report"
)

const (
	manyClients = 64
	batch       = 100
	// block is how many values a host takes at a time, where it takes more than one.
	block = 1000
	// heldFor is how long a lock is kept that others wait for: until they are in
	// line again, so that the handover is all that happens.
	heldFor = time.Millisecond
	// longestWait is for a run that fails.
	longestWait = 30 * time.Second
)

// work is one kind of work.
type work struct {
	key, title string
	clients    int
	quantities []string
	// do does it once as the nth client, and returns how much that was and what
	// to note as its time: 0 for nothing.
	do       func(ctx context.Context, c client, n int, s *shared) (amount int, took time.Duration, err error)
	promises []promise
}

// shared is what the clients of one measurement know of each other.
type shared struct {
	name     string // that no other measurement has
	released atomic.Int64
	last     [manyClients]int64 // value of each client
}

// unhurried is what tells how long two round trips take where nothing else
// happens, at the pace of the handovers.
var unhurried = work{title: "acquire and release at the pace of the handovers", clients: 1, do: pairApart}

func pairApart(ctx context.Context, c client, _ int, s *shared) (int, time.Duration, error) {
	began := time.Now()
	release, err := c.acquire(ctx, s.name, 0)
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(began)
	time.Sleep(heldFor)
	began = time.Now()
	err = release(ctx)
	took += time.Since(began)
	time.Sleep(heldFor)
	return 1, took, err
}

func pair(ctx context.Context, c client, n int, s *shared) (int, time.Duration, error) {
	began := time.Now()
	release, err := c.acquire(ctx, fmt.Sprintf("%s-%d", s.name, n), 0)
	if err == nil {
		err = release(ctx)
	}
	return 1, time.Since(began), err
}

// handover waits for the lock, keeps it for a moment and gives it away.
func handover(ctx context.Context, c client, _ int, s *shared) (int, time.Duration, error) {
	release, err := c.acquire(ctx, s.name, longestWait)
	if err != nil {
		return 0, 0, err
	}
	took := time.Duration(0)
	if since := s.released.Load(); since > 0 {
		took = time.Since(epoch) - time.Duration(since)
	}
	time.Sleep(heldFor)
	s.released.Store(int64(time.Since(epoch)))
	return 1, took, release(ctx)
}

// epoch is what times are counted from that clients share.
var epoch = time.Now()

func next(count, block int) func(context.Context, client, int, *shared) (int, time.Duration, error) {
	return func(ctx context.Context, c client, n int, s *shared) (int, time.Duration, error) {
		began := time.Now()
		last, err := c.next(ctx, s.name, count, block)
		if before := s.last[n]; err == nil && last < before+int64(count) {
			err = fmt.Errorf("the last of %d values after %d is %d", count, before, last)
		}
		s.last[n] = last
		return count, time.Since(began), err
	}
}

// errStop ends the wait of clients that are still in line when the time is up.
var errStop = errors.New("the time is up")

// measure has the clients work for the duration, and returns the quantities.
func (w work) measure(ctx context.Context, s *subject, name string, duration time.Duration) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, duration+longestWait)
	defer cancel()
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	common := &shared{name: name}
	times, errs := make([][]time.Duration, w.clients), make([]error, w.clients)
	var total atomic.Int64
	var over atomic.Bool
	var all sync.WaitGroup
	began := time.Now()
	for i := range w.clients {
		all.Go(func() {
			// Once at least, however slow the machine is.
			for first := true; first || !over.Load(); first = false {
				amount, took, err := w.do(working, s.clients[i%len(s.clients)], i, common)
				if err != nil {
					if first || !over.Load() {
						errs[i] = err
						over.Store(true)
						stop(errStop)
					}
					return
				}
				if total.Add(int64(amount)); took > 0 {
					times[i] = append(times[i], took)
				}
			}
		})
	}
	select {
	case <-time.After(duration):
	case <-ctx.Done():
	}
	over.Store(true)
	elapsed := time.Since(began)
	all.Wait() // those in line get the lock one after the other
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	sorted := slices.Concat(times...)
	if slices.Sort(sorted); len(sorted) == 0 {
		return nil, errors.New("nothing was done")
	}
	return map[string]float64{
		perSecond: float64(total.Load()) / elapsed.Seconds(), p50: report.Percentile(sorted, 50), p99: report.Percentile(sorted, 99),
	}, nil
}
