package issuer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Each way into other IDs than regular ones, and out of it, is one line.
func TestModeWatch(t *testing.T) {
	outage := errors.New("connection refused")
	refusal := &generator.LeaseAcquisitionError{Cause: outage}
	behind := func(ms int64, earlier bool) error {
		return &generator.ClockBackwardError{BackwardMS: ms, LimitMS: 5000, Earlier: earlier}
	}
	type look struct {
		mode  generator.Mode
		cause error
		level zapcore.Level
		want  string // "" = nothing is said
	}
	for name, looks := range map[string][]look{
		"a healthy start": {{generator.ModeStarting, nil, 0, ""}, {generator.ModeRegular, nil, 0, ""}, {generator.ModeRegular, nil, 0, ""}},
		"an outage": {
			{generator.ModeRegular, nil, 0, ""},
			{generator.ModeRegular, outage, 0, ""},
			{generator.ModeFallbackCached, outage, zap.WarnLevel, "IDs are fallback IDs"},
			{generator.ModeFallbackCached, outage, 0, ""},
			{generator.ModeFallbackUncertain, outage, zap.ErrorLevel, "no longer certain"},
			{generator.ModeFallbackUncertain, outage, 0, ""},
			{generator.ModeRegular, nil, zap.InfoLevel, "IDs are regular again"},
		},
		"no fallback": {
			{generator.ModeUnavailable, refusal, zap.ErrorLevel, "no IDs until a lease is granted"},
			{generator.ModeUnavailable, refusal, 0, ""},
			{generator.ModeRegular, nil, zap.InfoLevel, "IDs are regular again"},
		},
		"behind the mark": {
			{generator.ModeUnavailable, behind(25_000, true), zap.ErrorLevel, "no IDs until the clock has caught up"},
			{generator.ModeUnavailable, behind(24_000, true), 0, ""},
			{generator.ModeRegular, nil, zap.InfoLevel, "IDs are regular again"},
		},
		"backward clock": {
			{generator.ModeRegular, nil, 0, ""},
			{generator.ModeUnavailable, behind(9000, false), zap.ErrorLevel, "no IDs until the clock has caught up"},
			{generator.ModeUnavailable, refusal, zap.ErrorLevel, "no IDs until a lease is granted"},
		},
		"end of time": {{generator.ModeUnavailable, generator.ErrOverflow, zap.ErrorLevel, "layout's time is used up"}},
		"a stop":      {{generator.ModeRegular, nil, 0, ""}, {generator.ModeUnavailable, generator.ErrStopped, 0, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.DebugLevel)
			w := &modeWatch{log: zap.New(core)}
			for i, l := range looks {
				w.mode(l.mode, l.cause, 4*time.Second)
				said := logs.TakeAll()
				switch {
				case l.want == "" && len(said) > 0:
					t.Errorf("look %d: %v", i, said)
				case l.want != "" && (len(said) != 1 || said[0].Level != l.level || !strings.Contains(said[0].Message, l.want)):
					t.Errorf("look %d: %v, want %q", i, said, l.want)
				case l.want == "" || l.mode != generator.ModeUnavailable || errors.Is(l.cause, generator.ErrOverflow):
				case said[0].ContextMap()["remaining"] == nil && said[0].ContextMap()["retry_in"] == nil:
					t.Errorf("look %d does not say how long: %v", i, said[0].ContextMap())
				}
			}
		})
	}
}

// The first start says the provider's layout, and not the default before it.
func TestFirstStartSaysTheProvidersLayout(t *testing.T) {
	terms := provider.DefaultTerms()
	terms.Timeline.EpochMS -= 24 * 60 * 60 * 1000
	svc := newService(t, terms, nil)
	core, logs := observer.New(zap.DebugLevel)
	w := &modeWatch{log: zap.New(core)}
	svc.look(w)
	svc.Step(t.Context())
	svc.look(w)
	svc.look(w)
	said := logs.FilterMessage("layout in use").All()
	if len(said) != 1 || said[0].ContextMap()["epoch"] != "2025-12-31T00:00:00.000Z" {
		t.Errorf("%v", said)
	}
}

// A mark far ahead names the command that ends it in the log.
func TestMarkFarAheadIsLogged(t *testing.T) {
	st, err := state.Ephemeral(state.Options{}).Service("default")
	must.Succeed(t, err)
	st.RaiseMark(startMS + 30*24*time.Hour.Milliseconds())
	svc := newService(t, provider.DefaultTerms(), st)
	svc.Step(t.Context())
	core, logs := observer.New(zap.DebugLevel)
	svc.look(&modeWatch{log: zap.New(core)})
	said := logs.FilterMessageSnippet("no IDs until the clock has caught up").All()
	if len(said) != 1 || !strings.Contains(said[0].ContextMap()["error"].(string), "state reset-floor") {
		t.Errorf("%v", said)
	}
}
