package leaseserver

import (
	"context"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"go.uber.org/zap"
)

// How old a view may be. The larger a pool is, the more a list costs the store: so a
// view that took long is used for longer.
const (
	viewAge     = 2 * time.Second
	viewPerTook = 10 // times as long as listing took
	viewKept    = 15 * time.Second
	viewTimeout = 30 * time.Second // of listing a pool, which may be large
)

// view is the last list of a pool's records. Of their meta it keeps only host and process
// ID: a full pool may have a hundred megabytes of meta.
type view struct {
	at      time.Time
	atMS    int64 // by the server's clock
	took    time.Duration
	records []provider.Record // by slot, without meta
	hosts   []string          // of each record
	pids    []string
	largest int64 // of the records' slots
}

// view is the latest one of a service's pool. While a newer one is being made it
// may be a little old.
func (s *Server) view(ctx context.Context, service string) (*view, error) {
	pool := s.o.Services.Of(service).Pool
	known, fresh := s.latest(pool)
	if fresh {
		return known, nil
	}
	coming := s.viewing.DoChan(pool, func() (any, error) {
		// A caller may have looked before the listing of another was done, and come
		// after it.
		if v, fresh := s.latest(pool); fresh {
			return v, nil
		}
		return s.listPool(service, pool)
	})
	if s.stats.fresh > 0 && known != nil && time.Since(known.at) < viewKept {
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

func (s *Server) latest(pool string) (known *view, fresh bool) {
	s.note(func(b *stats) { known, fresh = b.latest(pool, time.Now()) })
	return known, fresh
}

// listPool makes a view.
func (s *Server) listPool(service, pool string) (*view, error) {
	v := &view{at: time.Now(), atMS: s.o.NowMS()}
	ctx, cancel := context.WithTimeout(context.Background(), viewTimeout)
	defer cancel()
	records, err := s.o.Provider.List(ctx, service)
	v.took = time.Since(v.at)
	s.o.Metrics.Called("list", v.took)
	if err != nil {
		return nil, err
	}
	v.records, v.hosts, v.pids = records, make([]string, len(records)), make([]string, len(records))
	for i := range records {
		v.largest = max(v.largest, records[i].Lease.Slot().Size())
		// Clone: a substring would keep the whole string alive.
		v.hosts[i], v.pids[i] = strings.Clone(records[i].Meta["host"]), strings.Clone(records[i].Meta["pid"])
		records[i].Meta = nil
	}
	terms := s.o.Services.Of(s.pools()[pool])
	usage := provider.UsageOf(records, &terms, v.atMS)
	s.note(func(b *stats) { b.listed(pool, v, usage.Total-usage.Free) })
	s.tellFullness(pool, usage.Fullness(), zap.Int64("free", usage.Free), zap.Int64("slots", usage.Total))
	return v, nil
}

// tellFullness notes how full a pool is, and tells the log where that is new or bad.
func (s *Server) tellFullness(pool string, f provider.Fullness, fields ...zap.Field) {
	tell := false
	s.note(func(b *stats) { tell = b.fills(pool, f, s.o.NowMS()) })
	if !tell {
		return
	}
	fields = append(fields, zap.String("pool", pool))
	switch f {
	case provider.Full:
		s.o.Log.Error("a pool is full: acquires are refused", fields...)
	case provider.AlmostFull:
		s.o.Log.Error("a pool is almost full", fields...)
	case provider.NearlyFull:
		s.o.Log.Warn("a pool is nearly full", fields...)
	default:
		s.o.Log.Info("a pool has room again", fields...)
	}
}
