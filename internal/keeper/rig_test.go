package keeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

// startMS is what every clock shows when a test begins: within the default
// timeline, which a bubble's own time (the year 2000) is not.
const startMS = snowflake.DefaultEpochMS + 150*24*60*60*1000

// What follows from the default term, written out so that the tests do not
// repeat a mistake of the code.
const (
	service = "orders"
	term    = 10 * time.Minute
	renewal = 9 * time.Minute // after the grant
)

// machine is the clocks of a host: the bubble's time, and a wall clock that
// may be wrong.
type machine struct {
	began time.Time
	wrong atomic.Int64 // nanoseconds
}

func (m *machine) Wall() int64 {
	return startMS*int64(time.Millisecond) + int64(time.Since(m.began)) + m.wrong.Load()
}
func (m *machine) Boot() time.Duration  { return time.Since(m.began) }
func (m *machine) ms() int64            { return m.Wall() / int64(time.Millisecond) }
func (m *machine) jump(d time.Duration) { m.wrong.Add(int64(d)) }

// setup is what a test may choose before it begins.
type setup struct {
	Config
	terms       provider.Terms
	fallback    generator.Fallback
	startupWait time.Duration
	hostClock   bool // the provider reads the host's clock, and has none of its own
	plain       bool // the provider cannot verify
	clockOff    time.Duration
	saved       state.Saved                                                   // what an earlier life left
	open        func(provider.Terms, func() int64) (provider.Provider, error) // nil = in memory
}

// rig is a host: a real generator on a real believed clock, a keeper, a
// durable state in memory, and a provider at the end of a line that can be cut.
//
// In every test the rig checks all along that IDs strictly increase and keep the emit
// rule, that each release is signed, sealed and forgotten before it is sent, that a lease
// released or lost is never published again, and that no log entry shows a secret.
type rig struct {
	t     *testing.T
	setup setup

	began  time.Time
	host   *machine
	remote *remote
	store  *store
	seen   *seen
	logs   *observer.ObservedLogs
	random *steady // of all lives, so that no request ID comes twice

	// Of one life.
	clock  *clock.Believed
	gen    *tap
	keeper *Keeper
	stop   func() // ends Run

	mu       sync.Mutex
	timeline snowflake.Timeline // on which IDs are read
	last     snowflake.ID
	runs     []run
}

// run is a stretch of IDs of the same kind.
type run struct {
	kind     generator.Kind
	from, to time.Duration
	count    int
	last     snowflake.ID
}

// onHost runs a test on a host of its own, in a bubble of its own.
func onHost(t *testing.T, change func(*setup), test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t, change)) })
}

// hosted is onHost for t.Run.
func hosted(change func(*setup), test func(t *testing.T, r *rig)) func(*testing.T) {
	return func(t *testing.T) { onHost(t, change, test) }
}

// newRig prepares a host. Nothing runs before start or build.
func newRig(t *testing.T, change func(*setup)) *rig {
	t.Helper()
	r := &rig{t: t, began: time.Now(), timeline: snowflake.DefaultTimeline(), stop: func() {}}
	r.setup = setup{
		Config: Config{
			Service: service, Meta: map[string]string{"host": "alpha"}, MaxThroughput: 256,
			RetryInterval: time.Second, RetryMax: time.Minute, CallTimeout: 3 * time.Second,
			VerifyEvery: 11 * time.Second, // never at the same moment as a renewal
		},
		terms: provider.DefaultTerms(), fallback: generator.FallbackCachedRandom,
		startupWait: 500 * time.Millisecond,
		saved:       state.Saved{Timeline: snowflake.DefaultTimeline(), Source: state.SourceConfig},
	}
	if change != nil {
		change(&r.setup)
	}
	r.host = &machine{began: r.began}
	r.host.jump(r.setup.clockOff)
	r.seen = &seen{acquired: map[string]int{}}
	r.store = newStore(t, r.setup.saved)
	r.remote = newRemote(r)
	r.random = &steady{}
	var core zapcore.Core
	core, r.logs = observer.New(zap.DebugLevel)
	r.build(zap.New(core))
	t.Cleanup(r.checkLogs)
	t.Cleanup(func() { r.kill() })
	return r
}

