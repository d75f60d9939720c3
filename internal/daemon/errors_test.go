package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/provider/static"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/wire"
)

// wantDetail holds a detail of an error against a value.
func wantDetail(t *testing.T, err *wire.Error, key, want string) {
	t.Helper()
	if got, ok := err.Detail(key); !ok || got != want {
		t.Errorf("%s is %q, want %q, in: %v", key, got, want, err)
	}
}

// A call that goes astray has the same code for an actor as for a lock.
func TestStray(t *testing.T) {
	stray := fmt.Errorf("acquire: %w", &record.StrayError{Err: errors.New("404: a proxy")})
	for _, err := range []error{storeError{stray}, (&Placement{}).activationError(stray)} {
		if e := asWireError(err); e == nil || e.Code != CodeNoStore || !strings.Contains(e.Message, "a proxy") {
			t.Errorf("%v", e)
		}
	}
}

func TestClockBackward(t *testing.T) {
	for _, test := range []struct {
		limit    time.Duration
		backward time.Duration
		want     string // limit_ms; "" = no error
	}{
		{5 * time.Second, 7 * time.Second, "5000"},
		{5 * time.Second, 5 * time.Second, ""},
		{0, 1 * time.Millisecond, "0"},
		{time.Microsecond, time.Millisecond, ""}, // counts as a millisecond
		{-1, time.Hour, ""},
	} {
		r := newRig(t, func(s *setup) { s.change(func(c *config.Service) { c.MaxBackward = test.limit }) }).start()
		p := r.dial()
		p.id()
		r.clock.Jump(-test.backward)
		got := p.call("NextID", options{"timeout_ms": 0})
		if test.want == "" {
			if got.err != nil { // the rest of the last millisecond
				t.Errorf("%v back, %v allowed: %v", test.backward, test.limit, got.err)
			}
			continue
		}
		p.wantError(got, wire.CodeClockBackward)                                                   // seed 000-5.6-1
		wantDetail(t, got.err, "backward_ms", strconv.FormatInt(test.backward.Milliseconds(), 10)) // seed 000-9-1
		wantDetail(t, got.err, "limit_ms", test.want)
		if !strings.Contains(got.err.Message, "NTP slew") {
			t.Errorf("the text gives no advice: %v", got.err)
		}
		r.clock.Jump(test.backward)
		p.id() // all is well again
	}
}

func TestLeaseAcquisition(t *testing.T) {
	for _, fallback := range []config.Fallback{config.FallbackNone, config.FallbackCached, config.FallbackCachedRandom} {
		r := newRig(t, func(s *setup) {
			s.early = true
			s.change(func(c *config.Service) { c.Fallback = fallback })
		}).start()
		r.line.Always(providertest.OpAcquire, providertest.Fail(errors.New("connect: no route to host")))
		r.step()
		p := r.dial()
		opts := options{"regular_only": fallback == config.FallbackCachedRandom}
		got := p.fails(wire.CodeLeaseAcquisition, "NextID", opts)
		wantDetail(t, got, "cause", "connect: no route to host") // seed 000-9-2
		p.fails(wire.CodeLeaseAcquisition, "NextIDs", 3, opts)
		if fallback == config.FallbackCachedRandom {
			if id := p.id(); !timeline.IsFallback(id) {
				t.Errorf("%d is no fallback ID", id)
			}
		}
		r.line.Heal()
		r.clock.Advance(time.Minute)
		r.step()
		if id := p.id(opts); timeline.IsFallback(id) {
			t.Errorf("%d is a fallback ID though there is a lease", id)
		}
		// A lease that merely ran out, without a failed acquire.
		r.clock.Advance(time.Hour)
		got = p.fails(wire.CodeLeaseAcquisition, "NextID", options{"regular_only": true})
		wantDetail(t, got, "cause", "no lease is valid now")
	}
}

