// Package admin is the HTTP side door for operators and their tools: metrics,
// health, and profiles where they are wanted. It is no way to IDs.
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

// How long a client may take over its request's head, and leave a connection
// unused. Answers have no limit: a profile takes as long as it was asked to.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
)

// Options of the handler.
type Options struct {
	Registry *prometheus.Registry
	Ready    func() error // why no ID can be issued now; nil = one can
	Pprof    bool
	Page     http.Handler // optional: for people, at /
	Status   func() any   // optional: what the page shows, as JSON at StatusPath
}

// StatusPath is where the page's data is.
const StatusPath = "/status.json"

// Handler serves /metrics, /healthz (the process runs), /readyz (IDs can be
// issued, be it as fallback) and, where wanted, a page for people, its data and
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
	_, _ = w.Write(append(b, '\n')) // the peer has gone, or not
}

// SplitAddress tells the network of an admin_listen value: unix:PATH, or
// host:port.
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
