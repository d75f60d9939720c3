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

	"github.com/kazahana/kazahana/internal/operator/limitlistener"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the listener, which knows no credentials: a connection idles for a moment
// only, and few are open at once, so that they leave the open files to the daemon's
// socket. One address has three quarters of them. A silent connection ends as one does
// that idles. The answer with a profile has the time of the profile in addition.
const (
	MaxConnections = 256
	readTimeout    = 5 * time.Second // of a whole request
	writeTimeout   = 10 * time.Second
	idleTimeout    = 5 * time.Second
	maxHeaderBytes = 32 << 10
	// aliveTimeout is less than probes wait by custom, 5 s, so that they get the answer.
	aliveTimeout = 3 * time.Second
	// stopTimeout is how long a stop waits for answers under way. The usual ones take a few
	// milliseconds. A profile is cut off.
	stopTimeout = time.Second
)

// Options of the handler.
type Options struct {
	Registry *prometheus.Registry
	Ready    func() error                // why no ID can be issued now; nil = one can
	Alive    func(context.Context) error // optional: names a part that has stopped working; called with a timeout
	Pprof    bool
	Page     http.Handler // optional: the status page, at /
	Status   func() any   // optional: the page's data, as JSON at StatusPath
}

// StatusPath is the path of the page's data.
const StatusPath = "/status.json"

// Handler serves /metrics, /healthz (the daemon serves), /readyz (IDs can be issued,
// regular or fallback) and, if the options say so, the status page, its data and
// /debug/pprof.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), aliveTimeout)
		defer cancel()
		if o.Alive != nil {
			if err := o.Alive(ctx); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
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

// Serve answers on the listener until ctx is done. It returns nil then, after the answers under
// way. The counter counts the refusals of connections.
func Serve(ctx context.Context, l net.Listener, h http.Handler, counter *refusals.Counter) error {
	most := limitlistener.Beside(MaxConnections)
	limited := limitlistener.New(l, limitlistener.Limits{Connections: most, PerAddress: most - most/4}, func(r limitlistener.Refusal) {
		counter.Refuse(refusals.AdminConnections, r.String())
	})
	server := &http.Server{
		Handler: private(h), ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(soon) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(limited)
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin listener: %w", err)
	}
	return nil
}

// private keeps pages of other sites from reading these pages, and caches from keeping them.
func private(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if FromOtherSite(r) {
			http.Error(w, "requests from pages of other sites are refused", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
