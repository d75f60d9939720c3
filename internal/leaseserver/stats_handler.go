package leaseserver

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/provider"
)

// digest tells a client of a pool from others.
func (s *Server) digest(pool string, who Credential, remote string, in leaseapi.AcquireRequest) uint64 {
	return maphash.String(s.seed, strings.Join([]string{pool, clientKey(who, remote), in.Meta["host"], in.Meta["pid"]}, "\x00"))
}

// serveStats answers with the state of one service's pool, and with the provider's counters, if it
// counts.
func (s *Server) serveStats(w http.ResponseWriter, r *http.Request, _ Credential) error {
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	service := q.Get(leaseapi.ParamService) // of any tenant: the scope is admin
	out := leaseapi.Stats{}
	var records []provider.Record
	if err := s.called(r.Context(), "stats", func(ctx context.Context) (err error) {
		counted, err := s.o.Provider.Counters(ctx, service)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		maps.Copy(out, counted)
		records, err = s.o.Provider.List(ctx, service)
		return err
	}); err != nil {
		return err
	}
	maps.Copy(out, gauges(records, s.o.Services.Of(service), s.o.NowMS()))
	return answer(w, out)
}

// gauges computes the state of a pool from its records.
func gauges(records []provider.Record, terms provider.Terms, nowMS int64) map[string]int64 {
	u := provider.UsageOf(records, &terms, nowMS)
	return map[string]int64{
		"using_ids": u.Held, "unusing_ids": u.Free, "quarantined_ids": u.Quarantined(),
		"using_ttl_min": u.TTLMin, "using_ttl_mid": u.TTLMid, "using_ttl_max": u.TTLMax,
	}
}

const (
	// sampleTimeout is for how long a scrape of the metrics waits for the store.
	sampleTimeout = 2 * time.Second
	// sampleKept is for how long a pool that cannot be looked at is shown as it was last. After
	// that it is not shown at all: 0 leases would be a lie.
	sampleKept = 2 * time.Minute
)

// sample returns the pools' figures for the metrics, by their views.
func (s *Server) sample() metrics.PoolSample {
	out := metrics.PoolSample{Active: map[string]int64{}, Slots: map[string]int64{}, Free: map[string]int64{}}
	if !s.o.Provider.Info().Coordinated {
		return out
	}
	ctx, cancel := context.WithTimeout(context.Background(), sampleTimeout)
	defer cancel()
	for pool, service := range s.pools() {
		v, err := s.view(ctx, service)
		if err != nil {
			s.sparing.Do(func() {
				s.o.Log.Warn("the leases cannot be counted for the metrics", zap.String("pool", pool), zap.Error(err))
			})
			if v, _ = s.latest(pool); v == nil || time.Since(v.at) >= sampleKept {
				continue
			}
		}
		s.count(v.records, pool, service, &out)
	}
	return out
}

// count adds a pool to the sample. Each of its services has a number, also 0.
func (s *Server) count(records []provider.Record, pool, service string, out *metrics.PoolSample) {
	terms, now := s.o.Services.Of(service), s.o.NowMS()
	usage := provider.UsageOf(records, &terms, now)
	out.Slots[pool], out.Free[pool] = usage.Total, usage.Free
	for _, name := range append([]string{""}, slices.Collect(maps.Keys(s.o.Services.Named))...) {
		if s.o.Services.Of(name).Pool == pool {
			out.Active[s.label(name)] += 0
		}
	}
	for _, r := range records {
		if r.Held(now) {
			out.Active[s.label(r.Service)]++
		}
	}
}

// pools maps each pool to the service with the layout that its machine IDs are counted in: the
// default service if it uses the pool, else the first by name.
func (s *Server) pools() map[string]string {
	out := map[string]string{s.o.Services.Default.Pool: ""}
	for _, name := range slices.Sorted(maps.Keys(s.o.Services.Named)) {
		pool := s.o.Services.Named[name].Pool
		if _, ok := out[pool]; !ok {
			out[pool] = name
		}
	}
	return out
}