// build begins a life on what the store holds.
func (r *rig) build(log *zap.Logger) {
	r.clock = clock.NewBelieved(r.host, clock.Config{MaxForward: time.Second, Hold: time.Minute})
	saved := r.store.Load().Settled(r.store.Mark()) // as Open does
	must.Succeed(r.t, r.store.Service.Save(saved))
	r.gen = &tap{rig: r, used: map[lease.Key]bool{}, Generator: generator.New(generator.Options{
		Config:   generator.Config{MaxThroughput: r.setup.MaxThroughput, Fallback: r.setup.fallback, MaxBackwardMS: 5000},
		Timeline: saved.Timeline, Floor: r.store.Mark(), StartupWait: r.setup.startupWait,
		Clock: r.clock, Mark: r.store, Rand: rand.New(rand.NewPCG(1, 2)),
	})}
	r.keeper = New(r.setup.Config, Deps{
		Provider: r.remote.face(), Generator: r.gen, Store: r.store, Clock: r.clock,
		Observer: r.seen, Log: log, Rand: rand.New(r.random),
	})
}

// start lets the keeper run.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	k := r.keeper
	go func() {
		defer close(done)
		if err := k.Run(ctx); err != nil {
			r.t.Errorf("Run returned %v", err)
		}
	}()
	r.stop = sync.OnceFunc(func() { cancel(); <-done })
}

// kill ends the life as kill -9 does: nothing is released.
func (r *rig) kill() {
	r.stop()
	r.gen.Stop()
}

// restart kills the host's process and starts it anew.
func (r *rig) restart() {
	r.kill()
	r.build(r.keeper.Log)
	r.start()
}

// shutdown ends the life gracefully, as the daemon does.
func (r *rig) shutdown() {
	r.stop()
	r.gen.Generator.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r.keeper.Shutdown(ctx)
}

// elapsed is the time since the test began.
func (r *rig) elapsed() time.Duration { return time.Since(r.began) }

// until lets time pass until so long after the test's begin.
func (r *rig) until(d time.Duration) {
	r.t.Helper()
	if d < r.elapsed() {
		r.t.Fatalf("%v is past already: it is %v", d, r.elapsed())
	}
	time.Sleep(d - r.elapsed())
	synctest.Wait()
}

func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	r.until(r.elapsed() + d)
}

// ask takes n IDs as a caller of the daemon would, and checks them.
func (r *rig) ask(n int64) ([]generator.Range, time.Duration) {
	began := time.Now()
	ranges, err := r.gen.Next(context.Background(), generator.Request{Count: n, Timeout: time.Minute}, nil)
	if err != nil {
		r.t.Errorf("at %v: no ID: %v", r.elapsed(), err)
	}
	for _, rg := range ranges {
		r.check(rg)
	}
	return ranges, time.Since(began)
}

// one takes one ID and says how it was made.
func (r *rig) one() (snowflake.ID, generator.Kind) {
	r.t.Helper()
	ranges, _ := r.ask(1)
	if len(ranges) == 0 {
		r.t.FailNow()
	}
	return ranges[0].Start, ranges[0].Kind
}

// expect takes one ID and says whether it was made as wanted, and at once.
func (r *rig) expect(kind generator.Kind) snowflake.ID {
	r.t.Helper()
	ranges, waited := r.ask(1)
	switch {
	case len(ranges) == 0:
		r.t.FailNow()
	case ranges[0].Kind != kind:
		r.t.Errorf("at %v: the ID is %s, want %s", r.elapsed(), word(ranges[0].Kind), word(kind))
	case waited > maxWait:
		r.t.Errorf("at %v: the ID took %v", r.elapsed(), waited)
	}
	return ranges[0].Start
}

