package issuer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit/must"
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
			"service orders: the epoch (default_epoch, or epoch in services) and bit_ts were 2026-01-01T00:00:00.000Z and 41"},
		{"changed, time has run out", state.Saved{Timeline: used, Source: state.SourceConfig}, startMS, short, used, state.SourceConfig,
			"with 2026-01-01T00:00:00.000Z and 32 time runs out at 2026-02-19"},
		{"set by a lease", state.Saved{Timeline: used, Source: state.SourceLease}, startMS, later, used, state.SourceLease, ""},
		{"set by a lease, no IDs", state.Saved{Timeline: used, Source: state.SourceLease}, 0, other, used, state.SourceLease, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			st, err := state.Ephemeral(state.Options{}).Service("orders")
			must.Succeed(t, err)
			must.Succeed(t, st.Save(test.saved))
			if test.mark > 0 {
				st.RaiseMark(test.mark)
			}
			got, err := settleTimeline("orders", config.Service{DefaultEpoch: time.UnixMilli(test.wanted.EpochMS), BitTS: test.wanted.BitTS}, st)
			if test.err != "" { // seed 000-5.2-1
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
	must.Succeed(t, err)
	must.Succeed(t, closed.Close())
	if _, err := settleTimeline("orders", settings(), st); !errors.Is(err, state.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestLoadCodec(t *testing.T) {
	dir := t.TempDir()
	want := func(secret string) string {
		codec, err := snowflake.NewCodec([]byte(secret), "orders")
		must.Succeed(t, err)
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
		must.Succeed(t, os.WriteFile(path, []byte(test.content), 0o600))
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

func TestLayoutFor(t *testing.T) {
	for bitTS, want := range map[int]snowflake.Layout{
		41: {BitTS: 41, BitID: 14, BitSeq: 8}, 54: {BitTS: 54, BitID: 1, BitSeq: 8}, 60: {BitTS: 60, BitID: 1, BitSeq: 2},
		62: {BitTS: 62, BitID: 1, BitSeq: 0}, 32: {BitTS: 32, BitID: 23, BitSeq: 8},
	} {
		if got := layoutFor(bitTS); got != want || got.Validate() != nil {
			t.Errorf("bit_ts %d: %v, want %v", bitTS, got, want)
		}
	}
}
