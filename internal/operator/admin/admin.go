// Package admin serves HTTP for operators and their tools: metrics, health, a status
// page, and profiles if configured. It issues no IDs.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Time limits of a request's head and of an idle connection. Answers have none: the
// client chooses the length of a profile.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
)

// Options of the handler.
type Options struct {
	Registry *prometheus.Registry
	Ready    func() error // why no ID can be issued now; nil = one can
	Pprof    bool
	Page     http.Handler // optional: the status page, at /
	Status   func() any   // optional: the page's data, as JSON at StatusPath
}

// StatusPath is the path of the page's data.
const StatusPath = "/status.json"

// Handler serves /metrics, /healthz (the process runs), /readyz (IDs can be issued,
// regular or fallback) and, if the options say so, the status page, its data and
// /debug/pprof.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	if o.Page != nil {
		mux.Handle("GET /{$}", o.Page)
	}
	if o.Status != nil {
		mux.HandleFunc("GET "+StatusPath, func(w http.ResponseWriter, _ *http.Request) { serveStatus(w, o.Status()) })
	}
	if o.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func serveStatus(w http.ResponseWriter, status any) {
	b, err := json.Marshal(status)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
	_, _ = w.Write(append(b, '\n')) // an error means that the peer has gone
}

// SplitAddress splits an admin_listen value (unix:PATH or host:port) into network
// and address.
func SplitAddress(address string) (network, addr string) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return "unix", path
	}
	return "tcp", address
}

// Serve answers on the listener until ctx is done. It returns nil then.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin listener: %w", err)
	}
	return nil
}
