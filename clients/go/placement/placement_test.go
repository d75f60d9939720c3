//go:build go1.25

package placement

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/clienttest"
)

// placed starts a daemon that actors are placed on, and waits until it is the only member.
func placed(t *testing.T) (*clienttest.Daemon, *Placement) {
	t.Helper()
	d := clienttest.NewDaemon(t, "--placement-authority", "a:1", "--topology-interval", "50ms")
	c := of(t, d)
	eventually(t, "the membership", func() error {
		s, err := c.Snapshot(t.Context(), Query{})
		if err == nil && (s.State != "member" || len(s.Members) != 1 || s.Members[0].Authority != "a:1") {
			err = fmt.Errorf("%s among %v", s.State, s.Members)
		}
		return err
	})
	return d, c
}

// stage is an Executor that notes its calls.
type stage struct {
	t *testing.T

	mu        sync.Mutex
	activate  func(context.Context, *Activation) (string, error)
	passivate func(context.Context, *Activation) ([]byte, error)
	said      []string
	more      chan struct{} // closed and replaced with each
}

func (s *stage) activates(f func(context.Context, *Activation) (string, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.activate = f
}

func (s *stage) passivates(f func(context.Context, *Activation) ([]byte, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passivate = f
}

func newStage(t *testing.T) *stage { return &stage{t: t, more: make(chan struct{})} }

func (s *stage) say(what string, a *Activation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, fmt.Sprintf("%s %s/%s v%d %q", what, a.Kind, a.Identity, a.Version, a.Snapshot))
	close(s.more)
	s.more = make(chan struct{})
}

// expect waits until the calls since the last look are these.
func (s *stage) expect(want ...string) {
	s.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		s.mu.Lock()
		said, more := s.said, s.more
		if len(said) >= len(want) {
			s.said = nil
			s.mu.Unlock()
			if !slices.Equal(said, want) {
				s.t.Errorf("the executor was told %q, not %q", said, want)
			}
			return
		}
		s.mu.Unlock()
		select {
		case <-more:
		case <-timer.C:
			s.t.Fatalf("the executor was told %q, not %q", said, want)
		}
	}
}

// take returns the calls since the last look.
func (s *stage) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	said := s.said
	s.said = nil
	return said
}

func (s *stage) executor(kinds ...string) Executor {
	return Executor{
		Kinds: kinds,
		Activate: func(ctx context.Context, a *Activation) (string, error) {
			s.say("activate", a)
			s.mu.Lock()
			activate := s.activate
			s.mu.Unlock()
			if activate != nil {
				return activate(ctx, a)
			}
			return "", nil
		},
		Passivate: func(ctx context.Context, a *Activation) ([]byte, error) {
			s.say("passivate", a)
			s.mu.Lock()
			passivate := s.passivate
			s.mu.Unlock()
			if passivate != nil {
				return passivate(ctx, a)
			}
			return fmt.Appendf(nil, "left by v%d", a.Version), nil
		},
		Ended: func(a *Activation) { s.say("ended", a) },
	}
}

func mustRegister(t *testing.T, c *Placement, e Executor) *Registration {
	t.Helper()
	r, err := c.Register(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(context.Background()) })
	return r
}

// upToDate waits until the daemon has seen its own announcements. Else a client that registers
// again for a withdrawn kind could meet an older view.
func upToDate(t *testing.T, c *Placement) {
	t.Helper()
	mustRegister(t, c, newStage(t).executor("mark"))
	mustResolve(t, c, "mark", "1")
}

func mustResolve(t *testing.T, c *Placement, kind, identity string) (r Resolution) {
	t.Helper()
	// Right after a start the daemon may be no member yet, and no process registered.
	eventually(t, "resolve", func() (err error) {
		r, err = c.Resolve(t.Context(), kind, identity)
		return err
	})
	return r
}

func expectEnded(t *testing.T, err error, reason string) {
	t.Helper()
	var ended *ActivationEndedError
	if !errors.As(err, &ended) || !errors.Is(err, ErrActivationEnded) || ended.Reason != reason || ended.Kind != "room" {
		t.Errorf("the check says %v, not %s", err, reason)
	}
}

