package leaseserver

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/kazahana/kazahana/internal/leaseapi"
	lockhttp "github.com/kazahana/kazahana/internal/lock/http"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/operator/statuspage"
	placementhttp "github.com/kazahana/kazahana/internal/placement/storage/http"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	sequencehttp "github.com/kazahana/kazahana/internal/sequence/http"
)

// Handler answers a request, and returns the status of its answer.
type Handler = func(http.ResponseWriter, *http.Request) (status int)

// Options of a server. All but those marked optional must be set.
type Options struct {
	Provider provider.Provider
	Services provider.Services // the terms on which Provider grants
	Version  string

	// Tokens returns the known tokens. Optional: without it requests need no token.
	Tokens func() *Tokens
	// ClientCertificates requires a client certificate for every request except those
	// for health. The TLS configuration verifies it.
	ClientCertificates bool

	Locks      *Locks      // optional: without, there is no lock service
	Sequences  *Sequences  // optional: without, there is no sequence service
	Placements *Placements // optional: without, there is no placement service
	// Fences returns the fences of files that may have forgotten grants. Optional.
	Fences func() []metrics.Fence

	ProviderTimeout time.Duration // of one call to the provider or to a store
	MaxInFlight     int
	RateLimit       float64 // requests per second and client; 0 = unlimited
	RateBurst       int
	Refusals        *refusals.Counter // counts refusals because of a limit. Optional

	Ready   func(context.Context) error // optional: why nothing can be granted now
	NowMS   func() int64                // optional: for Retry-After and statistics
	Metrics *metrics.LeaseServer
	Log     *zap.Logger
	Recent  *statuspage.Recent // optional: the log's warnings and errors, for the status page
	// Trace wraps the handler of a route to trace its requests. Optional.
	Trace func(pattern string, next Handler) Handler
}

// Server is the HTTP handler.
type Server struct {
	o        Options
	mux      *http.ServeMux
	handler  http.Handler // the mux; tests wrap it to see the answers
	patterns []string     // of the mux
	origins  *http.CrossOriginProtection
	slots    chan struct{}      // one element per request under way
	upkeep   chan struct{}      // likewise, of requests for the upkeep of locks
	viewing  singleflight.Group // of pools, once at a time for each
	seed     maphash.Seed
	mu       sync.Mutex
	stats    stats // guarded by mu, but for fresh
	past     statuspage.History
	started  time.Time
	stopping atomic.Bool
	sparing  rate.Sometimes
	phases   phases
	after    func(time.Duration) <-chan time.Time // time.After, but in tests

	leaving    context.Context // done when the server is told to stop
	leave      context.CancelFunc
	waiters    atomic.Int64 // requests that wait for locks
	maxWaiters atomic.Int64
	waiting    map[string]int64 // the same by client; guarded by mu
	bodies     bodies
}

// overloadedRetry is when to come back to an overloaded server.
const overloadedRetry = time.Second

// refusalPause is how long a client that asks too often waits for the answer that says so: else a
// client that does not mind refusals would keep the server busy with them.
const refusalPause = time.Second

// unreadyAfterFailure is how long /readyz reports a failure of the provider, unless the
// provider answers before.
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
		o: o, waiting: map[string]int64{}, started: time.Now(), mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(),
		slots: make(chan struct{}, o.MaxInFlight), upkeep: make(chan struct{}, o.MaxInFlight), seed: maphash.MakeSeed(), stats: newStats(newLimiter(o.RateLimit, o.RateBurst)),
		// An outage makes every request fail: some lines tell as much as all.
		sparing: rate.Sometimes{First: 3, Interval: time.Second},
		phases:  patience,
		after:   time.After,
	}
	s.leaving, s.leave = context.WithCancel(context.Background())
	s.maxWaiters.Store(maxWaiters)
	for _, name := range append([]string{"", otherServices}, slices.Collect(maps.Keys(o.Services.Named))...) {
		o.Metrics.Service(s.label(name))
	}
	if o.Locks != nil || o.Sequences != nil || o.Placements != nil {
		o.Metrics.KeyedStores()
	}
	o.Metrics.Watch(s.sample)
	o.Metrics.WatchMemory(s.bodies.memory)
	s.routes()
	s.handler = s.mux
	return s
}