func TestNoProvider(t *testing.T) {
	r := newRig(t, func(s *setup) { s.provider = static.None{} }).start()
	p := r.dial()
	p.fails(wire.CodeNoProvider, "NextID", options{"regular_only": true}) // seed 000-9-3
	p.fails(wire.CodeNoProvider, "NextIDs", 2, options{"regular_only": true})
	if id := p.id(); !timeline.IsFallback(id) {
		t.Errorf("%d is no fallback ID", id)
	}
	r = newRig(t, func(s *setup) {
		s.provider = static.None{}
		s.change(func(c *config.Service) { c.Fallback = config.FallbackNone })
	}).start()
	r.dial().fails(wire.CodeNoProvider, "NextID")
	if r.server.Ready(t.Context()) == nil {
		t.Error("ready, though no ID can be made")
	}
}

func TestTimeouts(t *testing.T) {
	for _, test := range []struct {
		cause   string
		prepare func(*rig, *peer)
		early   bool
	}{
		{"sequence", func(_ *rig, p *peer) { p.ids(256) }, false},
		{"clock", func(r *rig, p *peer) { p.ids(256); r.clock.Jump(-3 * time.Second) }, false},
		{"lease", func(*rig, *peer) {}, true},
	} {
		r := newRig(t, func(s *setup) { s.early = test.early }).start()
		p := r.dial()
		test.prepare(r, p)
		got := p.fails(wire.CodeTimeout, "NextID", options{"timeout_ms": 0})
		wantDetail(t, got, "cause", test.cause)
		wantDetail(t, got, "waited_ms", "0")
		for _, method := range []string{"NextID", "NextIDs"} {
			params := []any{3, options{"timeout_ms": 5}}
			if method == "NextID" {
				params = params[1:]
			}
			got = p.fails(wire.CodeTimeout, method, params...)
			wantDetail(t, got, "cause", test.cause)
			text, _ := got.Detail("waited_ms")
			if waited, err := strconv.Atoi(text); err != nil || waited < 5 {
				t.Errorf("%s: waited_ms is %q", test.cause, text)
			}
		}
		p.alive()
	}
}

func TestTimestampOverflow(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.provider = static.None{}
		s.change(func(c *config.Service) {
			c.BitTS = 20 // a little more than 17 minutes
			c.DefaultEpoch = time.UnixMilli(startMS).Add(-10 * time.Minute)
		})
	}).start()
	p := r.dial()
	p.id()
	r.clock.Advance(10 * time.Minute)
	p.fails(wire.CodeTimestampOverflow, "NextID")
	p.fails(wire.CodeTimestampOverflow, "NextIDs", 5)
	p.alive()
	if got := p.table("Status")["mode"]; got != "unavailable" {
		t.Errorf("mode %v", got)
	}
}

