package leaseserver

import (
	"context"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/operator/statuspage"
	"github.com/kazahana/kazahana/internal/provider"
)

// Overview is the server and its pools.
type Overview struct {
	Version  string                         `json:"version"`
	Host     string                         `json:"host"`
	PID      int                            `json:"pid"`
	Started  int64                          `json:"started"` // Unix ms
	Now      int64                          `json:"now"`
	State    string                         `json:"state"` // ready, or why nothing can be granted
	Provider string                         `json:"provider"`
	Scope    string                         `json:"scope"`
	Tokens   bool                           `json:"tokens"`
	Pools    []leaseapi.Pool                `json:"pools"`
	Fences   []Fence                        `json:"fences"`
	Overload []refusals.Count               `json:"overload"` // limits that refused something in the last minute
	Granted  int64                          `json:"granted"`  // leases, since the start
	Refused  int64                          `json:"refused"`  // acquires
	Past     statuspage.Past                `json:"past"`     // of these two
	Events   []statuspage.Event             `json:"events"`
	Counters map[string][]statuspage.Sample `json:"counters"`
}

// Fence is the fence of a file that may have forgotten grants.
type Fence struct {
	File      string `json:"file"`
	Until     int64  `json:"until"` // Unix ms
	Reason    string `json:"reason"`
	Sequences bool   `json:"sequences"` // existing sequences hand out nothing
}

// page serves the status page. It is the same for every user: it fetches its data with
// the user's token.
func (s *Server) page(w http.ResponseWriter, r *http.Request) error {
	statuspage.LeaseServer().ServeHTTP(w, r)
	return nil
}

// overview answers with the server and its pools.
func (s *Server) overview(w http.ResponseWriter, r *http.Request, _ Credential) error {
	info := s.o.Provider.Info()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	out := Overview{
		Version: s.o.Version, Host: host, PID: os.Getpid(), Started: s.started.UnixMilli(), Now: s.o.NowMS(), State: "ready",
		Provider: info.URL, Scope: string(info.Scope), Tokens: s.o.Tokens != nil,
		Pools: []leaseapi.Pool{}, Fences: []Fence{}, Overload: s.o.Refusals.Recent(), Past: s.past.Past(), Events: []statuspage.Event{},
	}
	out.Granted, out.Refused = s.granted()
	if err := s.readyNow(r.Context()); err != nil {
		out.State = s.problemOf(err).Detail
	}
	if s.o.Recent != nil {
		out.Events = s.o.Recent.Events()
	}
	if s.o.Fences != nil {
		for _, f := range s.o.Fences() {
			out.Fences = append(out.Fences, Fence{f.File, f.UntilMS, f.Reason, f.Sequences})
		}
	}
	pools := s.pools()
	for _, pool := range slices.Sorted(maps.Keys(pools)) {
		out.Pools = append(out.Pools, s.poolOverview(r.Context(), pool, pools[pool]))
	}
	if out.Counters, err = statuspage.Counters(s.o.Metrics.Registry); err != nil {
		return err
	}
	return answer(w, out)
}

// poolOverview is one pool, counted in the layout of the service.
func (s *Server) poolOverview(ctx context.Context, pool, service string) leaseapi.Pool {
	terms, now := s.o.Services.Of(service), s.o.NowMS()
	ids := terms.Range()
	out := leaseapi.Pool{
		Pool: pool, Service: service, Services: []string{}, Epoch: terms.Timeline.EpochMS, BitTS: terms.Timeline.BitTS,
		BitID: terms.BitID, BitSeq: terms.BitSeq, LayoutEnds: terms.Timeline.EndMS(), Low: ids.Low, End: ids.End,
		Term: terms.Term.Milliseconds(), Quarantine: terms.Quarantine.Milliseconds(),
	}
	for _, name := range slices.Sorted(maps.Keys(s.o.Services.Named)) {
		if name != "" && s.o.Services.Named[name].Pool == pool {
			out.Services = append(out.Services, name)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.ProviderTimeout)
	defer cancel()
	v, err := s.view(ctx, service)
	if err != nil {
		out.Problem = s.problemOf(err).Detail
		out.Forecast.Note = "not known: the pool cannot be looked at"
		return out
	}
	usage := provider.UsageOf(v.records, &terms, now)
	out.Fullness = string(usage.Fullness())
	out.Leased, out.Quarantined, out.Free, out.ListedAt = usage.Held, usage.Quarantined(), usage.Free, v.atMS
	s.note(func(b *stats) { out.Forecast, out.FencedUntil = b.prospect(pool, now, usage.Free) })
	return out
}

// watch samples the counters that the page draws over time, until ctx is done.
func (s *Server) watch(ctx context.Context) {
	looking := make(chan struct{})
	defer func() { <-looking }()
	go func() {
		defer close(looking)
		s.lookOver(ctx)
	}()
	s.past.Run(ctx, func() map[string]uint64 {
		granted, refused := s.granted()
		return map[string]uint64{"granted": uint64(granted), "refused": uint64(refused)}
	})
}

// granted is how many leases were granted, and how many acquires were not.
func (s *Server) granted() (leases, refused int64) {
	s.note(func(b *stats) { leases, refused = b.counts.leases, b.counts.refused })
	return leases, refused
}

// lookEach is how often the pools are looked at, so that the log tells of a pool that fills up
// although nothing reads the metrics.
const lookEach = time.Minute

func (s *Server) lookOver(ctx context.Context) {
	ticker := time.NewTicker(lookEach)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.sample()
		}
	}
}
