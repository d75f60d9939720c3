package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/provider/static"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

func TestSettleTimeline(t *testing.T) {
	used, other := snowflake.DefaultTimeline(), snowflake.Timeline{EpochMS: 1_577_836_800_000, BitTS: 42} // 2020
	earlier := snowflake.Timeline{EpochMS: other.EpochMS, BitTS: used.BitTS}
	later := snowflake.Timeline{EpochMS: startMS - 1000, BitTS: used.BitTS}
	short := snowflake.Timeline{EpochMS: used.EpochMS, BitTS: 32} // runs out after 50 days
	for _, test := range []struct {
		name   string
		saved  state.Saved
		mark   int64
		wanted snowflake.Timeline
		want   snowflake.Timeline
		source state.TimelineSource // afterwards
		err    string
	}{
		{"fresh", state.Saved{}, 0, used, used, state.SourceConfig, ""},
		{"fresh, unusual", state.Saved{}, 0, other, other, state.SourceConfig, ""},
		{"unchanged", state.Saved{Timeline: used, Source: state.SourceConfig}, startMS, used, used, state.SourceConfig, ""},
		{"changed, no IDs", state.Saved{Timeline: used, Source: state.SourceConfig}, 0, later, later, state.SourceConfig, ""},
		{"changed, IDs ascend", state.Saved{Timeline: used, Source: state.SourceConfig}, startMS, earlier, earlier, state.SourceConfig, ""},
		{"changed, IDs would descend", state.Saved{Timeline: used, Source: state.SourceConfig}, startMS, later, used, state.SourceConfig,
			"service orders: default_epoch and bit_ts were 2026-01-01T00:00:00.000Z and 41"},
		{"changed, time has run out", state.Saved{Timeline: used, Source: state.SourceConfig}, startMS, short, used, state.SourceConfig,
			"with 2026-01-01T00:00:00.000Z and 32 time runs out at 2026-02-19"},
		{"set by a lease", state.Saved{Timeline: used, Source: state.SourceLease}, startMS, later, used, state.SourceLease, ""},
		{"set by a lease, no IDs", state.Saved{Timeline: used, Source: state.SourceLease}, 0, other, used, state.SourceLease, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			st, err := state.Ephemeral(state.Options{}).Service("orders")
			if err != nil {
				t.Fatal(err)
			}
			if err := st.Save(test.saved); err != nil {
				t.Fatal(err)
			}
			if test.mark > 0 {
				st.RaiseMark(test.mark)
			}
			got, err := settleTimeline("orders", config.Service{DefaultEpoch: time.UnixMilli(test.wanted.EpochMS), BitTS: test.wanted.BitTS}, st)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || !strings.Contains(err.Error(), "another name") {
					t.Errorf("error %v", err)
				}
			} else if err != nil || got != test.want {
				t.Errorf("%+v, %v, want %+v", got, err, test.want)
			}
			if saved := st.Load(); saved.Source != test.source || saved.Timeline != test.want {
				t.Errorf("saved: %+v of %q", saved.Timeline, saved.Source)
			}
		})
	}
}

