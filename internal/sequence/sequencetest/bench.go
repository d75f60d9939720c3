package sequencetest

import (
	"context"
	"testing"

	"github.com/kazahana/kazahana/internal/sequence"
)

// Benchmark measures a store: calls one after the other, and of many callers at
// once, for one key and for a key each; single values and batches.
func Benchmark(b *testing.B, store sequence.Store) {
	const callers = 64
	call := func(b *testing.B, key string, count int) {
		r := request(key, count, sequence.DefaultOptions())
		r.RequestID = sequence.NewRequestID()
		if _, err := store.Next(context.Background(), r); err != nil {
			b.Error(err)
		}
	}
	for name, count := range map[string]int{"single": 1, "of 100": 100} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				call(b, "one", count)
			}
		})
		b.Run(name+", 64 callers", func(b *testing.B) {
			b.SetParallelism(callers) // GOMAXPROCS is 1 where the benchmark is pinned
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					call(b, "one", count)
				}
			})
		})
	}
	b.Run("single, 64 callers and keys", func(b *testing.B) {
		b.SetParallelism(callers)
		b.RunParallel(func(pb *testing.PB) {
			key := sequence.NewRequestID()
			for pb.Next() {
				call(b, key, 1)
			}
		})
	})
}
