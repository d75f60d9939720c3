package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/unixsock"
	"github.com/kazahana/kazahana/internal/wire"
)

func TestMain(m *testing.M) { await.Main(m) }

const (
	// startMS is what the clock shows when a test begins.
	startMS = snowflake.DefaultEpochMS + 150*24*60*60*1000
	// hang is when a test gives up on something that should happen at once, on
	// however slow a machine.
	hang = 60 * time.Second
	// portable is the environment variable that has all tests run without an
	// event loop.
	portable = "KAZAHANA_TEST_PORTABLE"
	// many IDs per millisecond, where a test is not about waiting for one.
	manyBits = 16
	many     = 1 << manyBits
)

// testShare: a test says how many requests of one process may wait, and so many times as many
// may wait in all.
const testShare = waitingShare

// setup is what a test may choose before it begins.
type setup struct {
	Config
	services map[string]config.Service
	secrets  map[string]string // for external IDs, by service
	terms    provider.Terms    // of the memory provider
	provider provider.Provider // instead of the memory provider
	source   clock.Source      // instead of the fake clock
	store    map[string]*state.Service
	patience patience
	early    bool // before the first lease has been asked for
	loop     bool // on Linux; false: every connection has a goroutine
}

// rig is a daemon without its process: a server on a real socket, services on
// a memory provider that can be made to fail, and a clock that stands still.
// Nothing runs in the background; keepers step when a test says so.
type rig struct {
	t        testing.TB
	path     string
	server   *Server
	services map[string]*issuer.Service
	metrics  *metrics.Metrics
	clock    *clock.Fake
	line     *providertest.Faulty // between keepers and the provider
	logs     *observer.ObservedLogs

	cancel context.CancelFunc
	done   chan struct{} // closed when Serve has returned err
	err    error
}

// settings are a service's with nothing left to chance.
func settings() config.Service {
	return config.Service{
		MaxThroughputPerMS: 1 << snowflake.DefaultBitSeq, Fallback: config.FallbackCachedRandom, SequenceStart: config.SequenceZero,
		StartupWait: time.Hour, MaxBackward: 5 * time.Second,
		AcquireRetryInterval: time.Second, AcquireRetryMaxInterval: time.Minute,
		BitTS: snowflake.DefaultBitTS, DefaultEpoch: time.UnixMilli(snowflake.DefaultEpochMS),
	}
}

// wide makes all the IDs that a test may want in one millisecond.
func wide(s *setup) {
	s.terms.BitSeq, s.terms.BitID = manyBits, snowflake.ValueBits-snowflake.DefaultBitTS-manyBits
	for name, one := range s.services {
		one.MaxThroughputPerMS = many
		s.services[name] = one
	}
}

// ample IDs come as fast as anybody asks.
func ample(s *setup) {
	wide(s)
	s.source = clock.System{}
}

// change edits the settings of the default service.
func (s *setup) change(edit func(*config.Service)) {
	one := s.services["default"]
	edit(&one)
	s.services["default"] = one
}

// newRig assembles the daemon; start has it serve.
func newRig(t testing.TB, changes ...func(*setup)) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(startMS), cancel: func() {}}
	s := &setup{
		Config: Config{
			Limits: Limits{MaxConnections: 1000, MaxInFlight: 1000, DrainTimeout: hang}, DefaultService: "default",
			State: func() state.Health { return state.Health{Dir: "d", Live: "l"} },
			Identity: Identity{
				Version: "v1.2.3", Commit: "abc", GoVersion: "go1", Features: []string{"ids", "uuid"},
				Socket: "s", Provider: "memory:", Scope: "unverified", Promise: "none",
			},
		},
		services: map[string]config.Service{"default": settings()}, secrets: map[string]string{},
		terms: provider.DefaultTerms(), source: r.clock, store: map[string]*state.Service{}, patience: defaultPatience,
		loop: os.Getenv(portable) == "",
	}
	// Who hears of the cut, or why it is refused, does not depend on the machine.
	s.patience.cut, s.patience.refuse = hang, hang
	s.patience.hangup = time.Millisecond
	for _, change := range changes {
		change(s)
	}
	// All peers of a test are one process.
	s.MaxConnections *= processShare
	s.MaxConnectionsPerUser = cmp.Or(s.MaxConnectionsPerUser, s.MaxConnections)
	s.MaxInFlight *= testShare
	believed := clock.NewBelieved(s.source, clock.Config{MaxForward: time.Second, Hold: time.Minute})
	if s.provider == nil {
		var err error
		s.provider, err = providertest.OverMemory(memory.New(believed.NowMS), provider.Services{Default: s.terms})
		must.Succeed(t, err)
	}
	r.line = providertest.NewFaulty(s.provider)
	r.metrics = metrics.New(metrics.Build{Version: "v1.2.3", Commit: "abc", GoVersion: "go1"})
	var core zapcore.Core
	core, r.logs = observer.New(zap.DebugLevel)
	log := zap.New(core)
	s.Refusals = refusals.New(log, r.metrics.Refused)
	r.assemble(s, believed, log)
	var err error
	if r.server, err = NewServer(s.Config, r.services, r.metrics, log); err != nil {
		t.Fatal(err)
	}
	r.server.patience = s.patience
	if !s.loop {
		r.server.newFastPath = noFastPath
	}
	if !s.early {
		r.step()
	}
	return r
}