// check holds IDs to the emit rule and to strict increase over all lives.
func (r *rig) check(rg generator.Range) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rg.Start <= r.last {
		r.t.Errorf("at %v: ID %d after %d", r.elapsed(), rg.Start, r.last)
	}
	r.last = rg.Start + snowflake.ID(rg.Count-1)
	if rg.Kind == generator.Regular && !r.remote.allows(r.timeline.UnixMS(rg.Start), r.timeline.Low(rg.Start)) {
		r.t.Errorf("at %v: ID %d is regular, and no lease that was granted allows it", r.elapsed(), rg.Start)
	}
	now := r.elapsed()
	if n := len(r.runs); n == 0 || r.runs[n-1].kind != rg.Kind {
		r.runs = append(r.runs, run{kind: rg.Kind, from: now})
	}
	latest := &r.runs[len(r.runs)-1]
	latest.to, latest.count, latest.last = now, latest.count+int(rg.Count), r.last
}

// lastMS is the Unix ms that the last ID embeds.
func (r *rig) lastMS() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.timeline.UnixMS(r.last)
}

// maxWait is how long a request may take while no millisecond is used up. A
// request that finds the present one's smaller values gone waits for the next.
const maxWait = 2 * time.Millisecond

// traffic asks for single IDs all the time, as the request path of a daemon
// does, until the function that it returns is called. No request but the first may take
// longer than maxWait, with any provider.
func (r *rig) traffic(first time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		limit := first
		for ctx.Err() == nil {
			if _, waited := r.ask(1); waited > limit {
				r.t.Errorf("at %v: a request waited %v", r.elapsed(), waited)
			}
			limit = maxWait
			_ = r.keeper.Status() // as a status request does, at any time
			time.Sleep(37 * time.Millisecond)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	r.t.Cleanup(stop)
	return stop
}

func word(k generator.Kind) string { return [...]string{"regular", "cached", "uncertain", "random"}[k] }

// machineID is the machine ID in an ID of the default layout, regular or cached.
func (r *rig) machineID(id snowflake.ID) int64 {
	return r.timeline.Low(id) &^ r.timeline.FallbackBit() >> snowflake.DefaultBitSeq
}

// stretch is the i-th stretch of IDs of one kind.
func (r *rig) stretch(i int) run {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if i >= len(r.runs) {
		r.t.Fatalf("the IDs were of %d kinds in turn only: %+v", len(r.runs), r.runs)
	}
	return r.runs[i]
}

// kinds is the stretches of IDs so far, in words.
func (r *rig) kinds() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var words []string
	for _, s := range r.runs {
		words = append(words, word(s.kind))
	}
	return strings.Join(words, " ")
}

// wantKinds compares the stretches of IDs so far.
func (r *rig) wantKinds(want string) {
	r.t.Helper()
	if got := r.kinds(); got != want {
		r.t.Errorf("the IDs were %q, want %q: %+v", got, want, r.runs)
	}
}

// held is the machine IDs that the keeper holds now.
func (r *rig) held() []int64 {
	var ids []int64
	for _, l := range r.keeper.Status().Held {
		ids = append(ids, l.ID)
	}
	return ids
}

// want compares a number of things so far.
func (r *rig) want(what string, got, want int) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("at %v: %d %s, want %d", r.elapsed(), got, what, want)
	}
}

func (r *rig) wantCalls(op providertest.Op, want int) {
	r.t.Helper()
	r.want(string(op)+" calls", len(r.remote.of(op)), want)
}

func (r *rig) wantResults(result string, want int) {
	r.t.Helper()
	r.want("acquires counted as "+result, r.seen.results(result), want)
}

func (r *rig) wantLogged(message string, want int) {
	r.t.Helper()
	r.want("log entries "+message, len(r.logged(message)), want)
}

func (r *rig) wantTaken(want int) {
	r.t.Helper()
	r.want("slots taken", r.remote.taken(), want)
}

// wantRequests compares the number of request IDs of the calls.
func (r *rig) wantRequests(calls []call, want int) {
	r.t.Helper()
	r.want("request IDs", len(requestIDs(calls)), want)
}

// logged is the log entries with the message.
func (r *rig) logged(message string) []observer.LoggedEntry {
	return r.logs.FilterMessage(message).All()
}

