package leaseserver

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/metrics"
	"github.com/kazahana/kazahana/internal/provider"
)

// counters is what the server counts for /stats since its start, for providers
// that do not.
type counters struct {
	acquires, granted, full, clients  atomic.Int64
	extends, extended, foreign, ended atomic.Int64

	mu   sync.Mutex
	seen map[uint64]struct{} // digests of the clients counted
	seed maphash.Seed
}

// maxSeen bounds the memory of which clients were counted. Beyond it everybody
// is forgotten, and counted once more.
const maxSeen = 1 << 16

func (c *counters) countAcquire(who Credential, remote string, meta map[string]string, err error) {
	c.acquires.Add(1)
	var full *provider.FullError
	switch {
	case err == nil:
		c.granted.Add(1)
	case errors.As(err, &full):
		c.full.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen, c.seed = map[uint64]struct{}{}, maphash.MakeSeed()
	}
	// A process is a client, by what it says of itself.
	digest := maphash.String(c.seed, clientKey(who, remote)+"\x00"+meta["host"]+"\x00"+meta["pid"])
	if _, known := c.seen[digest]; known {
		return
	}
	if len(c.seen) >= maxSeen {
		clear(c.seen)
	}
	c.seen[digest] = struct{}{}
	c.clients.Add(1)
}

func (c *counters) countExtend(err error) {
	c.extends.Add(1)
	switch {
	case err == nil:
		c.extended.Add(1)
	case errors.Is(err, provider.ErrBadSignature), errors.Is(err, provider.ErrNotFound):
		c.foreign.Add(1)
	case errors.Is(err, provider.ErrConflict):
		c.ended.Add(1)
	}
}

func (c *counters) stats() leaseapi.Stats {
	return leaseapi.Stats{
		"client_id_count": c.clients.Load(), "client_get_id_count": c.acquires.Load(), "client_get_id_success": c.granted.Load(),
		"get_id_no_available_id": c.full.Load(), "extend_ttl_count": c.extends.Load(), "extend_ttl_success": c.extended.Load(),
		"extend_ttl_ownership_error": c.foreign.Load(), "extend_ttl_expire_warning": c.ended.Load(),
	}
}

// stats answers with the counters and the state of one service's pool. Where the
// provider counts, its counters are those of all instances and outlive them.
func (s *Server) stats(w http.ResponseWriter, r *http.Request, _ Credential) error {
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	service := q.Get(leaseapi.ParamService) // of any tenant: the scope is admin
	out := s.counters.stats()
	var records []provider.Record
	if err := s.called(r.Context(), "stats", func(ctx context.Context) (err error) {
		if counter, ok := s.o.Provider.(provider.Counter); ok {
			counted, err := counter.Counters(ctx, service)
			if err != nil && !errors.Is(err, errors.ErrUnsupported) {
				return err
			}
			if err == nil {
				out = counted
			}
		}
		lister, ok := s.o.Provider.(provider.Lister)
		if !ok {
			return s.cannot("list leases")
		}
		records, err = lister.List(ctx, service)
		return err
	}); err != nil {
		return err
	}
	out = maps.Clone(out)
	maps.Copy(out, gauges(records, s.o.Services.Of(service), s.o.NowMS()))
	return answer(w, out)
}

// gauges is the state of a pool by its records.
func gauges(records []provider.Record, terms provider.Terms, now int64) map[string]int64 {
	left := []int64{}
	for _, r := range records {
		if held(r, now) {
			left = append(left, (r.Lease.Expired-now)/1000)
		}
	}
	if slices.Sort(left); len(left) == 0 {
		left = []int64{0}
	}
	using := covered(records, terms, func(r provider.Record) bool { return held(r, now) })
	return map[string]int64{
		"using_ids": using, "unusing_ids": terms.Range().Count() - using,
		"quarantined_ids": covered(records, terms, func(r provider.Record) bool { return r.End > now }) - using,
		"using_ttl_min":   left[0], "using_ttl_mid": left[len(left)/2], "using_ttl_max": left[len(left)-1],
	}
}

// held reports whether the record's lease is valid now.
func held(r provider.Record, nowMS int64) bool {
	return !r.Released && r.Lease.Created <= nowMS && nowMS < r.Lease.Expired
}

// covered is how many machine IDs of the terms' layout and range have a slot that
// a wanted record's slot overlaps. The records are in the order of their slots.
func covered(records []provider.Record, terms provider.Terms, wanted func(provider.Record) bool) int64 {
	ids := terms.Range()
	count, next := int64(0), ids.Low // below next everything has been counted
	for _, r := range records {
		if !wanted(r) {
			continue
		}
		slot := r.Lease.Slot()
		low := max(slot.Start>>terms.BitSeq, next)
		end := min((slot.End-1)>>terms.BitSeq+1, ids.End)
		if low < end {
			count += end - low
			next = end
		}
	}
	return count
}

// sampled is what metrics were told last.
type sampled struct {
	mu sync.Mutex
	at time.Time
	metrics.PoolSample
}

const (
	// sampleAge is how old a sample may be: a scraper must not be able to have
	// the provider list its records all the time.
	sampleAge     = 5 * time.Second
	sampleTimeout = 2 * time.Second
)

// sample looks at all pools for a scrape of the metrics.
func (s *Server) sample() metrics.PoolSample {
	s.sampled.mu.Lock()
	defer s.sampled.mu.Unlock()
	if now := time.Now(); s.sampled.at.IsZero() || now.Sub(s.sampled.at) >= sampleAge {
		s.sampled.PoolSample, s.sampled.at = s.look(), now
	}
	return s.sampled.PoolSample
}

func (s *Server) look() metrics.PoolSample {
	out := metrics.PoolSample{Active: map[string]int64{}, Free: map[string]int64{}}
	lister, ok := s.o.Provider.(provider.Lister)
	if !ok {
		return out
	}
	ctx, cancel := context.WithTimeout(context.Background(), sampleTimeout)
	defer cancel()
	for _, name := range append([]string{""}, slices.Collect(maps.Keys(s.o.Services.Named))...) {
		out.Active[s.label(name)] = 0
	}
	now := s.o.NowMS()
	for pool, service := range s.pools() {
		records, err := lister.List(ctx, service)
		if err != nil {
			continue // the provider's failures show elsewhere
		}
		for _, r := range records {
			if held(r, now) {
				out.Active[s.label(r.Service)]++
			}
		}
		terms := s.o.Services.Of(service)
		out.Free[pool] = terms.Range().Count() - covered(records, terms, func(r provider.Record) bool { return r.End > now })
	}
	return out
}

// pools maps each pool to the service whose layout its machine IDs are counted
// in: the default one where it can, else the first by name.
func (s *Server) pools() map[string]string {
	out := map[string]string{s.o.Services.Default.Pool: ""}
	names := make([]string, 0, len(s.o.Services.Named))
	for name := range s.o.Services.Named {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		pool := s.o.Services.Named[name].Pool
		if _, ok := out[pool]; !ok {
			out[pool] = name
		}
	}
	return out
}
