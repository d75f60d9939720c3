package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// get asks the daemon's side door.
func (s *site) get(path string) (code int, body string) {
	s.t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.path("admin.sock"))
		},
	}}
	answer, err := client.Get("http://admin" + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(s.brief("--fallback", "none", "--admin-listen", "unix:"+s.path("admin.sock"))...)
	c := s.dial()
	c.ids(100)
	c.id()
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := s.get(path); code != http.StatusOK || body != "ok\n" {
			t.Errorf("%s answers %d %q", path, code, body)
		}
	}
	if code, _ := s.get("/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles are there unasked: %d", code)
	}
	_, metrics := s.get("/metrics")
	for _, want := range []string{
		`kazahana_ids_issued_total{kind="regular",service="default"} 101`,
		`kazahana_leases_active{service="default"} 1`,
		`kazahana_lease_acquires_total{result="ok",service="default"}`,
		`kazahana_lease_expiry_timestamp_seconds{service="default"}`,
		`kazahana_fallback_active{service="default"} 0`,
		`kazahana_sequence_exhaustions_total{service="default"}`,
		`kazahana_clock_backward_events_total{service="default"}`,
		`kazahana_clock_forward_events_total`,
		`kazahana_clock_skew_seconds{service="default"}`,
		`kazahana_epoch_mismatches_total{service="default"}`,
		`kazahana_layout_exhaustion_timestamp_seconds{service="default"}`,
		`kazahana_provider_request_duration_seconds_count{op="acquire"`,
		`kazahana_state_errors_total`,
		`kazahana_rpc_requests_total{code="ok",method="NextID"} 1`,
		`kazahana_rpc_requests_total{code="ok",method="NextIDs"} 1`,
		`kazahana_rpc_duration_seconds_count`,
		`kazahana_connections`,
		`kazahana_build_info{`,
		`version="` + testVersion + `"`,
		`process_open_fds`, `go_goroutines`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if t.Failed() {
		t.Log(metrics)
	}
	mend := outages["moved away"](t, s)
	c.awaitMode("unavailable")
	if code, body := s.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, s.leases()) {
		t.Errorf("/readyz answers %d %q", code, body)
	}
	if code, _ := s.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
	mend()
	c.awaitMode("regular")
	if code, body := s.get("/readyz"); code != http.StatusOK {
		t.Errorf("once mended, /readyz answers %d %q", code, body)
	}
}
