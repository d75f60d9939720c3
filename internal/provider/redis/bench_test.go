package redis

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// BenchmarkAcquire grants single leases in a pool where so many are alive. The
// clock moves so that each new one takes the place of one that has ended.
func BenchmarkAcquire(b *testing.B) {
	huge := provider.DefaultTerms()
	huge.Timeline.BitTS, huge.Timeline.EpochMS = 33, testTime-1000
	huge = huge.WithBitSeq(0)
	for name, terms := range map[string]provider.Terms{"2^13": provider.DefaultTerms(), "2^29": huge} {
		for _, alive := range []int{10, 1000, 8000} {
			b.Run(fmt.Sprintf("%s machine IDs, %d alive", name, alive), func(b *testing.B) {
				p, clock := fill(b, terms, alive)
				step := (terms.Term + terms.Quarantine).Milliseconds() / int64(alive)
				before := redistest.Shared(b).CPU(b)
				for b.Loop() {
					clock.Add(step)
					acquireOne(b, p)
				}
				b.ReportMetric(float64((redistest.Shared(b).CPU(b)-before).Microseconds())/float64(b.N), "server-µs/op")
			})
		}
	}
}

// BenchmarkRing builds the ring of a layout that is asked for the first time.
func BenchmarkRing(b *testing.B) {
	p, clock := fill(b, provider.DefaultTerms(), 8000)
	server := redistest.Shared(b)
	before := redistest.Shared(b).CPU(b)
	for b.Loop() {
		clock.Add(1000)
		server.Do(b, "DEL", p.key(provider.DefaultPool, "rings"))
		acquireOne(b, p)
	}
	b.ReportMetric(float64((redistest.Shared(b).CPU(b)-before).Microseconds())/float64(b.N), "server-µs/op")
}

func fill(b *testing.B, terms provider.Terms, alive int) (*Provider, *atomic.Int64) {
	b.Helper()
	var clock atomic.Int64
	clock.Store(testTime)
	cfg := configOf(redistest.Shared(b), provider.Services{Default: terms})
	cfg.NowMS = clock.Load
	p := mustOpen(b, cfg)
	mustInit(b, p)
	step := (terms.Term + terms.Quarantine).Milliseconds() / int64(alive)
	for range alive {
		clock.Add(step)
		acquireOne(b, p)
	}
	return p, &clock
}

func acquireOne(b *testing.B, p *Provider) {
	req := provider.AcquireRequest{RequestID: provider.NewSecret(), Meta: map[string]string{"host": "bench"}}
	if _, err := p.Acquire(context.Background(), req); err != nil {
		b.Fatal(err)
	}
}
