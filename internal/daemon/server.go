package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/unixsock"
)

const (
	// maxRefusals is how many connections that are turned away are heard out at
	// a time; those beyond are closed without a word.
	maxRefusals = 64
	// Pauses after a failed accept.
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// patience is how long the server waits for what its peers do.
type patience struct {
	message time.Duration // for a message that has begun to end
	write   time.Duration // for a peer to read its answers
	refuse  time.Duration // for the request by which a peer that is turned away hears why
	cut     time.Duration // for the errors of requests that a drain has cut off to be read
	hangup  time.Duration // before it looks whether waiting peers are still there
}

var defaultPatience = patience{
	message: peerPatience, write: peerPatience, refuse: time.Second, cut: 50 * time.Millisecond, hangup: time.Second,
}

var errShuttingDown = errors.New("the daemon is stopping")

// Config of a Server.
type Config struct {
	Limits
	DefaultService string
	UUIDVersion    int // 4 or 7, for requests that name none; 0 is 7
	Identity       Identity
	State          func() state.Health // nil: nothing is known of it
	Lost           func() error        // why new clients do not find the socket, nil if they do; nil: not known
	Locks          *Locks              // nil: none
	Sequences      *Sequences          // nil: none
	Placement      *Placement          // nil: none
	Refusals       *refusals.Counter   // counts refusals because of a limit; nil: nothing is counted
	// Fences are the files that are held back because they may have forgotten
	// something; nil: there are no files.
	Fences func() []metrics.Fence
	// Trace begins the trace of a request that is answered later. It returns the
	// request's context, and a function that takes the code of its answer, "" for none.
	// nil: nothing is traced.
	Trace func(ctx context.Context, method string) (context.Context, func(code string))
}

// fastPath serves connections that have no goroutine. Connections that need one come back through
// Server.unpark.
type fastPath interface {
	// park takes the stream over, or reports false.
	park(stream, *account) bool
	// prod calls turn on the fast path, soon, unless it is closed.
	prod(turn func())
	// close gives back all connections, and takes no more.
	close()
}

// Server answers requests on a socket.
type Server struct {
	cfg            Config
	services       map[string]*issuer.Service
	names          []string        // of the services, sorted
	defaultService *issuer.Service // for requests that name none
	methods        []countedMethod
	metrics        *metrics.Metrics
	keyedStores    *metrics.KeyedStores // nil: no locks and sequences
	log            *zap.Logger
	refusalLog     *zap.Logger // writes a line a second of each kind: peers try again and again
	started        time.Time
	patience       patience

	limits   atomic.Pointer[Limits]
	bounds   *bounds
	making   chan struct{} // has room for the long answers that are being made
	progress progress

	draining atomic.Bool // requests that come now are told to go elsewhere

	leaving context.Context // ends when the drain begins
	leave   context.CancelFunc
	holds   holds

	newFastPath func(*Server, context.Context) (fastPath, error)
	fastPath    fastPath // nil: every connection has a goroutine

	mu      sync.Mutex
	conns   map[*conn]struct{}  // with a goroutine each; guarded by mu
	parked  int                 // connections on the fast path; guarded by mu
	guests  map[*Guest]struct{} // connections by doors; guarded by mu
	refused map[*conn]struct{}  // being turned away; guarded by mu
	wg      sync.WaitGroup      // one for each goroutine that serves a connection
}

// NewServer returns a server of the services, which must include the default.
func NewServer(cfg Config, services map[string]*issuer.Service, m *metrics.Metrics, log *zap.Logger) (*Server, error) {
	if services[cfg.DefaultService] == nil {
		return nil, fmt.Errorf("there is no service %q, which is the default", cfg.DefaultService)
	}
	s := &Server{
		cfg: cfg, services: services, defaultService: services[cfg.DefaultService], methods: countMethods(m),
		metrics: m, log: log.With(zap.String("component", "daemon")), started: time.Now(), patience: defaultPatience, newFastPath: newFastPath,
		conns: map[*conn]struct{}{}, refused: map[*conn]struct{}{}, guests: map[*Guest]struct{}{}, making: make(chan struct{}, longWorkers),
	}
	s.refusalLog = s.log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Second, 1, 0)
	}))
	s.holds.byLease, s.holds.byConn = map[string]*hold{}, map[*conn]map[*hold]struct{}{}
	s.limits.Store(&cfg.Limits)
	s.bounds = newBounds(&s.limits, cfg.Refusals)
	s.progress.serving = make(chan struct{})
	s.leaving, s.leave = context.WithCancel(context.Background())
	for name := range services {
		s.names = append(s.names, name)
	}
	slices.Sort(s.names)
	m.Watch(s.samples)
	m.WatchMemory(s.bounds.watched)
	if cfg.Locks != nil || cfg.Sequences != nil {
		s.keyedStores = m.KeyedStores(s.holds.count)
	}
	if p := cfg.Placement; p != nil {
		m.Placement(p.counts, p.sample)
	}
	return s, nil
}

// Serve accepts connections until ctx is done, then drains: requests under way
// are answered, others told to go elsewhere, and after the drain timeout the
// rest is cut off. It returns nil then, and the listener is closed. A server
// serves once.
func (s *Server) Serve(ctx context.Context, l *unixsock.Listener) error {
	// Connections outlive ctx by the time of the drain.
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() { s.watchHangups(work) })
	s.openFastPath(work)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	err := s.accept(work, l)
	_ = l.Close()
	if s.fastPath != nil {
		s.fastPath.close()
	}
	s.drain(cancel)
	s.holds.notices.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Server) accept(work context.Context, l *unixsock.Listener) error {
	s.progress.begin(l)
	for {
		s.progress.accept.Add(1)
		nc, err := s.acceptOne(l, passes)
		switch {
		case err == nil:
			s.take(work, nc.(*net.UnixConn))
		case errors.Is(err, os.ErrDeadlineExceeded): // by Prod
			_ = l.SetDeadline(time.Time{})
		default:
			return fmt.Errorf("accept: %w", err) // the socket is broken: the next daemon makes another
		}
	}
}