// A state that cannot be written is an error, not a service on sand.
func TestSettleTimelineWithoutState(t *testing.T) {
	closed := state.Ephemeral(state.Options{})
	st, err := closed.Service("orders")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := settleTimeline("orders", settings(), st); !errors.Is(err, state.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestLoadCodec(t *testing.T) {
	dir := t.TempDir()
	want := func(secret string) string {
		codec, err := snowflake.NewCodec([]byte(secret), "orders")
		if err != nil {
			t.Fatal(err)
		}
		return codec.Encode(42)
	}
	for name, test := range map[string]struct{ content, want, err string }{
		"plain":              {"secret", want("secret"), ""},
		"newline":            {"secret\n", want("secret"), ""},
		"two newlines":       {"secret\n\n", want("secret\n"), ""},
		"carriage return":    {"secret\r\n", want("secret\r"), ""},
		"spaces":             {" secret ", want(" secret "), ""},
		"newline first":      {"\nsecret", want("\nsecret"), ""},
		"binary":             {"\x00\xff", want("\x00\xff"), ""},
		"empty":              {"", "", "is empty"},
		"nothing but a line": {"\n", "", "is empty"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		codec, err := LoadCodec(path, "orders")
		switch {
		case test.err != "":
			if err == nil || !strings.Contains(err.Error(), test.err) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: error %v", name, err)
			}
		case err != nil || codec.Encode(42) != test.want:
			t.Errorf("%s: %s, %v", name, codec.Encode(42), err)
		}
	}
	if codec, err := LoadCodec("", "orders"); err != nil || codec != (snowflake.Codec{}) {
		t.Errorf("without a file: %v, %v", codec, err)
	}
	for _, path := range []string{filepath.Join(dir, "missing"), dir} {
		if _, err := LoadCodec(path, "orders"); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A service that starts on the state of an earlier life goes on above it,
// though its clock was set back, and gives back what it holds when it closes.
func TestLivesOfAService(t *testing.T) {
	dir := t.TempDir()
	var last snowflake.ID
	for life := range 3 {
		stored, err := state.Open(context.Background(), dir, state.Options{})
		if err != nil {
			t.Fatal(err)
		}
		st, err := stored.Service("default")
		if err != nil {
			t.Fatal(err)
		}
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
		if err := stored.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The layout that Inspect uses is that of the leases, once there are any.
func TestLayoutFollowsTheLease(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.early = true
		s.terms.BitID, s.terms.BitSeq = 10, 12
		s.terms.Timeline.EpochMS -= 24 * 60 * 60 * 1000
	})
	svc := r.services["default"]
	if got := svc.layout(); got != snowflake.DefaultLayout() {
		t.Errorf("before: %v", got)
	}
	r.step()
	if got := svc.layout(); got != (snowflake.Layout{BitTS: 41, BitID: 10, BitSeq: 12}) {
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
	if got := svc.layout(); got.BitSeq != 12 {
		t.Errorf("expired: %v", got)
	}
}

func TestLayoutFor(t *testing.T) {
	for bitTS, want := range map[int]snowflake.Layout{
		41: {BitTS: 41, BitID: 14, BitSeq: 8}, 54: {BitTS: 54, BitID: 1, BitSeq: 8}, 60: {BitTS: 60, BitID: 1, BitSeq: 2},
		62: {BitTS: 62, BitID: 1, BitSeq: 0}, 32: {BitTS: 32, BitID: 23, BitSeq: 8},
	} {
		if got := LayoutFor(bitTS); got != want || got.Validate() != nil {
			t.Errorf("bit_ts %d: %v, want %v", bitTS, got, want)
		}
	}
}

// Status and readiness in every mode, and that the daemon shows its worst.
func TestModes(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.early = true
		s.services["strict"] = settings()
		one := s.services["strict"]
		one.Fallback = config.FallbackNone
		s.services["strict"] = one
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
	want("unavailable", "fallback_random", "unavailable", false)
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
	want("regular", "regular", "regular", true)
	r.clock.Advance(provider.DefaultTerms().Term)
	r.line.Always(providertest.OpAcquire, providertest.Hang())
	want("unavailable", "fallback_cached", "unavailable", false)
	r.clock.Advance(provider.DefaultTerms().Quarantine)
	want("unavailable", "fallback_cached_uncertain", "unavailable", false)
}

// Run supplies the service by itself, and ends with its context.
func TestServiceRun(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.early = true
		s.services["none"] = settings()
	}).start()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, svc := range r.services {
		all.Go(func() {
			if err := svc.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	p := r.dial()
	if id := p.id(); timeline.IsFallback(id) { // waits for the first lease
		t.Errorf("%d is a fallback ID", id)
	}
	cancel()
	all.Wait()
	standalone := newRig(t, func(s *setup) { s.provider = static.None{} })
	if err := standalone.services["default"].Run(ctx); err != nil {
		t.Error(err)
	}
}
