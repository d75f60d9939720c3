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

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

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
