package etcd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
)

// BenchmarkAcquire grants single leases in a pool in which so many are alive
// all the time: to a process that acquires often, and has a view, and to one
// that acquires rarely, and scans; one after the other, and 32 at once.
func BenchmarkAcquire(b *testing.B) {
	for _, live := range []int64{10, 1000, 8000} {
		for _, mode := range []string{"view", "scan"} {
			for _, parallel := range []int{1, 32} {
				b.Run(fmt.Sprintf("%d live/%s/%d at once", live, mode, parallel), func(b *testing.B) {
					benchmarkAcquire(b, live, mode == "view", parallel)
				})
			}
		}
	}
}

// cpu is the processor time that the process has used, 0 where that cannot be
// read.
func cpu(b *testing.B, pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func benchmarkAcquire(b *testing.B, live int64, view bool, parallel int) {
	terms := provider.DefaultTerms()
	var clock, races atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1e9)
	p := mustOpen(b, config(b, provider.Services{Default: terms}, clock.Load))
	p.contended = func() { races.Add(1) }
	if !view {
		p.pool(terms).noViewBefore = time.Now().Add(time.Hour)
	}
	// Once around the pool, so that every record is there; then so many at once
	// that `live` of them have not ended.
	for n := int64(0); n < terms.Range().Count()+live; n += 256 {
		if _, err := p.Acquire(within(b, time.Minute), provider.AcquireRequest{ThroughputPerMS: 256 * 256}); err != nil {
			b.Fatal(err)
		}
		clock.Add(256 * 2 * terms.Term.Milliseconds() / live)
	}
	if view {
		viewOf(b, p)
	}
	b.SetParallelism(parallel) // GOMAXPROCS is 1 where the benchmark is pinned
	races.Store(0)
	own, etcd := cpu(b, os.Getpid()), cpu(b, etcdtest.SharedMember().PID())
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			clock.Add(2 * terms.Term.Milliseconds() / live)
			req := provider.AcquireRequest{RequestID: provider.NewSecret(), Meta: map[string]string{"host": "bench", "pid": "4711"}}
			if _, err := p.Acquire(within(b, time.Minute), req); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acquires/s")
	// Where the processor is shared with others, time on it says more.
	b.ReportMetric(float64((cpu(b, os.Getpid())-own).Microseconds())/float64(b.N), "own-cpu-us/acquire")
	b.ReportMetric(float64((cpu(b, etcdtest.SharedMember().PID())-etcd).Microseconds())/float64(b.N), "etcd-cpu-us/acquire")
	b.ReportMetric(float64(races.Load())/float64(b.N), "races/acquire")
}
