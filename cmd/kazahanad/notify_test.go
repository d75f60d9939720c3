package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestStatusText(t *testing.T) {
	const now = 1_000_000
	lease := func(id int64, remaining time.Duration) issuer.LeaseStatus {
		return issuer.LeaseStatus{MachineID: id, ExpiredMS: now + remaining.Milliseconds(), Usable: remaining > 0}
	}
	one := func(name, mode, cause string, leases ...issuer.LeaseStatus) issuer.ServiceStatus {
		st := issuer.ServiceStatus{Service: name, Mode: mode, Cause: cause, Leases: leases}
		for _, l := range leases {
			if l.Usable {
				st.LeasesUsable++
				st.LeasesEndMS = max(st.LeasesEndMS, l.ExpiredMS)
			}
		}
		return st
	}
	many := one("default", "regular", "", lease(1, 0), lease(2, time.Hour))
	many.LeasesUsable, many.LeasesEndMS = 75_000, now+(2*time.Hour).Milliseconds() // and more that are not listed
	for _, c := range []struct {
		services []issuer.ServiceStatus
		want     string
	}{
		{[]issuer.ServiceStatus{one("default", "regular", "", lease(17, 9*time.Minute+59*time.Second))}, "regular: machine ID 17, ends in 9m"},
		{[]issuer.ServiceStatus{one("default", "regular", "", lease(17, 59*time.Second))}, "regular: machine ID 17, ends in 50s"},
		{[]issuer.ServiceStatus{one("default", "regular", "", lease(17, 0), lease(17, 0), lease(17, 0), lease(17, 0), lease(18, 26*time.Hour))}, "regular: machine ID 18, ends in 26h"},
		{[]issuer.ServiceStatus{one("default", "regular", "", lease(1, time.Minute), lease(2, time.Hour), lease(3, time.Minute), lease(4, 1), lease(5, 1), lease(6, 1))},
			"regular: 6 machine IDs, the last ends in 60m"},
		{[]issuer.ServiceStatus{many}, "regular: 75000 machine IDs, the last ends in 2h"},
		{[]issuer.ServiceStatus{one("default", "starting", "")}, "starting: no lease"},
		{[]issuer.ServiceStatus{one("default", "fallback_cached", "connection refused", lease(17, 0))}, "fallback_cached: no lease: connection refused"},
		{[]issuer.ServiceStatus{one("a", "regular", "", lease(1, time.Minute)), one("b", "unavailable", "full")}, "2 services, the worst of all starting"},
	} {
		if got := statusText(daemon.Status{Mode: "starting", ClockMS: now, Services: c.services}); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestWatchedParts: every part that requests need is watched, of every service, and goes on while
// the daemon works.
func TestWatchedParts(t *testing.T) {
	s := newSite(t)
	settings := &config.Serve{}
	must.Succeed(t, settings.Load(settings, []string{"--config", "none", "--socket", s.Socket, "--state-dir", s.State, "--services", "{orders: {}}",
		"--admin-listen", "unix:" + s.Path("admin.sock")}, config.Process{Environ: []string{"HOME=" + s.Dir}, UID: os.Geteuid(), Now: time.Now()}))
	deaf := func(...string) (bool, error) { return false, nil }
	d := &daemonParts{settings: settings, log: zap.NewNop(), sup: &supervision{notify: deaf}, metrics: metrics.New(metrics.Build{})}
	must.Succeed(t, d.assemble(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.run(ctx) }()
	<-d.server.Serving()
	var names []string
	for _, part := range d.watched() {
		names = append(names, part.Name)
		before := part.Turns()
		await.Eventually(t, part.Name+" takes a turn", func() bool {
			d.server.Prod()
			return part.Turns() > before
		})
	}
	slices.Sort(names)
	if want := []string{"accept loop", "event loop", "keeper of default", "keeper of orders"}; !slices.Equal(names, want) {
		t.Errorf("watched: %q, want %q", names, want)
	}
	await.Eventually(t, "the liveness probe succeeds", func() bool {
		code, _ := livenessProbe(t.Context(), d.adminHandler(ctx))
		return code == http.StatusOK
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if code, said := livenessProbe(t.Context(), d.adminHandler(ctx)); code != http.StatusOK {
		t.Errorf("a stop is taken for a fault: %d %s", code, said)
	}
	// The loops have ended, and there is no stop that explains it.
	short, give := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer give()
	if code, said := livenessProbe(short, d.adminHandler(t.Context())); code != http.StatusServiceUnavailable || said != "the accept loop has stopped working\n" {
		t.Errorf("without its loops the liveness probe gets %d %s", code, said)
	}
	d.close()
}

// livenessProbe asks as Kubernetes does.
func livenessProbe(ctx context.Context, h http.Handler) (code int, said string) {
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/healthz", nil))
	return answer.Code, answer.Body.String()
}
