//go:build linux

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

// Quantities.
const (
	perSecond = "1000/s"
	p50       = "p50, µs"
	p99       = "p99, µs"
	// processor is the CPU time of client, store and all between for one call. Other programs
	// on the machine disturb it less than a rate.
	processor = "CPU, µs"
	trips     = "round trips"
	// fewest is how often the client was served that was served least, as a part of the mean.
	fewest = "fewest / mean"
)

// row is one kind of work.
type row struct {
	key, title string
	clients    int
	quantities []string
	// work does it once as the nth client, and returns how much that was and what
	// to note as its time: 0 for nothing.
	work func(ctx context.Context, c client, n int, s *shared) (amount int, took time.Duration, err error)
	// apart: also measured with clients that have a store each, as processes have.
	apart bool
}

// shared is what the clients of one measurement know of each other.
type shared struct {
	name     string // that no other measurement has
	released atomic.Int64
	last     [manyClients]int64 // value of each client
}

var (
	onePair    = row{"pair", "acquire and release, 1 client", 1, []string{perSecond, p50, p99, processor}, pair, false}
	manyPairs  = row{"pair64", "acquire and release, 64 clients with a lock each", manyClients, []string{perSecond, p50, p99, processor}, pair, false}
	handovers  = row{"handover", "handover: release to next holder, 64 clients of one lock", manyClients, []string{p50, p99, trips, fewest}, handover, true}
	oneValue   = row{"next", "one value, 1 client", 1, []string{perSecond, p50, p99, processor}, next(1, 0), false}
	manyValues = row{"next64", "one value, 64 clients of one sequence", manyClients, []string{perSecond, p50, p99, processor, fewest}, next(1, 0), true}
	batches    = row{"batch", "100 values at once, 1 client", 1, []string{perSecond, p50, p99, processor}, next(batch, 0), false}
	// Many values a second: in order between hosts, and not.
	manyBatches = row{"batch64", "100 values at once, 64 clients of one sequence", manyClients, []string{perSecond, p50, p99, processor}, next(batch, 0), false}
	ofBlocks    = row{"block64", "one value, 64 clients of one sequence, blocks of 1,000", manyClients, []string{perSecond, p50, p99, processor}, next(1, block), false}
)

var (
	ofLocks     = []row{onePair, manyPairs, handovers}
	ofSequences = []row{oneValue, manyValues, batches, manyBatches, ofBlocks}
)

// on is the name of the row for one store.
func (r row) on(store string) string { return r.key + " on " + store }

// unhurried is what tells how long two round trips take where nothing else
// happens, at the pace of the handovers.
var unhurried = row{title: "acquire and release at the pace of the handovers", clients: 1, work: pairApart}

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

// errStop ends the wait of those who are still in line when the time is up.
var errStop = errors.New("the time is up")

// measure has the clients work for the duration, and returns the quantities.
func (r row) measure(ctx context.Context, s *subject, name string, duration time.Duration) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, duration+longestWait)
	defer cancel()
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	common := &shared{name: name}
	times, done, errs := make([][]time.Duration, r.clients), make([]int, r.clients), make([]error, r.clients)
	var over atomic.Bool
	var all sync.WaitGroup
	usedBefore, err := s.used()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for i := range r.clients {
		all.Go(func() {
			// Once at least, however slow the machine is.
			for first := true; first || !over.Load(); first = false {
				amount, took, err := r.work(working, s.clients[i%len(s.clients)], i, common)
				if err != nil {
					if first || !over.Load() {
						errs[i] = err
						over.Store(true)
						stop(errStop)
					}
					return
				}
				if done[i] += amount; took > 0 {
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
	used, err := s.used()
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	sorted := slices.Concat(times...)
	if slices.Sort(sorted); len(sorted) == 0 {
		return nil, errors.New("nothing was done")
	}
	total := 0
	for _, n := range done {
		total += n
	}
	return map[string]float64{
		fewest:    float64(slices.Min(done)*r.clients) / float64(total),
		perSecond: float64(total) / elapsed.Seconds(), p50: percentile(sorted, 50), p99: percentile(sorted, 99),
		processor: float64(used-usedBefore) / float64(len(sorted)),
	}, nil
}

// percentile is the smallest time within which that many were done, in ns.
func percentile(sorted []time.Duration, p int) float64 {
	return float64(sorted[max((len(sorted)*p+99)/100, 1)-1])
}

var formats = map[string]func(float64) string{
	perSecond: report.Kilo, p50: report.Microseconds, p99: report.Microseconds, processor: report.Microseconds, trips: report.Ratio, fewest: report.Ratio,
}
