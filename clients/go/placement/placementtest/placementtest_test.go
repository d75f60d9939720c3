//go:build go1.25

// For testing/synctest, with any version in go.mod.
//go:debug asynctimerchan=0

package placementtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/clients/go/kazahanatest"
	"github.com/kazahana/kazahana/clients/go/placement"
)

// house has rooms, and notes what becomes of them.
type house struct {
	mu    sync.Mutex
	notes []string
}

func (h *house) note(what string, a *placement.Activation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, fmt.Sprintf("%s %s v%d %q", what, a.Identity, a.Version, a.Snapshot))
}

func (h *house) expect(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.notes, want) {
		t.Errorf("%q, not %q", h.notes, want)
	}
	h.notes = nil
}

func (h *house) register(t *testing.T, c *placement.Placement, activate func(ctx context.Context, a *placement.Activation) (string, error)) *placement.Registration {
	t.Helper()
	r, err := c.Register(t.Context(), placement.Executor{
		Kinds: []string{"room"},
		Activate: func(ctx context.Context, a *placement.Activation) (string, error) {
			h.note("activate", a)
			if activate == nil {
				return "p", nil
			}
			return activate(ctx, a)
		},
		Passivate: func(_ context.Context, a *placement.Activation) ([]byte, error) {
			h.note("passivate", a)
			switch a.Version {
			case 3:
				return nil, nil
			case 4:
				return []byte{}, nil
			}
			return fmt.Appendf(nil, "left by v%d", a.Version), nil
		},
		Ended: func(a *placement.Activation) { h.note("ended", a) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPlacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := New(), &house{}
		client := f.Client()
		defer client.Close()
		c := placement.New(client)
		if _, err := c.Resolve(t.Context(), "room", "1"); !errors.Is(err, placement.ErrUnserved) {
			t.Error(err)
		}
		events, err := c.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := h.register(t, c, nil)
		first, err := c.Resolve(t.Context(), "room", "1")
		if err != nil || first != (placement.Resolution{Kind: "room", Identity: "1", Authority: Authority, Locality: "local", PID: "p", Version: 1, Token: 1, ObservedMS: kazahanatest.Start.UnixMilli()}) {
			t.Error(first, err)
		}
		a := r.Activations()[0]
		if err := a.Check(t.Context()); err != nil {
			t.Error(err)
		}
		again := h.register(t, c, nil)
		if _, err := c.Resolve(t.Context(), "room", "2"); err != nil || len(again.Activations()) != 1 {
			t.Errorf("the one that has the fewest has %v: %v", again.Activations(), err)
		}
		expectPage(t, c)
		if f.Passivate("room", "3") || !f.Passivate("room", "1") {
			t.Error("Passivate")
		}
		if err := a.Check(t.Context()); !errors.Is(err, placement.ErrActivationEnded) {
			t.Error(err)
		}
		if err := again.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for _, identity := range []string{"1", "2"} {
			if next, err := c.Resolve(t.Context(), "room", identity); err != nil || next.Version != 2 || next.Token != 2 {
				t.Error(next, err)
			}
		}
		h.expect(t, `activate 1 v1 ""`, `activate 2 v1 ""`, `passivate 1 v1 ""`, `passivate 2 v1 ""`, `activate 1 v2 "left by v1"`, `activate 2 v2 "left by v1"`)
		synctest.Wait() // the events are on their way
		f.Stop()
		synctest.Wait()
		if h.mu.Lock(); len(h.notes) != 2 || r.Err() == nil {
			t.Error(h.notes, r.Err())
		}
		h.notes = nil
		h.mu.Unlock()
		f.Start()
		time.Sleep(time.Second)
		if next, err := c.Resolve(t.Context(), "room", "1"); err != nil || next.Version != 3 || r.Err() != nil {
			t.Error(next, err, r.Err())
		}
		h.expect(t, `activate 1 v3 "left by v1"`)
		for version := range int64(2) {
			f.Passivate("room", "1")
			if next, err := c.Resolve(t.Context(), "room", "1"); err != nil || next.Version != 4+version {
				t.Error(next, err)
			}
		}
		h.expect(t, `passivate 1 v3 "left by v1"`, `activate 1 v4 "left by v1"`, `passivate 1 v4 "left by v1"`, `activate 1 v5 ""`)
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		var seen []string
		for e, err := range events {
			if err != nil {
				if !errors.Is(err, placement.ErrWatchEnded) {
					t.Error(err)
				}
				break
			}
			seen = append(seen, e.Event+" "+e.Identity)
		}
		if want := []string{"activated 1", "activated 2", "passivated 1", "passivated 2", "activated 1", "activated 2"}; !slices.Equal(seen, want) {
			t.Errorf("%q", seen)
		}
	})
}

func expectPage(t *testing.T, c *placement.Placement) {
	t.Helper()
	page, err := c.Snapshot(t.Context(), placement.Query{After: "room/1", Limit: 1})
	if err != nil || page.State != "member" || page.ActivationsTotal != 2 || len(page.Activations) != 1 || page.Activations[0].Identity != "2" || !slices.Equal(page.Kinds, []string{"room"}) {
		t.Errorf("%+v, %v", page, err)
	}
	page, err = c.Snapshot(t.Context(), placement.Query{Kind: "room", Identity: "1"})
	if err != nil || len(page.Activations) != 1 || page.Key == nil || page.Key.Record == nil || page.Key.Record.PID != "p" {
		t.Errorf("%+v, %v", page, err)
	}
}

// What fails, is waited for, and asks for others meanwhile.
func TestPlacementWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := New(), &house{}
		client := f.Client()
		defer client.Close()
		c := placement.New(client)
		over := make(chan struct{})
		r := h.register(t, c, func(ctx context.Context, a *placement.Activation) (string, error) {
			switch a.Identity {
			case "closed":
				return "", errors.New("it is closed")
			case "slow":
				<-over
			case "neighbour":
				_, err := c.Resolve(ctx, "room", "1")
				return "", err
			}
			return "", nil
		})
		var failed *placement.ActivationFailedError
		if _, err := c.Resolve(t.Context(), "room", "closed"); !errors.As(err, &failed) || failed.Cause != "it is closed" {
			t.Error(err)
		}
		if _, err := c.Resolve(t.Context(), "room", "neighbour"); err != nil {
			t.Error(err)
		}
		for _, wait := range []time.Duration{0, time.Second} {
			began := time.Now()
			if _, err := c.Resolve(t.Context(), "room", "slow", placement.WithWait(wait)); !errors.Is(err, placement.ErrPending) || time.Since(began) != wait {
				t.Error(err, time.Since(began))
			}
		}
		time.AfterFunc(time.Second, func() { close(over) })
		if slow, err := c.Resolve(t.Context(), "room", "slow"); err != nil || slow.Version != 1 {
			t.Error(slow, err)
		}
		h.expect(t, `activate closed v1 ""`, `activate neighbour v1 ""`, `activate 1 v1 ""`, `activate slow v1 ""`)
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		h.expect(t, `passivate 1 v1 ""`, `passivate neighbour v1 ""`, `passivate slow v1 ""`)
	})
}

// Events that a client does not read yet keep no other waiting, and none is lost.
func TestPlacementEventsAreReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := New(), &house{}
		client := f.Client()
		defer client.Close()
		c := placement.New(client)
		events, err := c.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := h.register(t, c, nil)
		defer r.Close(context.Background())
		const actors = 1000 // more than connections and channels hold
		for i := range actors {
			if _, err := c.Resolve(t.Context(), "room", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		i := 0
		for event, err := range events {
			if err != nil || event.Identity != fmt.Sprint(i) {
				t.Fatalf("event %d: %+v, %v", i, event, err)
			}
			if i++; i == actors {
				break
			}
		}
	})
}
