package leaseserver

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/metrics"
	"github.com/kazahana/kazahana/internal/provider"
)

// Options of a server. All but those marked optional must be set.
type Options struct {
	Provider provider.Provider
	Services provider.Services // the terms on which Provider grants
	Version  string

	// Tokens returns what the tokens of requests are looked up in. Optional:
	// without it requests need none.
	Tokens func() *Tokens
	// ClientCertificates has every request but those for health need a client
	// certificate, which the TLS configuration verifies.
	ClientCertificates bool

	ProviderTimeout time.Duration // of one provider call
	MaxInFlight     int
	RateLimit       float64 // requests per second and client; 0 = unlimited
	RateBurst       int

	Ready   func(context.Context) error // optional: why nothing can be granted now
	NowMS   func() int64                // optional: for Retry-After and statistics
	Metrics *metrics.LeaseServer
	Log     *zap.Logger
}

// Server is the HTTP handler.
type Server struct {
	o        Options
	mux      *http.ServeMux
	origins  *http.CrossOriginProtection
	slots    chan struct{} // one element per request under way
	limits   *limiter
	counters counters
	sampled  sampled
	stopping atomic.Bool
	failedMS atomic.Int64 // when the provider was last unavailable; 0 = it answered since
	sparing  rate.Sometimes
	phases   phases
}

// overloadedRetry is when to come back to a server that has too much to do.
const overloadedRetry = time.Second

// unreadyAfterFailure is for how long /readyz reports that the provider failed,
// unless it answers before.
const unreadyAfterFailure = 10 * time.Second

// New returns a server.
func New(o Options) *Server {
	if o.NowMS == nil {
		o.NowMS = func() int64 { return time.Now().UnixMilli() }
	}
	if o.Ready == nil {
		o.Ready = func(context.Context) error { return nil }
	}
	s := &Server{
		o: o, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(),
		slots: make(chan struct{}, o.MaxInFlight), limits: newLimiter(o.RateLimit, o.RateBurst),
		// An outage makes every request fail: some lines tell as much as all.
		sparing: rate.Sometimes{First: 3, Interval: time.Second},
		phases:  patience,
	}
	for _, name := range append([]string{"", otherServices}, slices.Collect(maps.Keys(o.Services.Named))...) {
		o.Metrics.Service(s.label(name))
	}
	o.Metrics.Watch(s.sample)
	s.routes()
	return s
}

func (s *Server) routes() {
	s.api("POST "+leaseapi.PathLease, ScopeLeases, s.acquire)
	s.api("DELETE "+leaseapi.PathLease+"/{id}", ScopeLeases, s.release)
	s.api("POST "+leaseapi.PathLease+"/{id}"+leaseapi.PathExtend, ScopeLeases, s.extend)
	s.api("POST "+leaseapi.PathVerify, ScopeLeases, s.verify)
	s.api("GET "+leaseapi.PathLeases, ScopeLeases, s.list)
	s.api("GET "+leaseapi.PathHistory, ScopeLeases, s.locate)
	s.api("GET "+leaseapi.PathStats, ScopeAdmin, s.stats)
	s.api("GET /metrics", ScopeAdmin, s.metrics)
	s.open("GET /healthz", s.healthz)
	s.open("GET /readyz", s.readyz)
	s.open("GET /{$}", s.page)
	s.open("/", s.unknown)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// handler answers a request, or returns what kept it from doing so.
type handler func(w http.ResponseWriter, r *http.Request, who Credential) error

// open registers a handler that anybody may call.
func (s *Server) open(pattern string, h func(http.ResponseWriter, *http.Request) error) {
	s.route(pattern, func(w http.ResponseWriter, r *http.Request) error { return h(w, r) })
}

// api registers a handler that needs a credential with the scope.
func (s *Server) api(pattern string, scope Scope, h handler) {
	s.route(pattern, func(w http.ResponseWriter, r *http.Request) error {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		default:
			return leaseapi.NewProblem(leaseapi.CodeOverloaded, "this server has %d requests under way, which is its limit", cap(s.slots)).After(overloadedRetry)
		}
		s.o.Metrics.InFlight.Inc()
		defer s.o.Metrics.InFlight.Dec()
		who, err := s.authenticate(r)
		if err != nil {
			return err
		}
		if wait := s.limits.wait(clientKey(who, r.RemoteAddr), time.Now()); wait > 0 {
			return leaseapi.NewProblem(leaseapi.CodeRateLimited, "more than %v requests per second", s.o.RateLimit).After(wait)
		}
		if !slices.Contains(who.Scopes, scope) {
			return leaseapi.NewProblem(leaseapi.CodeForbidden, "this credential has not the scope %q", scope)
		}
		// A page in somebody's browser must not take machine IDs from a server
		// that trusts whoever reaches it.
		if err := s.origins.Check(r); err != nil {
			return leaseapi.NewProblem(leaseapi.CodeForbidden, "requests from pages of other sites are refused")
		}
		return h(w, r, who)
	})
}

