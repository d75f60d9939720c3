package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
)

// maxIdleSeries is the cost of an unused daemon for Prometheus at most: it is stored for each
// host of a fleet.
const maxIdleSeries = 110

// firstActor are the metrics with series that begin with the first kind of actors.
var firstActor = []string{"kazahana_placement_activations", "kazahana_placement_executors", "kazahana_placement_activations_total"}

// scrapeIdle starts a daemon and returns its metrics once it has asked its provider for
// everything that it asks it for without clients, and replaced a lease.
func scrapeIdle(t *testing.T, flags ...string) string {
	s := newSite(t)
	s.Start(s.Brief(append([]string{
		"--admin-listen", "unix:" + s.Path("admin.sock"),
	}, flags...)...)...)
	text := ""
	await.Eventually(t, "the provider has granted, verified and taken back a lease", func() bool {
		status := 0
		status, text = s.Get("/metrics")
		calls := func(op string) bool {
			return strings.Contains(text, `kazahana_provider_request_duration_seconds_count{op="`+op+`"}`)
		}
		return status == http.StatusOK && calls("acquire") && calls("verify") && calls("release")
	})
	return text
}

// TestIdleSeries: an idle daemon has few series. What alerts and dashboards read is
// among them, so that a first failure is an increase; the alerts' labels, too.
func TestIdleSeries(t *testing.T) {
	t.Parallel()
	plain := scrapeIdle(t)
	n := 0
	for line := range strings.Lines(plain) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	if n > maxIdleSeries {
		t.Errorf("an idle daemon has %d series, more than %d:\n%s", n, maxIdleSeries, plain)
	}
	s := newSite(t)
	more := scrapeIdle(t, "--placement-authority", "a:1", "--memcached-listen", "unix:"+s.Path("m.sock"), "--http-listen", "unix:"+s.Path("h.sock"))
	idle := readMetrics(t, more).with(certified(t))
	c := &queryCheck{exported: idle, recorded: map[string][]string{}, used: map[string]bool{}}
	c.alerts(t)
	for _, path := range dashboards {
		for _, panel := range readDashboard(t, path).Panels {
			for _, target := range panel.Targets {
				for _, name := range queryMetric.FindAllString(target.Expr, -1) {
					if c.series[name] == nil && c.recorded[name] == nil && !slices.Contains(firstActor, name) {
						t.Errorf("%s, %q: an idle process does not show %s", path, panel.Title, name)
					}
				}
			}
		}
	}
}
