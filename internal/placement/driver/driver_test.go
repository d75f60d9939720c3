package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/record/memory"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
)

// site is hosts around one store, on the fake clock of a bubble.
type site struct {
	*testing.T
	locks   lock.Store
	records storage.Storage
	guard   sync.Mutex
	live    map[placement.Key]map[string]int64 // host: token
	tokens  map[placement.Key]int64
}

type host struct {
	*site
	*Driver
	name   string
	cancel func()
	over   chan struct{}
}

func newSite(t *testing.T) *site {
	return &site{
		T: t, locks: lock.OnRecords(memory.New(nil)), records: storage.OnRecords(memory.New(nil)),
		live: map[placement.Key]map[string]int64{}, tokens: map[placement.Key]int64{},
	}
}

type since struct{ time.Time }

func (s since) Elapsed() time.Duration { return time.Since(s.Time) }

func (s *site) start(name string, edit ...func(*Config)) *host {
	ctx, cancel := context.WithCancel(context.Background())
	h := &host{site: s, name: name, cancel: cancel, over: make(chan struct{})}
	cfg := Config{
		Tenant: "t", Authority: name, Owner: "o", Locks: s.locks, Records: s.records, Executor: h, Clock: since{time.Now()},
		NowMS: func() int64 { return time.Now().UnixMilli() },
	}
	for _, e := range edit {
		e(&cfg)
	}
	h.Driver = New(cfg)
	h.SetKinds([]string{"room"})
	go func() {
		defer close(h.over)
		h.Run(ctx)
	}()
	return h
}

func (h *host) stop() {
	h.cancel()
	<-h.over
}

// Activate implements Executor.
func (h *host) Activate(k placement.Key, r placement.Record, _ time.Duration, done func(string, error)) {
	go func() { done(h.activate(k, r)) }()
}

func (h *host) activate(k placement.Key, r placement.Record) (string, error) {
	time.Sleep(5 * time.Millisecond)
	h.guard.Lock()
	defer h.guard.Unlock()
	if h.live[k] == nil {
		h.live[k] = map[string]int64{}
	}
	h.live[k][h.name] = r.Token
	if r.Token <= h.tokens[k] {
		h.Errorf("%v: token %d after %d", k, r.Token, h.tokens[k])
	}
	h.tokens[k] = r.Token
	return fmt.Sprint(h.name, "#", r.Token), nil
}

// Passivate implements Executor.
func (h *host) Passivate(k placement.Key, r placement.Record, _ time.Duration, done func([]byte, error)) {
	go func() { done(h.passivate(k, r)) }()
}

func (h *host) passivate(k placement.Key, r placement.Record) ([]byte, error) {
	h.guard.Lock()
	defer h.guard.Unlock()
	if h.live[k][h.name] == r.Token {
		delete(h.live[k], h.name)
	}
	return []byte("left by " + h.name), nil
}

func room(i int) placement.Key { return placement.Key{Kind: "room", Identity: fmt.Sprint(i)} }

const rooms = 60

// settled has every room resolved from everywhere: all agree, and each is alive
// where they say, and there alone.
func (s *site) settled(all ...*host) {
	s.Helper()
	for i := range rooms {
		var first placement.Resolution
		for _, h := range all {
			if _, err := h.Resolve(s.Context(), room(i), 10*time.Second); err != nil {
				s.Fatalf("%s: room %d: %v", h.name, i, err)
			}
		}
		for n, h := range all {
			r, err := h.Resolve(s.Context(), room(i), 0)
			if err != nil {
				s.Fatalf("%s: room %d: %v", h.name, i, err)
			}
			if n == 0 {
				first = r
			}
			if r.Authority != first.Authority || (r.Locality == placement.Local) != (r.Authority == h.name) {
				s.Fatalf("room %d is %+v for %s, and %+v for %s", i, r, h.name, first, all[0].name)
			}
			s.guard.Lock()
			if _, alive := s.live[room(i)][h.name]; alive != (r.Authority == h.name) {
				s.Errorf("room %d belongs to %s, and on %s it is alive: %v", i, r.Authority, h.name, alive)
			}
			s.guard.Unlock()
		}
	}
}

func bubble(t *testing.T, f func(*testing.T, *site)) {
	synctest.Test(t, func(t *testing.T) {
		f(t, newSite(t))
	})
}

// ready waits until the hosts see each other.
func ready() { time.Sleep(2 * DefaultInterval) }