// noFastPath has a server do without, as on systems that have no epoll.
func noFastPath(*Server, context.Context) (fastPath, error) { return nil, errors.ErrUnsupported }

func (r *rig) assemble(s *setup, believed *clock.Believed, log *zap.Logger) {
	r.t.Helper()
	ephemeral := state.Ephemeral(state.Options{})
	r.services = map[string]*issuer.Service{}
	for name, one := range s.services {
		if secret, ok := s.secrets[name]; ok {
			one.ExternalSecretFile = filepath.Join(r.t.TempDir(), name)
			must.Succeed(r.t, os.WriteFile(one.ExternalSecretFile, []byte(secret), 0o600))
		}
		st := s.store[name]
		if st == nil {
			var err error
			if st, err = ephemeral.Service(name); err != nil {
				r.t.Fatal(err)
			}
		}
		svc, err := issuer.NewService(issuer.ServiceOptions{
			Name: name, Settings: one, Meta: map[string]string{"host": "alpha"}, ProviderTimeout: hang, VerifyInterval: 10 * time.Second,
			Provider: r.line, State: st, Clock: believed, Observer: r.metrics.Service(name), Log: log,
		})
		must.Succeed(r.t, err)
		r.services[name] = svc
		r.t.Cleanup(func() { svc.Close(context.Background()) })
	}
}

// step lets every keeper take its due steps.
func (r *rig) step() {
	for _, svc := range r.services {
		svc.Step(context.Background())
	}
}

// start serves until stop is called, or the test ends.
func (r *rig) start() *rig {
	r.t.Helper()
	r.path = filepath.Join(ring.Dir(r.t), "s")
	l, err := unixsock.Listen(r.path, unixsock.Options{Mode: 0o600})
	must.Succeed(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan struct{})
	go func() {
		defer close(r.done)
		r.err = r.server.Serve(ctx, l)
	}()
	r.t.Cleanup(r.stop)
	return r
}

// conn is a connection of the server, which nothing serves yet.
func (r *rig) conn(nc stream) *conn { return newConn(r.server, nc, r.server.bounds.open(nc)) }

// stop ends Serve, and waits for it.
func (r *rig) stop() {
	r.t.Helper()
	r.cancel()
	select {
	case <-r.done:
	case <-time.After(hang):
		r.t.Fatalf("Serve does not return:\n%s", await.Stacks())
	}
	if r.err != nil {
		r.t.Errorf("Serve: %v", r.err)
	}
}

// awaiting is how many requests wait for IDs.
func (r *rig) awaiting() int { return int(r.server.bounds.inFlight()) }

// writing is how many connections wait for their peers to read.
func writing() (n int) {
	for stack := range strings.SplitSeq(await.Stacks(), "\n\n") {
		head, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(head, "[IO wait") && strings.Contains(stack, "(*patientWriter).Write(") {
			n++
		}
	}
	return n
}

// waiters waits until exactly n requests wait in a generator's queue.
func (r *rig) waiters(n int) {
	r.t.Helper()
	await.Eventually(r.t, fmt.Sprintf("%d requests wait", n), func() bool { return r.awaiting() == n })
}

