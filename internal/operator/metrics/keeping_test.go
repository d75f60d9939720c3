package metrics

import (
	"maps"
	"strings"
	"testing"
	"time"
)

// Where there are locks and sequences, the series that alerts read show from the start,
// and the others with the first request.
func TestKeeping(t *testing.T) {
	m := New(Build{})
	want := series(t, m)
	held := 0
	k := m.KeyedStores(func() int { return held })
	for _, reason := range []string{"expired", "taken_over", "refused"} {
		want["kazahana_locks_lost_total{reason="+reason+"}"] = 0
	}
	for _, name := range []string{
		"kazahana_lock_requests_total{op=acquire,result=ok}", "kazahana_sequence_requests_total{result=ok}",
		"kazahana_sequence_requests_total{result=exhausted}", "kazahana_store_errors_total{}",
	} {
		want[name] = 0
	}
	maps.Copy(want, map[string]float64{
		"kazahana_locks_held{}": 0, "kazahana_lock_waiters{}": 0, "kazahana_sequence_values_total{}": 0,
		"kazahana_lock_wait_seconds{}": 0, "sum of kazahana_lock_wait_seconds{}": 0,
	})
	wantSeries(t, m, want)

	held = 3
	k.LockWaiters.Inc()
	k.LockWait.Observe(2*time.Second, 1)
	k.Lock("acquire", "held")
	k.Lock("renew", "timeout")
	k.Sequence("unavailable", 0)
	k.Lost("expired")
	k.Lost("released")
	k.Sequence("ok", 5)
	k.Sequence("ok", 1)
	k.Sequence("exhausted", 0)
	m.StoreCalled("lock_renew", 250*time.Millisecond)
	maps.Copy(want, map[string]float64{
		"kazahana_locks_held{}": 3, "kazahana_lock_waiters{}": 1, "kazahana_lock_wait_seconds{}": 1, "sum of kazahana_lock_wait_seconds{}": 2,
		"kazahana_lock_requests_total{op=acquire,result=held}":  1,
		"kazahana_lock_requests_total{op=renew,result=timeout}": 1, "kazahana_sequence_requests_total{result=unavailable}": 1, "kazahana_store_errors_total{}": 2,
		"kazahana_locks_lost_total{reason=expired}": 1, "kazahana_locks_lost_total{reason=released}": 1, "kazahana_sequence_values_total{}": 6,
		"kazahana_sequence_requests_total{result=ok}": 2, "kazahana_sequence_requests_total{result=exhausted}": 1,
		"kazahana_provider_request_duration_seconds{op=lock_renew}": 1, "sum of kazahana_provider_request_duration_seconds{op=lock_renew}": 0.25,
	})
	wantSeries(t, m, want)
}

// To count costs an atomic addition: no memory, for any count.
func TestKeepingIsCheap(t *testing.T) {
	k := New(Build{}).KeyedStores(func() int { return 0 })
	if n := testing.AllocsPerRun(100, func() {
		k.Lock("acquire", "ok")
		k.Lost("expired")
		k.Sequence("ok", 5)
		k.LockWait.Observe(time.Second, 1)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// What the seeds ask to be watched, and the metric that shows it.
func TestEveryMonitoringItemHasAMetric(t *testing.T) {
	daemon, leaseServer := everything()
	metrics := shown(t, daemon)
	maps.Copy(metrics, shown(t, leaseServer))
	for _, item := range []struct{ asked, metric, kind string }{
		// Seed 000, section 10.3, in its order; and 5.6, the clock.
		{"active leases", "kazahana_leases_active", "GAUGE"},
		{"share of acquires that fail", "kazahana_lease_acquires_total", "COUNTER"},
		{"share of fallback", "kazahana_ids_issued_total", "COUNTER"},
		{"fallback now", "kazahana_fallback_active", "GAUGE"},
		{"exhausted sequence numbers", "kazahana_sequence_exhaustions_total", "COUNTER"},
		{"IDs by service", "kazahana_ids_issued_total", "COUNTER"},
		{"clock found behind", "kazahana_clock_backward_events_total", "COUNTER"},
		// Seed 003, chapter 7: its events, as what can be counted of them (003-7.2-11).
		{"worker id allocated, failed to allocate worker id", "kazahana_lease_acquires_total", "COUNTER"},
		{"keep alive failed, circuit breaking", "kazahana_fallback_active", "GAUGE"},
		{"generated sequence number, failed to increment, reset or set ttl", "kazahana_sequence_requests_total", "COUNTER"},
		{"generated sequence batch", "kazahana_sequence_values_total", "COUNTER"},
		// Seed 002: who holds, waits and loses.
		{"acquire, renew, release", "kazahana_lock_requests_total", "COUNTER"},
		{"locks held", "kazahana_locks_held", "GAUGE"},
		{"locks lost", "kazahana_locks_lost_total", "COUNTER"},
		{"time to the lock", "kazahana_lock_wait_seconds", "HISTOGRAM"},
		{"waiting for locks", "kazahana_lock_waiters", "GAUGE"},
		// Seed 004: topology, resolves, activations, what a lock or a store refuses.
		{"members", "kazahana_placement_members", "GAUGE"},
		{"resolved", "kazahana_placement_resolves_total", "COUNTER"},
		{"activated, activation failed, lock denied", "kazahana_placement_activations_total", "COUNTER"},
		{"passivated", "kazahana_placement_passivations_total", "COUNTER"},
		{"ignored results", "kazahana_placement_ignored_results_total", "COUNTER"},
		// The contract.
		{"", "kazahana_lease_expiry_timestamp_seconds", "GAUGE"},
		{"", "kazahana_leases_lost_total", "COUNTER"},
		{"", "kazahana_clock_forward_events_total", "COUNTER"},
		{"", "kazahana_clock_skew_seconds", "GAUGE"},
		{"", "kazahana_epoch_mismatches_total", "COUNTER"},
		{"", "kazahana_layout_exhaustion_timestamp_seconds", "GAUGE"},
		{"", "kazahana_provider_request_duration_seconds", "HISTOGRAM"},
		{"", "kazahana_state_errors_total", "COUNTER"},
		{"", "kazahana_config_last_reload_successful", "GAUGE"},
		{"", "kazahana_rpc_requests_total", "COUNTER"},
		{"", "kazahana_rpc_duration_seconds", "HISTOGRAM"},
		{"", "kazahana_connections", "GAUGE"},
		{"", "kazahana_build_info", "GAUGE"},
		{"", "kazahana_server_leases_active", "GAUGE"},
		{"", "kazahana_server_acquires_total", "COUNTER"},
		{"", "kazahana_server_slots_free", "GAUGE"},
		{"", "kazahana_server_lock_requests_total", "COUNTER"},
		{"", "kazahana_server_sequence_requests_total", "COUNTER"},
		{"", "kazahana_server_sequence_values_total", "COUNTER"},
	} {
		if got := metrics[item.metric]; !strings.HasPrefix(got, strings.ToLower(item.kind)+" ") {
			t.Errorf("%s: %s is %q, want %s", item.asked, item.metric, got, item.kind)
		}
	}
}