// route registers a handler with what all have in common.
func (s *Server) route(pattern string, h func(http.ResponseWriter, *http.Request) error) {
	name := pattern[strings.IndexByte(pattern, ' ')+1:]
	if pattern == "/" {
		name = "unknown"
	}
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		out := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		if err := h(out, r); err != nil {
			s.refuse(out, r, err)
		}
		s.o.Metrics.Answered(name, strconv.Itoa(out.status), time.Since(began))
		s.o.Log.Debug("answered", zap.String("route", pattern), zap.Int("status", out.status),
			zap.String("peer", r.RemoteAddr), zap.Duration("took", time.Since(began)))
	})
}

// statusWriter remembers the status of the answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// refuse answers with the problem that the error is.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := leaseapi.FromError(err, s.o.NowMS())
	if p.Code == leaseapi.CodeUnavailable && r.Context().Err() == nil {
		s.sparing.Do(func() { s.o.Log.Error("the provider failed", zap.String("route", r.Pattern), zap.Error(err)) })
	}
	if p.Code == leaseapi.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", `Bearer realm="kazahana"`)
	}
	if after := p.RetryAfter(); after != "" {
		w.Header().Set("Retry-After", after)
	}
	_ = writeJSON(w, p.Status, leaseapi.ProblemType, p) // the peer has gone, or not
}

// called runs one provider call under its deadline, and remembers how it went.
func (s *Server) called(ctx context.Context, op string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.ProviderTimeout)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	s.o.Metrics.Called(op, time.Since(began))
	switch {
	case err == nil || leaseapi.FromError(err, 0).Code != leaseapi.CodeUnavailable:
		s.failedMS.Store(0)
	case !errors.Is(ctx.Err(), context.Canceled): // which says something about the peer only
		s.failedMS.Store(s.o.NowMS())
	}
	return err
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) error { return writeText(w, "ok\n") }

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) error {
	if s.stopping.Load() {
		return leaseapi.NewProblem(leaseapi.CodeOverloaded, "this server is stopping").After(overloadedRetry)
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.o.ProviderTimeout)
	defer cancel()
	if err := s.o.Ready(ctx); err != nil {
		return err
	}
	if at := s.failedMS.Load(); at != 0 && s.o.NowMS()-at < unreadyAfterFailure.Milliseconds() {
		return errors.New("the provider failed a moment ago")
	}
	return writeText(w, "ok\n")
}

// unknown answers what no route takes.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := s.mux.Handler(other); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return leaseapi.NewProblem(leaseapi.CodeMethodNotAllowed, "this path takes %s", strings.Join(allowed, ", "))
	}
	return leaseapi.NewProblem(leaseapi.CodeNotFound, "there is no such path here")
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request, _ Credential) error {
	metricsHandler(s.o.Metrics).ServeHTTP(w, r)
	return nil
}
