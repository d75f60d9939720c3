//go:build go1.25

// For testing/synctest, with any version in go.mod.
//go:debug asynctimerchan=0

package kazahanatest

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/clienttest"
)

func TestMain(m *testing.M) { os.Exit(clienttest.Main(m)) }

func client(t *testing.T, f *Fake, opts ...kazahana.Option) *kazahana.Client {
	t.Helper()
	c := f.Client(opts...)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The same calls give the same answers, in every run.
func TestDeterministic(t *testing.T) {
	f := New()
	c := client(t, f)
	ctx := t.Context()
	ids, err := c.NextIDs(ctx, 300)
	if err != nil {
		t.Fatal(err)
	}
	layout := kazahana.DefaultLayout()
	// Seed 000-7.3-1.
	if !slices.IsSorted(ids) || !ids[0].Time(layout).Equal(Start) || !ids[255].Time(layout).Equal(Start) || !ids[256].Time(layout).Equal(Start.Add(time.Millisecond)) {
		t.Errorf("the IDs are %d to %d", ids[0], ids[299])
	}
	if ids[0] != 137_465_797_017_600_256 {
		t.Errorf("the first ID is %d", ids[0])
	}
	in, err := c.Inspect(ctx, ids[1])
	if err != nil || in.MachineID != MachineID || in.Sequence != 1 || in.Fallback {
		t.Errorf("%+v, %v", in, err)
	}
	offline, err := layout.Inspect(ids[1])
	if err != nil || in != offline {
		t.Errorf("%+v, %v, want %+v", in, err, offline)
	}
	last := ids[299]
	for i := range 20 {
		f.SetFallback(i%2 == 0) // seed 003-2-6
		id, err := c.NextID(ctx)
		if err != nil || id <= last {
			t.Fatalf("%d after %d, %v", id, last, err)
		}
		if fallback, err := c.IsFallback(ctx, id); err != nil || fallback != (i%2 == 0) {
			t.Error(fallback, err)
		}
		last = id
	}
	f.Advance(time.Hour)
	if id, err := c.NextID(ctx); err != nil || !id.Time(layout).Equal(Start.Add(time.Hour)) {
		t.Error(id, err)
	}
	if u, err := c.UUID(ctx); err != nil || u != "00000000-0000-7000-8000-000000000001" {
		t.Error(u, err)
	}
}

func TestEveryCall(t *testing.T) {
	f := New()
	if err := f.SetSecret("secret"); err != nil {
		t.Fatal(err)
	}
	c := client(t, f, kazahana.WithService("orders"))
	ctx := t.Context()
	id, err := c.NextID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	external, err := c.ToExternal(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := c.ToInternal(ctx, external, kazahana.NotAfter(Start)); err != nil || back != id {
		t.Error(back, err)
	}
	if _, err := c.ToInternal(ctx, external, kazahana.NotAfter(Start.Add(-time.Second))); !errors.Is(err, kazahana.ErrInvalidExternalID) {
		t.Error(err)
	}
	if _, err := c.ToInternal(ctx, "short"); !errors.Is(err, kazahana.ErrInvalidExternalID) {
		t.Error(err)
	}
	if a, b, err := c.Bounds(ctx, Start, Start.Add(time.Second)); err != nil || id < a || id > b {
		t.Error(a, b, err)
	}
	if _, _, err := c.Bounds(ctx, Start, Start); !errors.Is(err, kazahana.ErrInvalidParams) {
		t.Error(err)
	}
	if texts, err := c.NextExternalIDs(ctx, 2); err != nil || len(texts) != 2 {
		t.Error(texts, err)
	}
	if err := c.Ping(ctx); err != nil {
		t.Error(err)
	}
	if st, err := c.Status(ctx); err != nil || st.Version != "fake" || len(st.Services) != 1 {
		t.Error(st, err)
	}
	if _, err := c.UUIDv4(ctx); err != nil {
		t.Error(err)
	}
	if _, err := c.NextIDs(ctx, 0); !errors.Is(err, kazahana.ErrInvalidParams) {
		t.Error(err)
	}
	if err := c.Call(ctx, "NoSuchMethod", nil); !errors.Is(err, kazahana.ErrUnknownMethod) {
		t.Error(err)
	}
	for range 2 {
		if v, err := c.NextSequences(ctx, "k", 3, kazahana.WithRequestID("a")); err != nil || !slices.Equal(v, []int64{1, 2, 3}) {
			t.Error(v, err)
		}
	}
	if v, err := c.NextSequence(ctx, "k"); err != nil || v != 4 {
		t.Error(v, err)
	}
	if calls := f.Calls(); calls[0] != "NextID" || calls[1] != "ToExternal" {
		t.Error(calls)
	}
}

func TestFailures(t *testing.T) {
	f := New()
	c := client(t, f)
	f.Fail("NextID", 1, &kazahana.Error{Code: kazahana.ErrClockBackward, Details: map[string]string{"backward_ms": "7000", "limit_ms": "5000"}})
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	var backward *kazahana.ClockBackwardError
	if _, err := c.NextID(t.Context()); !errors.As(err, &backward) || backward.Backward != 7*time.Second {
		t.Error(err)
	}
	if _, err := c.NextID(t.Context()); err != nil {
		t.Error(err)
	}
	f.Fail("", -1, &kazahana.Error{Code: kazahana.ErrOverloaded})
	for range 3 {
		if err := c.Ping(t.Context()); !errors.Is(err, kazahana.ErrOverloaded) {
			t.Error(err)
		}
	}
	f.Recover()
	f.Fail("Ping", 2, &kazahana.Error{Code: kazahana.ErrShuttingDown})
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("what is asked again failed: %v", err)
	}
}

// A restart is waited for, in a bubble's time as well.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New()
		c := client(t, f)
		before, err := c.NextID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.Stop()
		time.AfterFunc(3*time.Second, f.Start)
		began := time.Now()
		if id, err := c.NextID(t.Context()); err != nil || id <= before {
			t.Error(id, err)
		}
		if waited := time.Since(began); waited < 3*time.Second || waited > 3300*time.Millisecond {
			t.Errorf("it took %v", waited)
		}
		f.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.NextID(ctx); !errors.Is(err, kazahana.ErrDaemonUnavailable) {
			t.Error(err)
		}
	})
}

func TestLocks(t *testing.T) {
	f := New()
	c := client(t, f)
	first, err := c.Lock(t.Context(), "k", kazahana.LockOptions{})
	if err != nil || first.Token() != 1 {
		t.Fatal(first, err)
	}
	var held *kazahana.LockHeldError
	if _, err := c.Lock(t.Context(), "k", kazahana.LockOptions{}); !errors.As(err, &held) || held.Owner != first.OwnerID() {
		t.Error(err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Error(err)
	}
	second, err := c.Lock(t.Context(), "k", kazahana.LockOptions{})
	if err != nil || second.Token() != 2 {
		t.Fatal(second, err)
	}
	if f.LoseLock("other", "expired") || !f.LoseLock("k", "taken_over") {
		t.Error("LoseLock")
	}
	<-second.Lost()
	var lost *kazahana.LockLostError
	if err := second.Release(t.Context()); !errors.As(err, &lost) || lost.Reason != "taken_over" || lost.Key != "k" {
		t.Error(err)
	}
	third, err := c.Lock(t.Context(), "k", kazahana.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.Stop()
	<-third.Lost()
	if err := third.Release(t.Context()); !errors.As(err, &lost) || lost.Reason != "disconnected" {
		t.Error(err)
	}
}
