//go:build linux

package main

import (
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	result := func(requests int64, p50 time.Duration) loadResult {
		return loadResult{Requests: requests, Elapsed: time.Second, P50: p50, P99: 2 * p50}
	}
	r := &results{
		plan:    plan{rounds: 2, duration: time.Second, rows: []workload{workloads[0], workloads[4]}},
		servers: []*server{{name: "ours"}, {name: "theirs"}, {name: "absent"}},
		measured: map[cell][]loadResult{
			{"1", "ours"}:        {result(1_500_000, 10*time.Microsecond), result(3000, 20*time.Microsecond)},
			{"1", "theirs"}:      {result(1_000_000, 20*time.Microsecond), result(2000, 40*time.Microsecond)},
			{"batch100", "ours"}: {result(10, 0), result(20, 0)},
		},
		generator: []generatorResult{{SingleNS: 40}, {SingleNS: 50}},
	}
	var out strings.Builder
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"requests/s 751,500 (3,000-1,500,000) 501,000 (2,000-1,000,000) 1.50 (1.50-1.50) - -",
		"p50, µs 15.0 (10.0-20.0) 30.0 (20.0-40.0) 0.50 (0.50-0.50) - -",
		"NextIDs(100), 1 connection IDs/s 1,500 (1,000-2,000) - - - -",
		"single IDs ns/ID 45.00 (40.00-50.00) - - - -",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