// peer is a client that sees the wire.
type peer struct {
	t testing.TB
	*net.UnixConn
	dec    *msgpack.Decoder
	lastID uint32
}

// dial connects. A vain wait of a peer fails the test.
func (r *rig) dial() *peer {
	r.t.Helper()
	p, err := dial(r.t, r.path)
	must.Succeed(r.t, err)
	r.t.Cleanup(func() { _ = p.Close() })
	return p
}

func dial(t testing.TB, path string) (*peer, error) {
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return newPeer(t, nc), nil
}

func newPeer(t testing.TB, nc *net.UnixConn) *peer {
	_ = nc.SetDeadline(time.Now().Add(5 * await.Patience)) // for all of a test
	return &peer{t: t, UnixConn: nc, dec: msgpack.NewDecoder(nc)}
}

// reply is an answer as it came.
type reply struct {
	id     uint32
	err    *wire.Error // nil: none
	result msgpack.RawMessage
}

// pack encodes values one after another.
func pack(values ...any) []byte {
	var b bytes.Buffer
	if err := msgpack.NewEncoder(&b).EncodeMulti(values...); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// request is a message; params are mostly a []any.
func request(id any, method, params any) []byte { return pack([]any{0, id, method, params}) }

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatalf("send: %v", err)
	}
}

// read takes one answer off the wire.
func (p *peer) read() (r reply, err error) {
	n, err := p.dec.DecodeArrayLen()
	if err != nil {
		return r, err
	}
	kind, err := p.dec.DecodeInt()
	if err != nil || n != 4 || kind != int(wire.TypeResponse) {
		return r, fmt.Errorf("not a response: %d elements of type %d, %v", n, kind, err)
	}
	if r.id, err = p.dec.DecodeUint32(); err != nil {
		return r, err
	}
	failure, err := p.dec.DecodeRaw()
	if err != nil {
		return r, err
	}
	if r.result, err = p.dec.DecodeRaw(); err != nil {
		return r, err
	}
	if bytes.Equal(failure, pack(nil)) {
		return r, nil
	}
	var pair []any
	if err := msgpack.Unmarshal(failure, &pair); err != nil || len(pair) != 2 || !bytes.Equal(r.result, pack(nil)) {
		return r, fmt.Errorf("not a failure: %x %x, %v", failure, r.result, err)
	}
	text, ok := pair[1].(string)
	number, ok2 := pair[0].(int8)
	if !ok || !ok2 {
		return r, fmt.Errorf("not [kind, text]: %#v", pair)
	}
	r.err = wire.ParseErrorText(wire.ErrorKind(number), text)
	return r, nil
}

func (p *peer) receive() reply {
	p.t.Helper()
	r, err := p.read()
	if err != nil {
		p.t.Fatalf("no answer: %v", err)
	}
	return r
}

// answered receives the answers to the requests from first to last, in their order, none of
// which is an error.
func (p *peer) answered(first, last uint32) {
	p.t.Helper()
	for id := first; id <= last; id++ {
		if got := p.receive(); got.id != id || got.err != nil {
			p.t.Fatalf("the answer to %d is that to %d, with the error %v", id, got.id, got.err)
		}
	}
}

// succeeds receives an answer that is no error.
func (p *peer) succeeds() {
	p.t.Helper()
	if got := p.receive(); got.err != nil {
		p.t.Fatalf("%d: %v", got.id, got.err)
	}
}

// ask sends a request; the answer is received later.
func (p *peer) ask(method string, params ...any) {
	p.t.Helper()
	p.lastID++
	p.send(request(p.lastID, method, slice(params)))
}

func slice(params []any) []any { return append([]any{}, params...) }

// call asks and receives.
func (p *peer) call(method string, params ...any) reply {
	p.t.Helper()
	p.ask(method, params...)
	r := p.receive()
	if r.id != p.lastID {
		p.t.Fatalf("%s: an answer to %d, not to %d", method, r.id, p.lastID)
	}
	return r
}

// result returns the result of a call that succeeds.
func (p *peer) result(method string, params ...any) msgpack.RawMessage {
	p.t.Helper()
	r := p.call(method, params...)
	if r.err != nil {
		p.t.Fatalf("%s%v: %v", method, params, r.err)
	}
	return r.result
}

