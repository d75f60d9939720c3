package kazahana

import (
	"testing"

	"github.com/kazahana/kazahana/internal/wire"
)

// BenchmarkPrefetch is what an ID costs from memory, by a real daemon, all told:
// the fetches that replenish it as well.
func BenchmarkPrefetch(b *testing.B) {
	d := newDaemon(b, "--max-throughput-per-ms", "65536", "--provider", "memory:?bit_seq=16")
	c := d.client(WithPrefetch(64, 0))
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.NextID(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTake is what an ID costs that is at hand.
func BenchmarkTake(b *testing.B) {
	p := newPrefetcher(MaxBatch, maxMaxAge, func(n int) ([]wire.Range, error) {
		return []wire.Range{{Start: 1, Count: n}}, nil
	})
	defer p.close()
	c := &Client{ahead: p}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.NextID(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