// Bytes that are no message: one answer with msgid 0, then the end. What came
// before is answered first.
func TestParseErrors(t *testing.T) {
	r := newRig(t, func(s *setup) { s.patience.refuse = hang }).start()
	for name, bad := range map[string][]byte{
		"HTTP":                       []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"a lone integer":             pack(1),
		"a map":                      pack(options{"a": 1}),
		"a byte that is never used":  {0x94, 0xc1},
		"an empty array":             pack([]any{}),
		"two elements":               pack([]any{0, 1}),
		"five elements":              pack([]any{0, 1, "Ping", []any{}, 1}),
		"a notification of four":     pack([]any{2, 1, "Ping", []any{}}),
		"an unknown type":            pack([]any{3, 1, "Ping", []any{}}),
		"a type that is a string":    pack([]any{"0", 1, "Ping", []any{}}),
		"a negative msgid":           pack([]any{0, -1, "Ping", []any{}}),
		"a msgid of 33 bits":         pack([]any{0, 1 << 32, "Ping", []any{}}),
		"a msgid that is no integer": pack([]any{0, "1", "Ping", []any{}}),
		"a method that is no string": pack([]any{0, 1, 7, []any{}}),
		"nesting":                    append(bytes.Repeat([]byte{0x91}, 100), 0xc0),
		"an announced size":          {0x94, 0x00, 0x01, 0xdb, 0xff, 0xff, 0xff, 0xff},
		"announced elements":         {0x94, 0x00, 0x01, 0xa4, 'P', 'i', 'n', 'g', 0xdd, 0x7f, 0xff, 0xff, 0xff},
		"more than 256 KiB":          request(1, "Ping", []any{string(make([]byte, wire.MaxMessage))}),
	} {
		p := r.dial()
		p.send(request(5, "Ping", []any{}))
		_, _ = p.Write(bad) // of much too large a one the daemon may not hear the end
		if got := p.receive(); got.id != 5 || got.err != nil {
			t.Errorf("%s: the request before it: %+v", name, got)
		}
		got := p.receive()
		p.wantError(got, wire.CodeParseError)
		if got.id != 0 {
			t.Errorf("%s: msgid %d", name, got.id)
		}
		// The daemon hears out bytes that are still on their way, so that the close is no reset,
		// which could overtake the answer.
		if _, err := p.Write([]byte("more")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = p.CloseWrite()
		p.ends()
	}
	r.dial().alive()
	// The largest message there may be is one.
	p := r.dial()
	p.send(request(1, string(make([]byte, wire.MaxMessage-len(request(1, "", []any{}))-4)), []any{}))
	p.wantError(p.receive(), wire.CodeUnknownMethod)
	p.alive()
}

// The error table's kinds, and that no failure is logged as a mistake of the
// daemon.
func TestNothingIsInternal(t *testing.T) {
	r := newRig(t).start()
	p := r.dial()
	p.fails(wire.CodeInvalidParams, "NextIDs", 0)
	p.ids(256)
	p.fails(wire.CodeTimeout, "NextID", options{"timeout_ms": 0})
	if n := r.logs.FilterLevelExact(zapcore.ErrorLevel).Len(); n != 0 {
		t.Errorf("%d errors logged: %v", n, r.logs.All())
	}
	if got := r.server.wireError(errors.New("what nobody expects")); got.Code != codeInternal || got.Kind != wire.Failed {
		t.Errorf("%v", got)
	}
	if n := r.logs.FilterLevelExact(zapcore.ErrorLevel).Len(); n != 1 {
		t.Errorf("%d errors logged", n)
	}
}

// Refusals by the limits of other parts are counted by the names of these.
func TestOtherLimitsAreCounted(t *testing.T) {
	testRefusals(t, wire.CodeOverloaded, map[string]error{
		refusals.Activations: &driver.OverloadedError{Limit: driver.MaxWaiting},
		refusals.Watches:     &driver.OverloadedError{Limit: driver.MaxSubscribers, Watches: true},
		refusals.Holds:       lock.ErrOverloaded,
		refusals.StoreCalls:  storeError{fmt.Errorf("%w: context deadline exceeded", record.ErrCrowded)},
		refusals.Kinds:       errTooManyKinds,
	})
}

// A store without room has a code of its own.
func TestFullStoresAreCounted(t *testing.T) {
	keys := storeError{&record.FullError{Setting: record.SettingKeys, Limit: 5, Payer: "UID 1"}}
	testRefusals(t, wire.CodeStoreFull, map[string]error{record.SettingKeys: keys, refusals.Disk: &record.FullError{}})
	got := asWireError(keys)
	setting, _ := got.Detail("setting")
	if limit, _ := got.Detail("limit"); setting != "max_keys" || limit != "5" || !strings.Contains(got.Message, "UID 1") {
		t.Errorf("the answer is %v", got)
	}
}

func testRefusals(t *testing.T, code wire.Code, refusals map[string]error) {
	for name, err := range refusals {
		r := newRig(t)
		r.with("Refused", func(*Server, context.Context, *responder) error { return fmt.Errorf("for a test: %w", err) })
		r.start()
		r.dial().fails(code, "Refused")
		if got := r.server.Status().Overload; len(got) != 1 || got[0].Limit != name || got[0].Refused != 1 {
			t.Errorf("%s: counted are %+v", name, got)
		}
		if got := codeOf(err); got != string(code) {
			t.Errorf("%s: the trace has %s", name, got)
		}
	}
}
