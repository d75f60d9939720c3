package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// BenchmarkPair acquires and releases one lock.
func BenchmarkPair(b *testing.B) {
	server := redistest.New(b)
	s, err := open(b, server.Config(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if err := s.Init(testContext(b)); err != nil {
		b.Fatal(err)
	}
	before, serial := server.CPU(b), 0
	do := func(q lock.Request) {
		serial++
		q.Tenant, q.Key, q.Owner, q.RequestID = "default", "bench", "alice", fmt.Sprintf("r%031d", serial)
		if _, err := s.Do(context.Background(), q); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		do(lock.Request{Op: lock.Acquire, LeaseID: fmt.Sprintf("%032x", serial), TTLMS: time.Minute.Milliseconds()})
		do(lock.Request{Op: lock.Release})
	}
	b.ReportMetric(float64((server.CPU(b)-before).Microseconds())/float64(b.N), "server-µs/op")
}