func (s *Server) routes() {
	s.api("POST "+leaseapi.PathLease, ScopeLeases, s.acquire)
	s.api("DELETE "+leaseapi.PathLease+"/{id}", ScopeLeases, s.release)
	s.api("POST "+leaseapi.PathExtend, ScopeRun, s.extend)
	s.api("POST "+leaseapi.PathVerify, ScopeLeases, s.verify)
	s.api("GET "+leaseapi.PathLeases, ScopeLeases, s.list)
	s.api("GET "+leaseapi.PathHistory, ScopeLeases, s.locate)
	s.api("GET "+leaseapi.PathMap, ScopeAdmin, s.slotMap)
	s.api("GET "+leaseapi.PathFind, ScopeAdmin, s.find)
	s.api("GET "+leaseapi.PathMaker, ScopeAdmin, s.maker)
	s.api("GET "+leaseapi.PathStatus, ScopeAdmin, s.overview)
	s.api("GET "+leaseapi.PathStats, ScopeAdmin, s.serveStats)
	s.placed("POST "+lockhttp.Path+"/{key}/acquire", ScopeLocks, s.enter, s.lockAcquire)
	s.upkeepAPI("POST "+lockhttp.Path+"/{key}/renew", ScopeLocks, s.lockRenew)
	s.upkeepAPI("POST "+lockhttp.Path+"/{key}/release", ScopeLocks, s.lockRelease)
	s.upkeepAPI("GET "+lockhttp.Path+"/{key}", ScopeLocks, s.lockGet)
	s.api("GET "+lockhttp.Path, ScopeLocks, s.lockList)
	s.api("POST "+sequencehttp.Path+"/{key}/next", ScopeSequences, s.sequenceNext)
	s.api("POST "+sequencehttp.Path+"/{key}/declare", ScopeAdmin, s.sequenceDeclare)
	s.api("GET "+placementhttp.Path+"/{kind}/{identity}", ScopePlacements, s.placementLoad)
	s.api("POST "+placementhttp.Path+"/{kind}/{identity}/store", ScopePlacements, s.placementStore)
	s.api("POST "+placementhttp.Path+"/{kind}/{identity}/remove", ScopePlacements, s.placementRemove)
	s.api("GET /metrics", ScopeAdmin, s.metrics)
	// These need no credential.
	s.route("GET /healthz", s.healthz)
	s.route("GET /readyz", s.readyz)
	s.route("GET /{$}", s.page)
	s.route("/", s.unknown)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	segments := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	var slashes []int
	for i, segment := range segments {
		switch {
		case segment == "." || segment == ".." || segment == "" && len(segments) > 1:
			// The mux would redirect to a path without these segments, which may name
			// another key.
			r = r.Clone(r.Context())
			r.URL = &url.URL{Path: "/-"} // matches no route
			s.handler.ServeHTTP(w, r)
			return
		case strings.EqualFold(segment, "%2F"):
			// The mux would take a segment "/" for the end of the path.
			segments[i] = "-"
			slashes = append(slashes, i)
		}
	}
	if slashes != nil {
		r = r.Clone(context.WithValue(r.Context(), slashSegments{}, slashes))
		r.URL.RawPath = "/" + strings.Join(segments, "/")
		r.URL.Path, _ = url.PathUnescape(r.URL.RawPath) // cannot fail: the parts are valid
	}
	s.handler.ServeHTTP(w, r)
}

// slashSegments is the context key of the indexes of path segments that are "/".
type slashSegments struct{}

// The indexes of path segments that are a key, or begin one.
const (
	keySegment       = 2
	placementSegment = 2
)

// pathSegment is the named segment of the path.
func pathSegment(r *http.Request, name string, segment int) string {
	if slashes, _ := r.Context().Value(slashSegments{}).([]int); slices.Contains(slashes, segment) {
		return "/"
	}
	return r.PathValue(name)
}

// pathKey is the {key} of the path.
func pathKey(r *http.Request) string { return pathSegment(r, "key", keySegment) }

// handler answers a request, or returns an error.
type handler func(w http.ResponseWriter, r *http.Request, who Credential) error

// api registers a handler that needs a credential with the scope, and a place among the
// requests under way.
func (s *Server) api(pattern string, scope Scope, h handler) {
	s.placed(pattern, scope, s.enter, func(w http.ResponseWriter, r *http.Request, who Credential, _ func()) error { return h(w, r, who) })
}

// upkeepAPI is api for what keeps a lock, gives it back or looks at it.
func (s *Server) upkeepAPI(pattern string, scope Scope, h handler) {
	s.placed(pattern, scope, s.enterUpkeep, func(w http.ResponseWriter, r *http.Request, who Credential, _ func()) error { return h(w, r, who) })
}

// placed registers a handler that gets a place, which it may leave early. The body is read
// before: slow senders take no places.
func (s *Server) placed(pattern string, scope Scope, enter func(context.Context) (leave func(), err error),
	h func(w http.ResponseWriter, r *http.Request, who Credential, leave func()) error,
) {
	s.route(pattern, func(w http.ResponseWriter, r *http.Request) error {
		who, err := s.admit(r, scope)
		if err != nil {
			return err
		}
		give, err := s.receive(w, r, who)
		if err != nil {
			return err
		}
		defer give()
		leave, err := enter(r.Context())
		if err != nil {
			return err
		}
		defer leave()
		return h(w, who.calls(r), who, leave)
	})
}