// PL-C8: every command is carried out, and its result comes back, while hosts join,
// stop and leave.
func TestHostsComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a, b := s.start("a:1"), s.start("b:1")
		ready()
		s.settled(a, b)
		c := s.start("c:1") // joins
		ready()
		s.settled(a, b, c)
		b.stop() // politely
		ready()
		s.settled(a, c)
		for i := range rooms {
			r, err := s.records.Load(t.Context(), "t", room(i))
			if err != nil || r.Version < 1 || r.Owner.Authority == "b:1" { // seeds 004-4 and 004-66
				t.Errorf("room %d is recorded as %+v, %v", i, r, err)
			}
		}
		a.stop()
		c.stop()
		if n := len(must(s.locks.List(t.Context(), "t", "", lock.MaxList))(t)); n != 0 { // seed 004-38
			t.Errorf("%d locks are left", n)
		}
		for k, live := range s.live {
			if len(live) != 0 {
				t.Errorf("%v is left alive: %v", k, live)
			}
		}
	})
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Callers wait for one activation together, and leave when their time is up.
func TestWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1")
		ready()
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				if r, err := a.Resolve(t.Context(), room(1), time.Second); err != nil || r.Version != 1 { // seed 004-46
					t.Errorf("resolved to %+v, %v", r, err)
				}
			})
		}
		group.Wait()
		blocked := lock.Request{Op: lock.Acquire, Tenant: "t", Owner: "other", Key: "activation/room/2", LeaseID: lock.NewLeaseID(), TTLMS: 60_000}
		if _, err := s.locks.Do(t.Context(), blocked); err != nil {
			t.Fatal(err)
		}
		var held *lock.HeldError
		// Seeds 004-38 and 004-61.
		if _, err := a.Resolve(t.Context(), room(2), 3*time.Second); !errors.Is(err, placement.ErrPending) || !errors.As(err, &held) {
			t.Errorf("the error is %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Resolve(ctx, room(2), time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
		if a.callers != 0 || len(a.waiting) != 0 {
			t.Errorf("%d callers still wait, for %v", a.callers, a.waiting)
		}
		if r, err := a.Resolve(t.Context(), room(2), 2*time.Minute); err != nil || r.Version != 1 {
			t.Errorf("resolved to %+v, %v", r, err)
		}
		a.stop()
	})
}

// PL-C7: events come in order; a subscriber that is too slow is told by the end of its
// channel.
func TestEvents(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1")
		ready()
		everything := []placement.EventKind{placement.Resolved, placement.Activated}
		quick, slow := must(a.Subscribe(everything))(t), must(a.Subscribe(everything))(t)
		few := must(a.Subscribe([]placement.EventKind{placement.Activated}))(t)
		if _, err := a.Resolve(t.Context(), room(1), time.Second); err != nil {
			t.Fatal(err)
		}
		if first, second := <-quick.Events, <-quick.Events; first.Kind != placement.Resolved || second.Kind != placement.Activated || second.PID == "" {
			t.Errorf("told is %+v, %+v", first, second)
		}
		quick.Close()
		quick.Close()
		for range maxBehind {
			if _, err := a.Resolve(t.Context(), room(1), 0); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for range slow.Events {
			n++
		}
		if n != maxBehind {
			t.Errorf("the slow one got %d events", n)
		}
		// Who does not want what there is too much of is not behind.
		if e := <-few.Events; e.Kind != placement.Activated || len(few.Events) != 0 {
			t.Errorf("the one that wants few is told %+v", e)
		}
		few.Close()
		for range MaxSubscribers {
			must(a.Subscribe(everything))(t)
		}
		var full *OverloadedError
		if _, err := a.Subscribe(nil); !errors.As(err, &full) || !full.Watches || full.Limit != MaxSubscribers {
			t.Errorf("one subscriber too many: %v", err)
		}
		a.stop()
		if _, open := <-must(a.Subscribe(everything))(t).Events; open {
			t.Error("something is told after the end")
		}
	})
}

// A host that only resolves is no member.
func TestClient(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a, c := s.start("a:1"), s.start("client", func(c *Config) { c.Authority = "" })
		ready()
		r, err := c.Resolve(t.Context(), room(1), time.Second)
		if err != nil || r.Authority != "a:1" || r.Locality != placement.Remote { // seed 004-41
			t.Errorf("resolved to %+v, %v", r, err)
		}
		if _, err := c.Resolve(t.Context(), placement.Key{Kind: "cart", Identity: "1"}, 0); !errors.Is(err, placement.ErrUnserved) { // seed 004-15
			t.Errorf("what nobody serves: %v", err)
		}
		if members := a.Overview().Members; len(members) != 1 { // seed 004-14
			t.Errorf("members are %v", members)
		}
		c.stop()
		a.stop()
	})
}

// A host with a wall clock that is an hour off is a member like any other, and runs new actors.
func TestWallClockDecidesNothing(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			now := func() int64 { return time.Now().Add(off).UnixMilli() }
			s.locks = lock.OnRecords(memory.New(now))
			a := s.start("a:1")
			defer a.stop()
			s.settled(a)
			token := a.Overview().Members[0].Token
			time.Sleep(20 * time.Minute)
			if members := a.Overview().Members; len(members) != 1 || members[0].Token != token {
				t.Errorf("with a clock %v off, the membership %d has become %+v", -off, token, members)
			}
			if _, err := a.Resolve(t.Context(), room(rooms), 0); !errors.Is(err, placement.ErrPending) {
				t.Error(err)
			}
			if _, err := a.Resolve(t.Context(), room(rooms), 10*time.Second); err != nil {
				t.Error(err)
			}
		})
	}
}

// Callers that ask on and on for unserved kinds do not drown other events: there is one per
// kind and second, and for so many kinds.
func TestUnservedEventsAreFew(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1")
		defer a.stop()
		ready()
		events := must(a.Subscribe([]placement.EventKind{placement.Unserved}))(t)
		ask := func(kind string) {
			if _, err := a.Resolve(t.Context(), placement.Key{Kind: kind, Identity: "1"}, 0); !errors.Is(err, placement.ErrUnserved) {
				t.Fatal(err)
			}
		}
		told := func(want int) {
			t.Helper()
			if n := len(events.Events); n != want {
				t.Errorf("%d events, want %d", n, want)
			}
		}
		for range 100 {
			ask("cart")
		}
		told(1)
		for i := range 2 * maxUnserved {
			ask(fmt.Sprint("kind", i))
		}
		told(maxUnserved)
		time.Sleep(unservedPause)
		ask("cart")
		told(maxUnserved + 1)
	})
}