// The first resolve activates, later ones find it; the next activation begins with the
// snapshot that Close leaves behind.
func TestPlacement(t *testing.T) {
	_, c := placed(t)
	s := newStage(t)
	r := mustRegister(t, c, s.executor("room", "user"))
	if r.Authority() != "a:1" || r.Err() != nil || len(r.Activations()) != 0 {
		t.Error(r.Authority(), r.Err(), r.Activations())
	}
	first := mustResolve(t, c, "room", "1/2")
	want := Resolution{Kind: "room", Identity: "1/2", Authority: "a:1", Locality: "local", PID: strconv.Itoa(os.Getpid()), Version: 1, Token: first.Token, ObservedMS: first.ObservedMS}
	if first != want || first.Token < 1 || !first.IsLocal() || time.Since(time.UnixMilli(first.ObservedMS)).Abs() > time.Hour {
		t.Errorf("%+v", first)
	}
	again := mustResolve(t, c, "room", "1/2")
	if again.ObservedMS = first.ObservedMS; again != first {
		t.Errorf("%+v, then %+v", first, again)
	}
	withPID, err := c.Resolve(t.Context(), "room", "1/2", WithPID())
	if withPID.ObservedMS = first.ObservedMS; err != nil || withPID != first {
		t.Errorf("%+v, then %+v, %v", first, withPID, err)
	}
	mustResolve(t, c, "user", "z")
	s.expect(`activate room/1/2 v1 ""`, `activate user/z v1 ""`) // seed 004-40
	all := r.Activations()
	if len(all) != 2 || all[0].Identity != "1/2" || all[0].Token != first.Token || all[1].Kind != "user" {
		t.Errorf("%+v", all)
	}
	if err := all[0].Check(t.Context()); err != nil {
		t.Error(err)
	}
	expectSnapshot(t, c, first)

	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	slices.Sort(s.said) // different actors
	s.mu.Unlock()
	s.expect(`passivate room/1/2 v1 ""`, `passivate user/z v1 ""`)
	if err := all[0].Check(t.Context()); !errors.Is(err, ErrActivationEnded) {
		t.Error(err)
	}
	if len(r.Activations()) != 0 || r.Close(t.Context()) != nil {
		t.Error("a closed registration has something")
	}
	if _, err := c.Resolve(t.Context(), "room", "1/2", WithWait(0)); !errors.Is(err, ErrUnserved) {
		t.Errorf("without an executor: %v", err)
	}

	s.activates(func(context.Context, *Activation) (string, error) { return "mailbox 7", nil })
	upToDate(t, c)
	mustRegister(t, c, s.executor("room"))
	next := mustResolve(t, c, "room", "1/2")
	if next.Version != 2 || next.Token <= first.Token || next.PID != "mailbox 7" {
		t.Errorf("%+v after %+v", next, first)
	}
	s.expect(`activate room/1/2 v2 "left by v1"`)
}

func expectSnapshot(t *testing.T, c *Placement, r Resolution) {
	t.Helper()
	page, err := c.Snapshot(t.Context(), Query{Limit: 1})
	if err != nil || page.ActivationsTotal != 2 || len(page.Activations) != 1 || !slices.Equal(page.Kinds, []string{"room", "user"}) || page.Authority != "a:1" || page.Key != nil {
		t.Fatalf("%+v, %v", page, err)
	}
	a := page.Activations[0]
	if a.Kind != r.Kind || a.Identity != r.Identity || a.PID != r.PID || a.Version != r.Version || a.Token != r.Token || !a.Active {
		t.Errorf("%+v", a)
	}
	page, err = c.Snapshot(t.Context(), Query{After: "room/1/2"})
	if err != nil || len(page.Activations) != 1 || page.Activations[0].Kind != "user" {
		t.Errorf("%+v, %v", page, err)
	}
	page, err = c.Snapshot(t.Context(), Query{Kind: "room", Identity: "1/2"})
	if err != nil || len(page.Activations) != 1 || page.Key == nil || page.Key.Locality != "local" || *page.Key.Record != (Record{"a:1", r.PID, r.Version, r.Token, page.Key.Record.ObservedMS}) || page.Key.Record.ObservedMS <= 0 {
		t.Errorf("%+v, %+v, %v", page, page.Key, err)
	}
	page, err = c.Snapshot(t.Context(), Query{Kind: "room", Identity: "never"})
	if err != nil || len(page.Activations) != 0 || page.Key == nil || page.Key.Authority != "a:1" || page.Key.Record != nil {
		t.Errorf("%+v, %+v, %v", page, page.Key, err)
	}
}