// route registers a handler with the wrappers that all routes share.
func (s *Server) route(pattern string, h func(http.ResponseWriter, *http.Request) error) {
	name := pattern[strings.IndexByte(pattern, ' ')+1:]
	if pattern == "/" {
		name = "unknown"
	}
	s.patterns = append(s.patterns, pattern)
	answer := func(w http.ResponseWriter, r *http.Request) (status int) {
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
		return out.status
	}
	if s.o.Trace != nil {
		answer = s.o.Trace(pattern, answer)
	}
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { answer(w, r) })
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

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// refuse answers with the problem of the error.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := s.problemOf(err)
	if full, ok := errors.AsType[*record.FullError](err); ok {
		s.o.Refusals.Refuse(cmp.Or(full.Setting, refusals.Disk), err.Error())
	}
	if errors.Is(err, record.ErrCrowded) {
		s.o.Refusals.Refuse(refusals.StoreCalls, err.Error())
	}
	if p.Code == problem.Unavailable && r.Context().Err() == nil {
		s.sparing.Do(func() { s.o.Log.Error("the store failed", zap.String("route", r.Pattern), zap.Error(err)) })
	}
	if p.Code == problem.Unauthenticated {
		w.Header().Set("WWW-Authenticate", `Bearer realm="kazahana"`)
		w.Header().Set("Connection", "close") // each guess costs a connection
	}
	if after := p.RetryAfter(); after != "" {
		w.Header().Set("Retry-After", after)
	}
	if _, received := r.Body.(*wholeBody); !received && r.ContentLength != 0 {
		// net/http reads the body before or after the answer. It would wait for the rest for as
		// long as for the body of a request that is not refused.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.phases.refused))
	}
	_ = writeJSON(w, p.Status, problem.MediaType, p) // an error means that the peer has gone
}

// note tells the statistics of an event, or asks it.
func (s *Server) note(f func(*stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.stats)
}

// called runs one provider call under its deadline, and notes how it went.
func (s *Server) called(ctx context.Context, op string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.ProviderTimeout)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	if p, ok := errors.AsType[*problem.Problem](err); ok && p.Code != problem.NotSupported {
		err = &upstreamError{err}
	}
	s.o.Metrics.Called(op, time.Since(began))
	s.note(func(b *stats) { b.called(op, err, errors.Is(ctx.Err(), context.Canceled), s.o.NowMS()) })
	return err
}

// upstreamError is the answer of a lease server behind this one about this server: it is not
// about the caller.
type upstreamError struct{ err error }

func (e *upstreamError) Error() string { return e.err.Error() }

// Is passes on errors that do not depend on the caller.
func (e *upstreamError) Is(target error) bool {
	return (target == errors.ErrUnsupported || target == context.DeadlineExceeded || target == context.Canceled) && errors.Is(e.err, target)
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) error { return writeText(w, "ok\n") }

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) error {
	if err := s.readyNow(r.Context()); err != nil {
		return err
	}
	said := "ok\n"
	for _, one := range s.o.Refusals.Recent() {
		said += "overloaded: " + one.Limit + " is reached\n"
	}
	var levels []provider.Fullness
	s.note(func(b *stats) { levels = b.fullest() })
	for _, level := range levels {
		said += "a pool is " + strings.ReplaceAll(string(level), "_", " ") + "\n"
	}
	return writeText(w, said)
}

// readyNow is why nothing can be granted now, or nil.
func (s *Server) readyNow(ctx context.Context) error {
	if s.stopping.Load() {
		return errStopping
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.ProviderTimeout)
	defer cancel()
	if err := s.o.Ready(ctx); err != nil {
		return err
	}
	failed := false
	if s.note(func(b *stats) { failed = b.failedLately(s.o.NowMS()) }); failed {
		return errors.New("the provider failed a moment ago")
	}
	return nil
}

// unknown answers requests that match no route.
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
		return problem.New(problem.MethodNotAllowed, "this path takes %s", strings.Join(allowed, ", "))
	}
	path, _, _ := strings.Cut(r.RequestURI, "?")
	return problem.New(problem.NotFound, "there is no path %.*q here", maxShownPath, path)
}

// maxShownPath limits how much of an unknown path its refusal shows.
const maxShownPath = 200

func (s *Server) metrics(w http.ResponseWriter, r *http.Request, _ Credential) error {
	promhttp.HandlerFor(s.o.Metrics.Registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}
