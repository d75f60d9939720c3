package leaseserver

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

// counters is what the server counts for /stats since its start, for providers
// that do not.
type counters struct {
	acquires, granted, full, clients  atomic.Int64
	leases                            atomic.Int64 // that the granted ones gave
	extends, extended, foreign, ended atomic.Int64

	mu   sync.Mutex
	seen map[uint64]struct{} // digests of the clients that have come
	seed maphash.Seed
}

// maxSeen bounds the memory of which clients have come. Beyond it all are
// forgotten, and those that do not say that they came before count once more.
const maxSeen = 1 << 16

// arrival is a client that asks for leases.
type arrival struct {
	digest uint64
	kind   provider.Client
}

// arrived tells a client that was not counted in the pool from one that was. A
// client that says that it has come before is believed, so that it counts once
// whatever server it asks, and whenever that was started. Others are told apart
// by what they say of themselves: a process is a client.
func (c *counters) arrived(pool string, who Credential, remote string, in leaseapi.AcquireRequest) arrival {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen, c.seed = map[uint64]struct{}{}, maphash.MakeSeed()
	}
	a := arrival{kind: provider.KnownClient}
	a.digest = maphash.String(c.seed, strings.Join([]string{pool, clientKey(who, remote), in.Meta["host"], in.Meta["pid"]}, "\x00"))
	_, known := c.seen[a.digest]
	if !known && (in.NewClient == nil || *in.NewClient) {
		a.kind = provider.NewClient
	}
	if !known && len(c.seen) >= maxSeen {
		clear(c.seen)
	}
	c.seen[a.digest] = struct{}{}
	return a
}

func (c *counters) countAcquire(a arrival, err error) {
	c.acquires.Add(1)
	var full *provider.FullError
	switch {
	case err == nil:
		c.granted.Add(1)
	case errors.As(err, &full):
		c.full.Add(1)
	}
	if a.kind != provider.NewClient {
		return
	}
	if err != nil && leaseapi.FromError(err, 0).Code == problem.Unavailable { // whether the store counted it nobody knows
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.seen, a.digest)
		return
	}
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
		provider.CountClients: c.clients.Load(), provider.CountAcquires: c.acquires.Load(), provider.CountGranted: c.granted.Load(),
		provider.CountFull: c.full.Load(), provider.CountExtends: c.extends.Load(), provider.CountExtended: c.extended.Load(),
		provider.CountNotOwner: c.foreign.Load(), provider.CountExtendEnded: c.ended.Load(),
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
		counted, err := s.o.Provider.Counters(ctx, service)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		if err == nil {
			out = counted
		}
		records, err = s.listOf(ctx, service)
		return err
	}); err != nil {
		return err
	}
	out = maps.Clone(out)
	maps.Copy(out, gauges(records, s.o.Services.Of(service), s.o.NowMS()))
	return answer(w, out)
}

// gauges is the state of a pool by its records.
func gauges(records []provider.Record, terms provider.Terms, nowMS int64) map[string]int64 {
	u := provider.UsageOf(records, &terms, nowMS)
	return map[string]int64{
		"using_ids": u.Held, "unusing_ids": u.Free, "quarantined_ids": u.Quarantined(),
		"using_ttl_min": u.TTLMin, "using_ttl_mid": u.TTLMid, "using_ttl_max": u.TTLMax,
	}
}

// sampled is what was found when the pools were looked at last.
type sampled struct {
	mu    sync.Mutex
	at    time.Time
	pools map[string]poolSample
}

// poolSample is one of them.
type poolSample struct {
	at     time.Time
	active map[string]int64 // by service, as metrics call it
	slots  int64
	free   int64
}

const (
	// sampleAge is how old a sample may be: a scraper must not be able to have
	// the provider list its records all the time.
	sampleAge     = 5 * time.Second
	sampleTimeout = 2 * time.Second
	// sampleKept is for how long a pool that cannot be looked at is shown as it
	// was last. After that it is not shown at all: 0 leases would be a lie.
	sampleKept = 2 * time.Minute
)

// sample looks at all pools for a scrape of the metrics.
func (s *Server) sample() metrics.PoolSample {
	s.sampled.mu.Lock()
	defer s.sampled.mu.Unlock()
	now := time.Now()
	if s.sampled.at.IsZero() || now.Sub(s.sampled.at) >= sampleAge {
		s.sampled.at = now
		s.look(now)
	}
	out := metrics.PoolSample{Active: map[string]int64{}, Slots: map[string]int64{}, Free: map[string]int64{}}
	for pool, p := range s.sampled.pools {
		if now.Sub(p.at) < sampleKept {
			out.Slots[pool], out.Free[pool] = p.slots, p.free
			for service, n := range p.active {
				out.Active[service] += n
			}
		}
	}
	return out
}

func (s *Server) look(at time.Time) {
	if !s.o.Provider.Info().Can.List {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), sampleTimeout)
	defer cancel()
	now := s.o.NowMS()
	for pool, service := range s.pools() {
		v, err := s.view(ctx, service)
		if err != nil {
			s.sparing.Do(func() {
				s.o.Log.Warn("the leases cannot be counted for the metrics", zap.String("pool", pool), zap.Error(err))
			})
			continue
		}
		terms, records := s.o.Services.Of(service), v.records
		usage := provider.UsageOf(records, &terms, now)
		p := poolSample{at: at, active: map[string]int64{}, slots: usage.Total, free: usage.Free}
		for _, name := range append([]string{""}, slices.Collect(maps.Keys(s.o.Services.Named))...) {
			if s.o.Services.Of(name).Pool == pool {
				p.active[s.label(name)] = 0
			}
		}
		for _, r := range records {
			if r.Held(now) {
				p.active[s.label(r.Service)]++
			}
		}
		s.sampled.pools[pool] = p
	}
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