func TestPlacementErrors(t *testing.T) {
	for _, state := range []string{"off", "client"} {
		authority := map[string]string{"off": "none", "client": "client"}[state]
		c := of(t, clienttest.NewDaemon(t, "--placement-authority", authority))
		var not *NotReadyError
		if _, err := c.Register(t.Context(), newStage(t).executor("room")); !errors.As(err, &not) || not.State != state || !errors.Is(err, ErrNotReady) {
			t.Errorf("%s: %v", state, err)
		}
		if _, err := c.Resolve(t.Context(), "room", "1"); !errors.As(err, &not) {
			t.Errorf("%s: %v", state, err)
		}
		if state == "off" {
			if _, err := c.Events(t.Context()); !errors.As(err, &not) {
				t.Errorf("%s: %v", state, err)
			}
		}
	}
	_, c := placed(t)
	s := newStage(t)
	if _, err := c.Register(t.Context(), Executor{Kinds: []string{"room"}}); !errors.Is(err, kazahana.ErrInvalidParams) {
		t.Error(err)
	}
	for _, kinds := range [][]string{nil, {""}, {"a/b"}, slices.Repeat([]string{"a"}, 65)} {
		if _, err := c.Register(t.Context(), s.executor(kinds...)); !errors.Is(err, kazahana.ErrInvalidParams) {
			t.Errorf("%q: %v", kinds, err)
		}
	}
	for _, wait := range []time.Duration{-1, MaxResolveWait + 1} {
		if _, err := c.Resolve(t.Context(), "room", "1", WithWait(wait)); !errors.Is(err, kazahana.ErrInvalidParams) {
			t.Errorf("%v: %v", wait, err)
		}
	}
	if _, err := c.Resolve(t.Context(), "a/b", "1"); !errors.Is(err, kazahana.ErrInvalidParams) {
		t.Error(err)
	}
	if _, err := c.Events(t.Context(), "nonsense"); !errors.Is(err, kazahana.ErrInvalidParams) {
		t.Error(err)
	}
	missing := newClient(t, kazahana.WithSocket(os.TempDir()+"/kz-no-such.sock"))
	if _, err := missing.Register(t.Context(), s.executor("room")); !errors.Is(err, kazahana.ErrDaemonUnavailable) {
		t.Error(err)
	}
}

// What an Executor's functions say is heard, and none of it ends the Executor.
func TestExecutorFails(t *testing.T) {
	_, c := placed(t)
	s := newStage(t)
	mustRegister(t, c, s.executor("room"))
	s.activate = func(context.Context, *Activation) (string, error) {
		return "", errors.New("the room = 5 is closed code=7")
	}
	var failed *ActivationFailedError
	if _, err := c.Resolve(t.Context(), "room", "1"); !errors.As(err, &failed) || !strings.Contains(failed.Cause, "the room = 5 is closed code=7") {
		t.Errorf("%v", err)
	}
	s.expect(`activate room/1 v1 ""`)

	s.activates(func(context.Context, *Activation) (string, error) { return string(make([]byte, 300)), nil })
	if _, err := c.Resolve(t.Context(), "room", "1"); !errors.As(err, &failed) {
		t.Errorf("%v", err)
	}
	s.expect(`activate room/1 v2 ""`, `passivate room/1 v2 ""`) // it may act, under any name

	// The snapshot stays the same, unless Passivate returns another one. The daemon may
	// move the actor while its host announces the kind anew, so each round has at least one
	// activation.
	s.activates(nil)
	rounds := []struct {
		left  []byte
		fails error
		keeps string
	}{
		{[]byte("good"), nil, "good"},
		{[]byte("bad"), errors.New("the disk is full"), "good"},
		{nil, nil, "good"},
		{make([]byte, MaxSnapshot+1), nil, "good"},
		{[]byte{}, nil, ""},
		{nil, nil, ""},
	}
	kept, version := "", int64(0)
	for i, round := range rounds {
		r := mustRegister(t, c, s.executor("hall"))
		s.passivates(func(context.Context, *Activation) ([]byte, error) { return round.left, round.fails })
		resolved := mustResolve(t, c, "hall", "1").Version
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		told := s.take()
		if as := fmt.Sprintf("activate hall/1 v%d ", resolved); !strings.Contains(strings.Join(told, "\n"), as) {
			t.Fatalf("round %d resolved version %d, and the executor was told %q", i, resolved, told)
		}
		for pair := range slices.Chunk(told, 2) {
			before := version
			_, _ = fmt.Sscanf(pair[0], "activate hall/1 v%d", &version)
			actor := fmt.Sprintf("hall/1 v%d %q", version, kept)
			if want := []string{"activate " + actor, "passivate " + actor}; version <= before || !slices.Equal(pair, want) {
				t.Errorf("round %d after version %d: the executor was told %q, not %q", i, before, pair, want)
			}
			kept = round.keeps
		}
	}
}

