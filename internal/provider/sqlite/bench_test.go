package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

func benchPath(b *testing.B, memory bool) string {
	b.Helper()
	if !memory {
		return filepath.Join(b.TempDir(), "leases.db")
	}
	dir, err := os.MkdirTemp("/dev/shm", "kazahana-bench-")
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "leases.db")
}

func BenchmarkOpen(b *testing.B) {
	for name, existing := range map[string]bool{"new": false, "existing": true} {
		b.Run(name, func(b *testing.B) {
			path := benchPath(b, false)
			for b.Loop() {
				p, err := Open(context.Background(), Config{Path: path, Services: defaultServices()})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				p.Close()
				if !existing {
					os.Remove(path)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkAcquire grants single leases: on disk, which shows what a commit
// costs, and in memory, which shows the rest.
func BenchmarkAcquire(b *testing.B) {
	steady := provider.DefaultTerms()
	huge := provider.DefaultTerms()
	huge.Timeline.BitTS = 33
	huge = huge.WithBitSeq(0)
	mixed := map[string]provider.Terms{"coarse": steady.WithBitSeq(9), "coarser": steady.WithBitSeq(12)}
	for _, bench := range []struct {
		name     string
		memory   bool
		services provider.Services
	}{
		{"disk", false, provider.Services{Default: steady}},
		{"memory", true, provider.Services{Default: steady}},
		{"memory, 2^29 slots", true, provider.Services{Default: huge}},
		{"memory, three layouts", true, provider.Services{Default: steady, Named: mixed}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			now := snowflake.DefaultEpochMS + 1000
			p, err := Open(context.Background(), Config{
				Path: benchPath(b, bench.memory), Services: bench.services, NowMS: func() int64 { return now },
			})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			services := []string{"", "coarse", "coarser"}
			for n := 0; b.Loop(); n++ {
				// One by one around the pool, each slot as its last holder's time is up.
				now += 20 * 60 * 1000 / 4096
				req := provider.AcquireRequest{RequestID: provider.NewSecret(), Meta: map[string]string{"host": "bench"}}
				if len(bench.services.Named) > 0 {
					req.Service = services[n%64/62]
				}
				if _, err := p.Acquire(context.Background(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAcquireTogether grants single leases to many callers at once, which
// share commits.
func BenchmarkAcquireTogether(b *testing.B) {
	services := provider.Services{Default: provider.DefaultTerms()}
	services.Default.Term, services.Default.Quarantine = time.Millisecond, 0
	p, err := Open(context.Background(), Config{Path: benchPath(b, false), Services: services})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	b.SetParallelism(1000)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			req := provider.AcquireRequest{RequestID: provider.NewSecret(), Meta: map[string]string{"host": "bench"}}
			if _, err := p.Acquire(context.Background(), req); err != nil {
				b.Fatal(err)
			}
		}
	})
}