// text is a string that a call returns.
func (p *peer) text(method string, params ...any) string {
	p.t.Helper()
	var s string
	p.decode(p.result(method, params...), &s)
	return s
}

// table is a map that a call returns.
func (p *peer) table(method string, params ...any) map[string]any {
	p.t.Helper()
	var m map[string]any
	p.decode(p.result(method, params...), &m)
	return m
}

func (p *peer) decode(raw msgpack.RawMessage, target any) {
	p.t.Helper()
	if err := msgpack.Unmarshal(raw, target); err != nil {
		p.t.Fatalf("%x: %v", []byte(raw), err)
	}
}

// fails is the error of a call, which has to have the code and its kind.
func (p *peer) fails(code wire.Code, method string, params ...any) *wire.Error {
	p.t.Helper()
	r := p.call(method, params...)
	p.wantError(r, code)
	return r.err
}

func (p *peer) wantError(r reply, code wire.Code) {
	p.t.Helper()
	if r.err == nil {
		p.t.Fatalf("want %s, got the result %x", code, []byte(r.result))
	}
	if r.err.Code != code || r.err.Kind != code.Kind() {
		p.t.Fatalf("want %s of kind %d, got kind %d: %v", code, code.Kind(), r.err.Kind, r.err)
	}
}

// id is a NextID as an integer, which must be in the 9-byte form.
func (p *peer) id(options ...any) snowflake.ID {
	p.t.Helper()
	id, err := idOf(p.result("NextID", options...))
	must.Succeed(p.t, err)
	return id
}

func idOf(raw msgpack.RawMessage) (snowflake.ID, error) {
	if len(raw) != 9 || raw[0] != 0xcf {
		return 0, fmt.Errorf("%x is no msgpack uint64", []byte(raw))
	}
	var n uint64
	err := msgpack.Unmarshal(raw, &n)
	return snowflake.ID(n), err
}

// ids is a NextIDs as integers.
func (p *peer) ids(count int, options ...any) []snowflake.ID {
	p.t.Helper()
	ids, err := idsOf(p.result("NextIDs", append([]any{count}, options...)...))
	if err != nil || len(ids) != count {
		p.t.Fatalf("%d IDs instead of %d, %v", len(ids), count, err)
	}
	return ids
}

func idsOf(raw msgpack.RawMessage) ([]snowflake.ID, error) {
	var each []msgpack.RawMessage
	if err := msgpack.Unmarshal(raw, &each); err != nil {
		return nil, err
	}
	var ids []snowflake.ID
	for _, one := range each {
		id, err := idOf(one)
		if err != nil {
			return nil, err
		}
		if len(ids) > 0 && id <= ids[len(ids)-1] {
			return nil, fmt.Errorf("%d after %d", id, ids[len(ids)-1])
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// alive checks that the connection still works.
func (p *peer) alive() {
	p.t.Helper()
	if got := p.text("Ping"); got != "pong" {
		p.t.Fatalf("Ping: %q", got)
	}
}

// ends checks that nothing more comes before the end of the stream.
func (p *peer) ends() {
	p.t.Helper()
	if r, err := p.read(); err == nil {
		p.t.Fatalf("unasked for: %+v", r)
	} else if !errors.Is(err, io.EOF) {
		p.t.Fatalf("the connection does not end: %v", err)
	}
}

// options are those of one request.
type options = map[string]any

// patient makes a request wait for as long as a test takes.
func patient() options { return options{"timeout_ms": 3_600_000} }

// socketpair returns the two ends of a connection without a listener. Bytes written to one end
// before the server has the other come in one read, if they fit.
func socketpair(t testing.TB, kind int) (client, server *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, kind, 0)
	must.Succeed(t, err)
	ends := [2]*net.UnixConn{}
	for i, fd := range fds {
		syscall.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "socketpair")
		nc, err := net.FileConn(f)
		_ = f.Close()
		must.Succeed(t, err)
		t.Cleanup(func() { _ = nc.Close() })
		ends[i] = nc.(*net.UnixConn)
	}
	return ends[0], ends[1]
}