// passes reports whether an error of Accept is one of the connection, or a lack that may end.
func passes(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED) ||
		errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOBUFS)
}

// acceptOne accepts a connection, and tries again after an error that passes, which mostly means that
// there are no file descriptors. net.ErrClosed and os.ErrDeadlineExceeded never do.
func (s *Server) acceptOne(l net.Listener, passes func(error) bool) (net.Conn, error) {
	for pause := acceptPauseMin; ; pause = min(2*pause, acceptPauseMax) {
		nc, err := l.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) || !passes(err) {
			return nc, err
		}
		s.log.Warn("cannot accept connections; trying again", zap.Stringer("on", l.Addr()), zap.Error(err), zap.Duration("in", pause))
		time.Sleep(pause)
	}
}

// take begins to serve a connection, or to turn it away.
func (s *Server) take(work context.Context, nc *net.UnixConn) {
	a := s.bounds.open(nc)
	if !s.receive(work, nc, a) {
		_ = nc.Close()
		a.close()
	}
}

// receive serves a connection, or turns it away. It reports false for a connection that is to be
// closed without a word.
func (s *Server) receive(work context.Context, nc *net.UnixConn, a *account) bool {
	refusal := s.admit(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limits.Load().MemoryLimit > 0 {
		_ = nc.SetWriteBuffer(sendBuffer)
	}
	if refusal == nil && s.fastPath != nil && s.fastPath.park(nc, a) {
		s.parked++
		s.countConnections()
		return true
	}
	switch {
	case refusal == nil:
		s.begin(work, newConn(s, nc, a))
	case len(s.refused) < maxRefusals:
		c := newConn(s, nc, a)
		s.refused[c] = struct{}{}
		a.moved(c.evict)
		s.wg.Go(func() {
			c.turnAway(refusal)
			s.forget(c)
		})
	default:
		return false
	}
	return true
}

// begin serves the connection in a goroutine of its own. mu is held.
func (s *Server) begin(work context.Context, c *conn) {
	ctx, abandon := context.WithCancelCause(work)
	c.abandon = abandon
	c.account.moved(c.evict)
	s.conns[c] = struct{}{}
	s.countConnections()
	s.wg.Go(func() {
		defer abandon(nil)
		c.serve(ctx)
		s.forget(c)
	})
}

// countConnections shows how many there are. mu is held.
func (s *Server) countConnections() { s.metrics.Connections.Set(float64(s.open())) }

// open is how many connections there are. mu is held.
func (s *Server) open() int { return len(s.conns) + s.parked + len(s.guests) }

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refused, c)
	delete(s.conns, c)
	if !c.handed {
		c.account.close()
	}
	s.countConnections()
}

// openFastPath opens the fast path, where the system has one.
func (s *Server) openFastPath(work context.Context) {
	path, err := s.newFastPath(s, work)
	if err != nil {
		s.log.Warn("no event loop here: every connection gets a goroutine, which is slower", zap.Error(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fastPath = path
}

// park hands a connection that rests to the fast path, and reports whether it did.
func (s *Server) park(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fastPath == nil || !s.fastPath.park(c.net, c.account) {
		return false
	}
	c.handed = true
	delete(s.conns, c)
	s.parked++
	return true
}

// unpark gives a connection of the fast path a goroutine.
func (s *Server) unpark(work context.Context, c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parked--
	s.begin(work, c)
}

// unparkEnded counts a connection of the fast path that has ended.
func (s *Server) unparkEnded(a *account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parked--
	a.close()
	s.countConnections()
}

// drain lets every connection finish its requests.
func (s *Server) drain(cancel context.CancelCauseFunc) {
	s.draining.Store(true)
	s.leave()
	s.finish(&s.wg, func(do func(socket)) { s.eachConn(func(c *conn) { do(c.net) }) }, func() {
		s.log.Warn("drain timeout: requests still under way are cut off", zap.Int("connections", s.connections()))
		cancel(errShuttingDown) // requests that wait for IDs get an error
	})
}

// socket is the part of a connection that a drain needs. What was shut down remains so, whatever
// deadlines the connection sets for itself.
type socket interface {
	CloseRead() error
	CloseWrite() error
}

// finish ends connections, of which each calls a function with all. What their peers sent before is
// still read and answered. cut is called when the drain timeout is over.
func (s *Server) finish(running *sync.WaitGroup, each func(func(socket)), cut func()) {
	each(func(c socket) { _ = c.CloseRead() })
	finished := make(chan struct{})
	go func() {
		running.Wait()
		close(finished)
	}()
	if within(finished, s.limits.Load().DrainTimeout) {
		return
	}
	cut()
	if !within(finished, s.patience.cut) {
		each(func(c socket) { _ = c.CloseWrite() }) // their peers do not read
		<-finished
	}
}

// within reports whether done is closed in time.
func within(done <-chan struct{}, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// eachConn calls do for every connection, those being turned away included.
func (s *Server) eachConn(do func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		do(c)
	}
	for c := range s.refused {
		do(c)
	}
}

func (s *Server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open()
}

func (s *Server) unreachable() error {
	if s.cfg.Lost == nil {
		return nil
	}
	return s.cfg.Lost()
}

// Ready reports why some service cannot issue IDs now, or nil.
func (s *Server) Ready(ctx context.Context) error {
	if s.draining.Load() {
		return errShuttingDown
	}
	if err := s.unreachable(); err != nil {
		return err
	}
	for _, name := range s.names {
		if err := s.services[name].Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}
