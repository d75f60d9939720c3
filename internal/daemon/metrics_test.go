package daemon

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// families gathers the metrics by name.
func (r *rig) families() map[string]*dto.MetricFamily {
	r.t.Helper()
	all, err := r.metrics.Registry.Gather()
	must.Succeed(r.t, err)
	byName := map[string]*dto.MetricFamily{}
	for _, f := range all {
		byName[f.GetName()] = f
	}
	return byName
}

// value returns the value of the metric with these label values, in the order of the labels'
// names. A counter begins with its first event.
func (r *rig) value(name string, labels ...string) float64 {
	r.t.Helper()
	for _, m := range r.families()[name].GetMetric() {
		var have []string
		for _, l := range m.GetLabel() {
			have = append(have, l.GetValue())
		}
		if slices.Equal(have, labels) {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	if f := r.families()[name]; f == nil || f.GetType() != dto.MetricType_COUNTER || len(f.GetMetric()[0].GetLabel()) != len(labels) {
		r.t.Fatalf("there is no %s%v", name, labels)
	}
	return 0
}

// labelNames are those of the family's metrics.
func labelNames(f *dto.MetricFamily) string {
	var names []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		names = append(names, l.GetName())
	}
	return strings.Join(names, ",")
}

// TestMetricNames compares the names and the labels of all metrics with the contract's.
// Those of locks, sequences and placement exist only where the daemon has them.
func TestMetricNames(t *testing.T) {
	always := map[string]string{
		"kazahana_ids_issued_total":                    "kind,service",
		"kazahana_leases_active":                       "service",
		"kazahana_lease_acquires_total":                "result,service",
		"kazahana_leases_lost_total":                   "reason,service",
		"kazahana_lease_expiry_timestamp_seconds":      "service",
		"kazahana_fallback_active":                     "service",
		"kazahana_sequence_exhaustions_total":          "service",
		"kazahana_clock_backward_events_total":         "service",
		"kazahana_clock_forward_events_total":          "",
		"kazahana_clock_skew_seconds":                  "service",
		"kazahana_epoch_mismatches_total":              "service",
		"kazahana_layout_exhaustion_timestamp_seconds": "service",
		"kazahana_provider_request_duration_seconds":   "op",
		"kazahana_state_errors_total":                  "",
		"kazahana_rpc_requests_total":                  "code,method",
		"kazahana_rpc_duration_seconds":                "",
		"kazahana_connections":                         "",
		"kazahana_build_info":                          "commit,go_version,version",
		"kazahana_clock_forward_accepted_total":        "",
		"kazahana_refusals_total":                      "limit",
		"kazahana_memory_reserved_bytes":               "",
		"kazahana_memory_reservable_bytes":             "",
		"kazahana_memory_evictions_total":              "",
	}
	keyedStores := map[string]string{
		"kazahana_lock_requests_total":     "op,result",
		"kazahana_locks_lost_total":        "reason",
		"kazahana_locks_held":              "",
		"kazahana_lock_waiters":            "",
		"kazahana_lock_wait_seconds":       "",
		"kazahana_sequence_requests_total": "result",
		"kazahana_sequence_values_total":   "",
		"kazahana_store_errors_total":      "",
	}
	placing := map[string]string{
		"kazahana_placement_state":                       "state",
		"kazahana_placement_members":                     "",
		"kazahana_placement_executors":                   "kind",
		"kazahana_placement_activations":                 "kind",
		"kazahana_placement_resolves_total":              "result",
		"kazahana_placement_activations_total":           "kind,result",
		"kazahana_placement_activation_duration_seconds": "",
		"kazahana_placement_passivations_total":          "reason",
		"kazahana_placement_store_errors_total":          "op",
		"kazahana_placement_ignored_results_total":       "",
	}
	bare := newRig(t).start()
	stored, _ := withLocks(t)
	placed := newSite(t).start("a:1").sees(1)
	placed.activate(placed.worker(), "1") // a kind has series once it has been seen
	for name, test := range map[string]struct {
		rig  *rig
		more map[string]string
	}{"bare": {bare, nil}, "with a store": {stored, keyedStores}, "with placement": {placed.rig, placing}} {
		want := maps.Clone(always)
		maps.Copy(want, test.more)
		p := test.rig.dial()
		p.ids(10)
		p.fails(wire.CodeInvalidParams, "NextIDs", 0)
		for metric, f := range test.rig.families() {
			labels, ok := want[metric]
			standard := strings.HasPrefix(metric, "go_") || strings.HasPrefix(metric, "process_")
			if !ok && !standard || ok && labelNames(f) != labels || f.GetHelp() == "" {
				t.Errorf("%s: %s has the labels %q, want %q, and the help %q", name, metric, labelNames(f), labels, f.GetHelp())
			}
			delete(want, metric)
		}
		for metric := range want {
			t.Errorf("%s: %s is missing", name, metric)
		}
	}
}

func TestMetricValues(t *testing.T) {
	r := newRig(t, func(s *setup) { s.services["orders"] = settings() }).start()
	p, other := r.dial(), r.dial()
	other.alive()
	want := func(value float64, name string, labels ...string) {
		t.Helper()
		if got := r.value(name, labels...); got != value {
			t.Errorf("%s%v is %v, want %v", name, labels, got, value)
		}
	}
	want(0, "kazahana_rpc_requests_total", "TIMEOUT", "NextIDs") // before the first one
	p.ids(256)
	want(2, "kazahana_connections") // both have been answered
	p.id(options{"service": "orders"})
	p.fails(wire.CodeTimeout, "NextID", options{"timeout_ms": 0})
	want(256, "kazahana_ids_issued_total", "regular", "default") // seed 000-10.3-1
	want(1, "kazahana_ids_issued_total", "regular", "orders")
	want(0, "kazahana_ids_issued_total", "fallback_cached", "default")
	want(0, "kazahana_ids_issued_total", "fallback_random", "default")
	want(1, "kazahana_sequence_exhaustions_total", "default")
	want(1, "kazahana_leases_active", "default")
	want(float64(startMS+600_000)/1000, "kazahana_lease_expiry_timestamp_seconds", "default")
	want(0, "kazahana_fallback_active", "default")
	want(1, "kazahana_lease_acquires_total", "ok", "default")
	want(0, "kazahana_lease_acquires_total", "refused", "orders")
	want(0, "kazahana_leases_lost_total", "taken_over", "orders")
	want(float64(timeline.EndMS())/1000, "kazahana_layout_exhaustion_timestamp_seconds", "orders")
	want(0, "kazahana_clock_skew_seconds", "default")
	want(2, "kazahana_provider_request_duration_seconds", "acquire")
	want(1, "kazahana_rpc_requests_total", "ok", "NextIDs")
	want(1, "kazahana_rpc_requests_total", "ok", "NextID")
	want(1, "kazahana_rpc_requests_total", "TIMEOUT", "NextID")
	want(4, "kazahana_rpc_duration_seconds")
	want(1, "kazahana_build_info", "abc", "go1", "v1.2.3")

	r.clock.Jump(-time.Hour)
	p.fails(wire.CodeClockBackward, "NextID")
	want(1, "kazahana_clock_backward_events_total", "default") // seed 000-5.6-3
	r.clock.Jump(time.Hour)
	r.clock.Advance(time.Hour)
	p.id()
	want(1, "kazahana_ids_issued_total", "fallback_cached_uncertain", "default")
	want(1, "kazahana_fallback_active", "default")
	want(0, "kazahana_leases_active", "default")
	want(0, "kazahana_lease_expiry_timestamp_seconds", "default")
	r.line.Always(providertest.OpAcquire, providertest.Fail(errors.New("gone")))
	r.step()
	// Seed 003-7.2-11: the circuit has broken, and a lease was not granted again.
	want(1, "kazahana_lease_acquires_total", "unavailable", "default")
	want(1, "kazahana_fallback_active", "default")
	_ = other.Close()
	await.Eventually(t, "the gauge follows", func() bool { return r.value("kazahana_connections") == 1 })
}

// What a peer sends must not become a label: it could choose any number of them.
func TestPeersChooseNoLabels(t *testing.T) {
	r := newRig(t, func(s *setup) { s.MaxConnections = 1 }).start()
	p := r.dial()
	for _, name := range []string{"a", "b", "NextIDD", "", "ok", "Lock.Steal", "\xff"} {
		p.fails(wire.CodeUnknownMethod, name)
		p.fails(wire.CodeUnknownService, "NextID", options{"service": name + "x"})
	}
	turned := r.dial()
	turned.fails(wire.CodeOverloaded, "zzz")
	turned.ends()
	p.send([]byte("GET"))
	p.wantError(p.receive(), wire.CodeParseError)
	methods, codes := map[string]bool{}, map[string]bool{}
	for _, m := range r.families()["kazahana_rpc_requests_total"].GetMetric() {
		codes[m.GetLabel()[0].GetValue()] = true
		methods[m.GetLabel()[1].GetValue()] = true
	}
	for _, one := range []string{"", "NextID", "NextIDs"} {
		if !methods[one] {
			t.Errorf("no method %q", one)
		}
	}
	for _, one := range append(methodNames(), "") {
		delete(methods, one)
	}
	if len(methods) > 0 {
		t.Errorf("labels that a peer chose: %v", methods)
	}
	for _, code := range []string{
		"ok", "UNKNOWN_METHOD", "UNKNOWN_SERVICE", "OVERLOADED", "PARSE_ERROR",
		"CLOCK_BACKWARD", "LEASE_ACQUISITION", "TIMEOUT", "TIMESTAMP_OVERFLOW", // there from the start
	} {
		if !codes[code] {
			t.Errorf("no code %s", code)
		}
		delete(codes, code)
	}
	if len(codes) > 0 {
		t.Errorf("further codes: %v", codes)
	}
	if got := r.value("kazahana_rpc_requests_total", "UNKNOWN_METHOD", ""); got != 7 {
		t.Errorf("%v unknown methods", got)
	}
}

func methodNames() (names []string) {
	for _, m := range methods {
		names = append(names, m.name)
	}
	return names
}