// A process that is gone has nothing any more, and an Executor hears that its connection is lost,
// and registers again.
func TestExecutorIsGone(t *testing.T) {
	d, c := placed(t)
	s := newStage(t)
	r := mustRegister(t, c, s.executor("room"))
	first := mustResolve(t, c, "room", "1")
	a := r.Activations()[0]
	if err := a.Check(t.Context()); err != nil {
		t.Error(err)
	}
	d.Kill()
	s.expect(`activate room/1 v1 ""`, `ended room/1 v1 ""`)
	expectEnded(t, a.Check(t.Context()), "disconnected")
	if err := r.Err(); !errors.Is(err, kazahana.ErrDaemonUnavailable) {
		t.Error(err)
	}
	d.Start()
	next := mustResolve(t, c, "room", "1")
	if next.Version != 2 || next.Token <= first.Token {
		t.Errorf("%+v after %+v", next, first)
	}
	s.expect(`activate room/1 v2 ""`)
	if err := r.Err(); err != nil || len(r.Activations()) != 1 {
		t.Error(err)
	}
	expectEnded(t, a.Check(t.Context()), "disconnected")

	// A daemon that stops has everything passivated first.
	d.Terminate()
	s.expect(`passivate room/1 v2 ""`)
	d.Start()
	mustResolve(t, c, "room", "1")
	s.expect(`activate room/1 v3 "left by v2"`)
}

// nextEvent reads one event.
func nextEvent(t *testing.T, next func() (Event, error, bool)) Event {
	t.Helper()
	e, err, ok := next()
	if err != nil || !ok {
		t.Fatal(e, err, ok)
	}
	return e
}

func TestPlacementEvents(t *testing.T) {
	d, c := placed(t)
	s := newStage(t)
	r := mustRegister(t, c, s.executor("room"))
	events, err := c.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next, stop := iter.Pull2(events)
	defer stop()
	first := mustResolve(t, c, "room", "1")
	// Seed 004-36.
	if e := nextEvent(t, next); e != (Event{"activated", "room", "1", "a:1", first.PID, 1, first.Token, "", e.ObservedMS}) || e.ObservedMS < first.ObservedMS-1000 {
		t.Errorf("%+v", e)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if e := nextEvent(t, next); e.Event != "passivated" || e.Identity != "1" || e.Version != 1 {
		t.Errorf("%+v", e)
	}

	upToDate(t, c)
	nextEvent(t, next) // the mark is activated
	mustRegister(t, c, s.executor("room"))
	mustResolve(t, c, "room", "1")
	var ended *WatchEndedError

	// All readers see the end of the daemon, each in its way.
	nextEvent(t, next) // activated
	d.Terminate()
	for range 2 {
		if e := nextEvent(t, next); e.Event != "passivated" {
			t.Errorf("%+v", e)
		}
	}
	if _, err, _ := next(); !errors.As(err, &ended) || ended.Reason != "stopping" {
		t.Error(err)
	}
	d.Start()
	of(t, d)
	killed, err := c.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.Kill()
	for _, err := range killed {
		if !errors.As(err, &ended) || ended.Reason != "disconnected" || !errors.Is(err, kazahana.ErrDaemonUnavailable) {
			t.Error(err)
		}
	}
}

// The context ends a subscription, also one without a reader.
func TestPlacementEventsEndWithTheirContext(t *testing.T) {
	_, c := placed(t)
	ctx, cancel := context.WithCancel(t.Context())
	events, err := c.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, cancel)
	for _, err := range events {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	ctx, cancel = context.WithCancel(t.Context())
	if _, err := c.Events(ctx); err != nil {
		t.Fatal(err)
	}
	cancel() // goleak looks
	for range 2 {
		all, err := c.Events(t.Context(), "activated")
		if err != nil {
			t.Fatal(err)
		}
		next, stop := iter.Pull2(all)
		stop() // before the first
		_ = next
	}
}
