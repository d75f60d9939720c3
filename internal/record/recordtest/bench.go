package recordtest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// Benchmark measures changes: one after the other; of many callers, on one key and on a
// key each; and of many clients, as processes would be, on one key.
func Benchmark(b *testing.B, open func() (record.Store, error)) {
	const many = 64
	var clients []record.Store
	for range many {
		s, err := open()
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		clients = append(clients, s)
	}
	var slowest atomic.Int64
	change := func(b *testing.B, s record.Store, key string) {
		began := time.Now()
		_, err := s.Change(context.Background(), record.Ask{Keys: []string{key}}, func(v record.View) ([]record.Write, error) {
			return []record.Write{{Key: key, Value: []byte(fmt.Sprint(len(v.Records), v.NowMS))}}, nil
		})
		if err != nil {
			b.Error(err)
		}
		for took := int64(time.Since(began)); ; {
			if known := slowest.Load(); took <= known || slowest.CompareAndSwap(known, took) {
				return
			}
		}
	}
	parallel := func(name string, store func(caller int) record.Store, key func(caller int) string) {
		b.Run(name, func(b *testing.B) {
			slowest.Store(0)
			var callers atomic.Int64
			b.SetParallelism(many) // GOMAXPROCS is 1 where the benchmark is pinned
			b.RunParallel(func(pb *testing.PB) {
				n := int(callers.Add(1))
				for pb.Next() {
					change(b, store(n), key(n))
				}
			})
			b.ReportMetric(float64(slowest.Load())/1e6, "slowest-ms")
		})
	}
	one := func(int) string { return "one" }
	first := func(int) record.Store { return clients[0] }
	b.Run("one caller", func(b *testing.B) {
		for b.Loop() {
			change(b, clients[0], "one")
		}
	})
	parallel("64 callers, one key", first, one)
	parallel("64 callers and keys", first, func(n int) string { return fmt.Sprint("key ", n) })
	parallel("64 clients, one key", func(n int) record.Store { return clients[n%many] }, one)
}
