package metrics

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// placementAtRest are the series of a daemon that has placed nothing yet.
func placementAtRest(t *testing.T) map[string]float64 {
	t.Helper()
	want := series(t, New(Build{}))
	for name, words := range map[string][]string{
		"kazahana_placement_state{state=":                {"stopped", "not_ready", "client", "member"},
		"kazahana_placement_resolves_total{result=":      {"local", "remote", "pending", "held", "not_ready", "unserved", "overloaded", "canceled", "failed"},
		"kazahana_placement_passivations_total{reason=":  {"moved", "idle", "released", "stopped", "membership_ended", "unserved", "process_gone", "unanswered", "failed"},
		"kazahana_placement_store_errors_total{op=":      {"membership", "members", "try_acquire", "load", "check_owner", "store", "remove", "release"},
		"kazahana_placement_members{":                    {""},
		"kazahana_placement_ignored_results_total{":      {""},
		"kazahana_placement_activation_duration_seconds": {"{"},
	} {
		for _, word := range words {
			want[name+word+"}"] = 0
		}
	}
	want["sum of kazahana_placement_activation_duration_seconds{}"] = 0
	return want
}

// Where there is placement, all its series show from the start, and those of a
// kind when it is first seen.
func TestPlacement(t *testing.T) {
	m := New(Build{})
	want := placementAtRest(t)
	var now PlacementSample
	p := NewPlacement()
	m.Placement(p, func() PlacementSample { return now })
	wantSeries(t, m, want)

	now = PlacementSample{
		State: "member", Members: 3, Activations: map[string]int{"room": 5}, Executors: map[string]int{"room": 2, "user": 1}, Ignored: 4,
	}
	series(t, m) // kinds are known when they have been seen
	p.ResolvedLocal.Inc()
	p.Resolved("pending")
	p.Resolved("no such word")
	p.Activated("room", 2*time.Second)
	p.NotActivated("room", true)
	p.NotActivated("room", false)
	p.Passivated("unanswered")
	p.StoreFailed("load")
	maps.Copy(want, map[string]float64{
		"kazahana_placement_state{state=member}": 1, "kazahana_placement_members{}": 3, "kazahana_placement_ignored_results_total{}": 4,
		"kazahana_placement_activations{kind=room}": 5, "kazahana_placement_activations{kind=user}": 0,
		"kazahana_placement_executors{kind=room}": 2, "kazahana_placement_executors{kind=user}": 1,
		"kazahana_placement_resolves_total{result=local}": 1, "kazahana_placement_resolves_total{result=pending}": 1,
		"kazahana_placement_activations_total{kind=room,result=ok}":     1,
		"kazahana_placement_activations_total{kind=room,result=held}":   1,
		"kazahana_placement_activations_total{kind=room,result=failed}": 1,
		"kazahana_placement_activation_duration_seconds{}":              1,
		"sum of kazahana_placement_activation_duration_seconds{}":       2,
		"kazahana_placement_passivations_total{reason=unanswered}":      1,
		"kazahana_placement_store_errors_total{op=load}":                1,
	})
	for _, result := range []string{"ok", "held", "failed"} {
		want["kazahana_placement_activations_total{kind=user,result="+result+"}"] = 0
	}
	wantSeries(t, m, want)

	now = PlacementSample{} // no process is registered any more: their series stay
	for _, name := range []string{"state{state=member}", "members{}", "ignored_results_total{}", "activations{kind=room}", "executors{kind=room}", "executors{kind=user}"} {
		want["kazahana_placement_"+name] = 0
	}
	wantSeries(t, m, want)
}

// Processes name kinds: however many they name, there are never more series than
// for so many.
func TestKindsAreBounded(t *testing.T) {
	m := New(Build{})
	p := NewPlacement()
	many := map[string]int{}
	for i := range 1000 {
		many[fmt.Sprint("kind-", i)] = 1
	}
	p.Activated("first", time.Millisecond)
	m.Placement(p, func() PlacementSample { return PlacementSample{Activations: many, Executors: many} })
	for kind := range many {
		p.Activated(kind, time.Millisecond)
	}
	sums, labels := map[string]float64{}, map[string]int{}
	for name, value := range series(t, m) {
		if metric, label, ok := strings.Cut(name, "{kind="); ok {
			metric, _, _ = strings.Cut(metric, "_total")
			sums[metric] += value
			if strings.HasSuffix(metric, "executors") {
				labels[label] += int(value)
			}
		}
	}
	if len(labels) != MaxKinds+1 || labels["other}"] != 1000-(MaxKinds-1) {
		t.Errorf("%d labels, %d kinds are others", len(labels), labels["other}"])
	}
	if got := sums["kazahana_placement_executors"]; got != 1000 {
		t.Errorf("executors: %v", got)
	}
	if got := sums["kazahana_placement_activations"]; got != 1000+1001 { // the gauge and the counter
		t.Errorf("activations: %v", got)
	}
}

// To count costs no memory.
func TestPlacementIsCheap(t *testing.T) {
	p := NewPlacement()
	p.Activated("room", time.Second)
	if n := testing.AllocsPerRun(100, func() {
		p.ResolvedLocal.Inc()
		p.ResolvedRemote.Inc()
		p.Resolved("pending")
		p.Activated("room", time.Second)
		p.NotActivated("room", true)
		p.Passivated("idle")
		p.StoreFailed("load")
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