// checkLogs looks for the secret of any lease in everything that was logged.
func (r *rig) checkLogs() {
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	secrets := r.remote.secrets()
	for _, entry := range r.logs.All() {
		text, err := encoder.EncodeEntry(entry.Entry, entry.Context)
		if err != nil {
			r.t.Errorf("log entry %q cannot be encoded: %v", entry.Message, err)
			continue
		}
		for _, secret := range secrets {
			if strings.Contains(text.String(), secret) {
				r.t.Errorf("a log entry shows the secret of a lease: %s", text)
			}
		}
	}
}

// steady is a random source with the same Float64 always, and still with different numbers, so
// that request IDs differ.
type steady struct{ n uint64 }

func (s *steady) Uint64() uint64 {
	s.n++
	return s.n << 53
}

// tap is the keeper's generator, and remembers the published leases.
type tap struct {
	*generator.Generator
	rig *rig

	mu     sync.Mutex
	held   []lease.Lease
	cached *lease.Lease
	cause  error
	used   map[lease.Key]bool // published at some time
}

func (g *tap) Update(held []lease.Lease, cached *lease.Lease, cause error) {
	g.Generator.Update(held, cached, cause)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held, g.cached, g.cause = held, cached, cause
	for _, l := range both(held, cached) {
		g.used[l.Key()] = true
		if why := g.rig.remote.gone(l); why != "" {
			g.rig.t.Errorf("at %v: a lease was published after it had been %s: %v", g.rig.elapsed(), why, l)
		}
	}
}

// published is every lease from which the generator may make IDs.
func (g *tap) published() []lease.Lease {
	g.mu.Lock()
	defer g.mu.Unlock()
	return both(g.held, g.cached)
}

// everUsed reports whether the lease was published in this life.
func (g *tap) everUsed(l lease.Lease) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.used[l.Key()]
}

// why is the cause that callers without a lease are shown.
func (g *tap) why() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cause
}

func both(held []lease.Lease, cached *lease.Lease) []lease.Lease {
	all := append([]lease.Lease(nil), held...)
	if cached != nil {
		all = append(all, *cached)
	}
	return all
}

var errDisk = errors.New("no space left on device")

// store is a durable state in memory that checks content as the real one does,
// and can be made to fail.
type store struct {
	*state.Service
	broken  atomic.Bool
	lossy   bool   // a loss could not be saved: a crash costs all leases
	written func() // called after a write that succeeded, if set
}

func newStore(t *testing.T, saved state.Saved) *store {
	t.Helper()
	st := state.Ephemeral(state.Options{})
	sv, err := st.Service(service)
	must.Succeed(t, err)
	must.Succeed(t, sv.Save(saved))
	return &store{Service: sv}
}

func (s *store) Save(saved state.Saved) error {
	if s.broken.Load() {
		return errDisk
	}
	err := s.Service.Save(saved)
	s.lossy = false
	if s.written != nil {
		s.written()
	}
	return err
}

// SaveAfterLoss implements Store.
func (s *store) SaveAfterLoss(saved state.Saved) error {
	err := s.Save(saved)
	s.lossy = err != nil
	return err
}

// leases is all that a restart would find.
func (s *store) leases() []lease.Lease {
	if s.lossy {
		return nil
	}
	saved := s.Load()
	return both(saved.Held, saved.Cached)
}

// seen is what the metrics were told.
type seen struct {
	mu          sync.Mutex
	acquired    map[string]int
	lost        []string
	mismatches  int
	stateFailed int
	skews       []time.Duration
}

func (s *seen) Acquired(result string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acquired[result]++
}

func (s *seen) Called(string, time.Duration) {}

func (s *seen) Lost(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = append(s.lost, reason)
}

func (s *seen) Mismatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mismatches++
}

func (s *seen) StateFailed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stateFailed++
}

func (s *seen) Skew(local time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skews = append(s.skews, local)
}

// results is how often acquires ended in the way.
func (s *seen) results(result string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acquired[result]
}

func (s *seen) lastSkew() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.skews) == 0 {
		return 0
	}
	return s.skews[len(s.skews)-1]
}
