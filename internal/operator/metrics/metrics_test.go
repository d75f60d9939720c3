package metrics

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

// series are the metrics of the daemon as name{label=value,...} to their value;
// of histograms the count and the sum.
func series(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	families, err := m.Registry.Gather()
	must.Succeed(t, err)
	all := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "kazahana_") {
			continue
		}
		for _, one := range f.GetMetric() {
			var labels []string
			for _, l := range one.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				all[name] = one.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				all[name] = one.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				all[name] = float64(one.GetHistogram().GetSampleCount())
				all["sum of "+name] = one.GetHistogram().GetSampleSum()
			default:
				t.Errorf("%s has the type %v", name, f.GetType())
			}
			if strings.HasSuffix(f.GetName(), "_total") != (f.GetType() == dto.MetricType_COUNTER) {
				t.Errorf("%s is a %v", f.GetName(), f.GetType())
			}
		}
	}
	return all
}

func wantSeries(t *testing.T, m *Metrics, want map[string]float64) {
	t.Helper()
	got := series(t, m)
	for name, value := range want {
		if v, ok := got[name]; !ok || v != value {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, value)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s was not expected", name)
	}
}

// What a new daemon shows before anything has happened.
func TestNew(t *testing.T) {
	m := New(Build{Version: "v1", Commit: "abc", GoVersion: "go1"})
	want := map[string]float64{
		"kazahana_build_info{commit=abc,go_version=go1,version=v1}": 1,
		"kazahana_connections{}":                                    0,
		"kazahana_state_errors_total{}":                             0,
		"kazahana_clock_forward_events_total{}":                     0,
		"kazahana_clock_forward_accepted_total{}":                   0,
		"kazahana_rpc_duration_seconds{}":                           0,
		"sum of kazahana_rpc_duration_seconds{}":                    0,
	}
	for _, name := range limits { // a first refusal is an increase
		want["kazahana_refusals_total{limit="+name+"}"] = 0
	}
	for _, method := range []string{"NextID", "NextIDs"} {
		for _, code := range []string{"ok", "CLOCK_BACKWARD", "LEASE_ACQUISITION", "TIMEOUT", "TIMESTAMP_OVERFLOW"} {
			want["kazahana_rpc_requests_total{code="+code+",method="+method+"}"] = 0
		}
	}
	wantSeries(t, m, want)
	families, err := m.Registry.Gather()
	must.Succeed(t, err)
	for _, name := range []string{"process_cpu_seconds_total", "process_open_fds", "go_goroutines"} {
		if !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name }) {
			t.Errorf("no %s", name)
		}
	}
	// A second daemon in the process has its own.
	New(Build{}).Connections.Set(9)
	if got := series(t, m)["kazahana_connections{}"]; got != 0 {
		t.Errorf("connections: %v", got)
	}
}

// Limits without a key share a series that exists from the start.
func TestRefused(t *testing.T) {
	m, server := New(Build{}), NewLeaseServer(Build{})
	for _, limit := range []string{"holds", "LimitNOFILE"} {
		m.Refused(limit)
		server.Refused(limit)
	}
	m.Refused("max_keys")
	got := series(t, m)
	if shared, keys := got["kazahana_refusals_total{limit=other}"], got["kazahana_refusals_total{limit=max_keys}"]; shared != 2 || keys != 1 {
		t.Errorf("%v and %v are counted", shared, keys)
	}
	var count dto.Metric
	if err := server.refusals.WithLabelValues(other).Write(&count); err != nil || count.GetCounter().GetValue() != 2 {
		t.Errorf("the lease server counts %v, %v", count.GetCounter(), err)
	}
}

func TestService(t *testing.T) {
	m := New(Build{})
	before := series(t, m)
	orders := m.Service("orders")
	want := map[string]float64{
		"kazahana_leases_lost_total{reason=taken_over,service=orders}": 0,
		"kazahana_epoch_mismatches_total{service=orders}":              0,
	}
	for _, result := range []string{"ok", "refused", "unavailable", "timeout", "fenced", "mismatch"} {
		want["kazahana_lease_acquires_total{result="+result+",service=orders}"] = 0
	}
	maps.Copy(want, before)
	wantSeries(t, m, want)

	orders.Acquired("fenced")
	orders.Acquired("fenced")
	orders.Lost("taken_over")
	orders.Mismatch()
	orders.StateFailed()
	orders.Skew(-1500 * time.Millisecond)
	orders.Called("acquire", 250*time.Millisecond)
	orders.Called("acquire", 250*time.Millisecond)
	want["kazahana_lease_acquires_total{result=fenced,service=orders}"] = 2
	want["kazahana_leases_lost_total{reason=taken_over,service=orders}"] = 1
	want["kazahana_epoch_mismatches_total{service=orders}"] = 1
	want["kazahana_state_errors_total{}"] = 1
	want["kazahana_clock_skew_seconds{service=orders}"] = -1.5
	want["kazahana_provider_request_duration_seconds{op=acquire}"] = 2
	want["sum of kazahana_provider_request_duration_seconds{op=acquire}"] = 0.5
	wantSeries(t, m, want)
}
