package leaseserver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/kazahana/kazahana/internal/provider"
)

// How old a view may be. To list a pool costs the store more the larger it is,
// and nothing less because many look: one that took long is used for longer.
const (
	viewAge     = 2 * time.Second
	viewPerTook = 10 // times as long as listing took
	viewKept    = 15 * time.Second
	viewTimeout = 30 * time.Second // of listing a pool, which may be large
)

// view is what a pool's records were when they were listed last. Of their meta it
// keeps what tells a holder: a full pool may have a hundred megabytes of it.
type view struct {
	at      time.Time
	atMS    int64 // by the server's clock
	took    time.Duration
	records []provider.Record // by slot, without meta
	hosts   []string          // of each record
	pids    []string
	largest int64    // of the records' slots
	maps    sync.Map // mapKey to []byte: many look at the same map
}

// views are the pools' views. Listing is done once at a time for each pool,
// whoever waits for it.
type views struct {
	listing singleflight.Group
	mu      sync.Mutex
	byPool  map[string]*view
	trends  map[string]*trend
	fenced  map[string]int64 // Unix ms until which acquires are refused, as far as somebody tried
	fresh   time.Duration    // viewAge; in tests also 0, to look anew each time
}

func newViews() *views {
	return &views{byPool: map[string]*view{}, trends: map[string]*trend{}, fenced: map[string]int64{}, fresh: viewAge}
}

// view is the latest one of a service's pool. While a newer one is being made it
// may be a little old.
func (s *Server) view(ctx context.Context, service string) (*view, error) {
	pool := s.o.Services.Of(service).Pool
	known, fresh := s.views.latest(pool)
	if fresh {
		return known, nil
	}
	coming := s.views.listing.DoChan(pool, func() (any, error) {
		// Whoever looked before the listing of others was done, and comes after it.
		if v, fresh := s.views.latest(pool); fresh {
			return v, nil
		}
		return s.listPool(service, pool)
	})
	if s.views.fresh > 0 && known != nil && time.Since(known.at) < viewKept {
		return known, nil
	}
	select {
	case result := <-coming:
		v, _ := result.Val.(*view)
		return v, result.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// latest is the pool's view, nil where there is none, and whether it is of now.
func (v *views) latest(pool string) (known *view, fresh bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known = v.byPool[pool]
	return known, v.fresh > 0 && known != nil && time.Since(known.at) < max(v.fresh, viewPerTook*known.took)
}

// listPool makes a view.
func (s *Server) listPool(service, pool string) (*view, error) {
	v := &view{at: time.Now(), atMS: s.o.NowMS()}
	ctx, cancel := context.WithTimeout(context.Background(), viewTimeout)
	defer cancel()
	records, err := s.listOf(ctx, service)
	v.took = time.Since(v.at)
	s.o.Metrics.Called("list", v.took)
	if err != nil {
		return nil, err
	}
	v.records, v.hosts, v.pids = records, make([]string, len(records)), make([]string, len(records))
	for i := range records {
		v.largest = max(v.largest, records[i].Lease.Slot().Size())
		// A copy: what it is part of would be kept with it.
		v.hosts[i], v.pids[i] = strings.Clone(records[i].Meta["host"]), strings.Clone(records[i].Meta["pid"])
		records[i].Meta = nil
	}
	terms := s.o.Services.Of(s.pools()[pool])
	usage := provider.UsageOf(records, &terms, v.atMS)
	s.views.mu.Lock()
	defer s.views.mu.Unlock()
	s.views.byPool[pool] = v
	if s.views.trends[pool] == nil {
		s.views.trends[pool] = &trend{}
	}
	s.views.trends[pool].add(v.atMS, usage.Total-usage.Free)
	return v, nil
}

// acquired remembers what an acquire told of its pool.
func (v *views) acquired(pool string, err error) {
	var fence *provider.FencedError
	fenced := errors.As(err, &fence)
	if err != nil && !fenced {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.fenced, pool)
	if fenced {
		v.fenced[pool] = fence.UntilMS
	}
}
