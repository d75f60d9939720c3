package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A service that starts on the state of an earlier life goes on above it,
// though its clock was set back, and gives back its leases when it closes.
func TestLivesOfAService(t *testing.T) {
	dir := t.TempDir()
	var last snowflake.ID
	for life := range 3 {
		stored, err := state.Open(context.Background(), dir, state.Options{})
		must.Succeed(t, err)
		st, err := stored.Service("default")
		must.Succeed(t, err)
		if mark := st.Mark(); life > 0 && mark != startMS+int64(life) {
			t.Errorf("life %d: the mark is %d", life, mark-startMS)
		}
		r := newRig(t, func(s *setup) { s.store["default"] = st }).start()
		p := r.dial()
		p.ask("NextIDs", 256)
		if life > 0 {
			r.waiters(1)
			r.clock.Advance(time.Duration(life) * time.Millisecond)
		}
		ids, err := idsOf(p.receive().result)
		if err != nil || len(ids) != 256 || ids[0] <= last {
			t.Fatalf("life %d: %d IDs from %d on, after %d, %v", life, len(ids), ids[0], last, err)
		}
		last = ids[255]
		_ = p.Close()
		r.stop()
		r.services["default"].Close(context.Background())
		if n := r.line.Calls(providertest.OpRelease); n != 1 {
			t.Errorf("life %d: %d releases", life, n)
		}
		if saved := st.Load(); len(saved.Held) != 0 || saved.Source != state.SourceLease {
			t.Errorf("life %d left %+v", life, saved)
		}
		must.Succeed(t, stored.Close())
	}
}

// Inspect uses the layout of the leases, once there are any.
func TestLayoutFollowsTheLease(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.early = true
		s.terms.BitID, s.terms.BitSeq = 10, 12
		s.terms.Timeline.EpochMS -= 24 * 60 * 60 * 1000
	})
	svc := r.services["default"]
	if got := svc.Layout(); got != snowflake.DefaultLayout() {
		t.Errorf("before: %v", got)
	}
	r.step()
	// Seeds 000-10.1-1 and 000-A.4-1.
	if got := svc.Layout(); got != (snowflake.Layout{BitTS: 41, BitID: 10, BitSeq: 12}) {
		t.Errorf("after: %v", got)
	}
	r.start()
	p := r.dial()
	id := p.id()
	got := p.table("Inspect", uint64(id))
	if at, _ := asInt(got["timestamp_ms"]); at != startMS || got["kind"] != "regular" {
		t.Errorf("%v", got)
	}
	// Long after the lease ran out and was replaced, the last one still tells.
	r.clock.Advance(time.Hour)
	r.line.Always(providertest.OpAcquire, providertest.Fail(errors.New("gone")))
	r.step()
	if got := svc.Layout(); got.BitSeq != 12 {
		t.Errorf("expired: %v", got)
	}
}

// Status and readiness in every mode, and that the daemon shows its worst.
func TestModes(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.early = true
		strict := settings()
		strict.Fallback = config.FallbackNone
		s.services["strict"] = strict
	}).start()
	p := r.dial()
	want := func(daemon, lenient, strict string, ready bool) {
		t.Helper()
		got := p.table("Status")
		services := got["services"].([]any)
		modes := [2]any{services[0].(map[string]any)["mode"], services[1].(map[string]any)["mode"]}
		if got["mode"] != daemon || modes != [2]any{lenient, strict} {
			t.Errorf("the daemon is %v, the services are %v, want %s, %s, %s", got["mode"], modes, daemon, lenient, strict)
		}
		if err := r.server.Ready(t.Context()); (err == nil) != ready {
			t.Errorf("ready: %v", err)
		}
	}
	want("starting", "starting", "starting", true)
	r.line.Always(providertest.OpAcquire, providertest.Fail(&provider.FullError{Pool: "x", Slots: 3, NextEndMS: startMS + 60_000}))
	r.step()
	want("unavailable", "fallback_random", "unavailable", false) // seeds 000-3.2-2 and 000-10.4-2
	if err := r.server.Ready(t.Context()); !strings.Contains(err.Error(), "service strict") || !strings.Contains(err.Error(), `pool "x"`) {
		t.Errorf("%v", err)
	}
	one := p.table("Status")["services"].([]any)[0].(map[string]any)
	if failures, _ := asInt(one["failures"]); failures != 1 || !strings.Contains(one["cause"].(string), "the next one is free at") {
		t.Errorf("%v", one)
	}
	r.line.Heal()
	r.clock.Advance(time.Minute)
	r.step()
	want("regular", "regular", "regular", true) // seed 000-5.4-1
	r.clock.Advance(provider.DefaultTerms().Term)
	r.line.Always(providertest.OpAcquire, providertest.Hang())
	want("unavailable", "fallback_cached", "unavailable", false)
	r.clock.Advance(provider.DefaultTerms().Quarantine)
	want("unavailable", "fallback_cached_uncertain", "unavailable", false)
}
