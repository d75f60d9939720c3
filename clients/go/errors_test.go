//go:build go1.25

package kazahana

import (
	"context"
	"errors"
	"maps"
	"net"
	"strings"
	"testing"
	"time"
)

// Each code of the wire comes as the type that belongs to it, with its facts.
func TestErrorTypes(t *testing.T) {
	for text, check := range map[string]func(error) bool{
		"CLOCK_BACKWARD: the clock is behind backward_ms=7000 limit_ms=5000": func(err error) bool {
			var e *ClockBackwardError
			return errors.As(err, &e) && e.Backward == 7*time.Second && e.Limit == 5*time.Second
		},
		`LEASE_ACQUISITION: no valid lease cause="the provider is away"`: func(err error) bool {
			var e *LeaseAcquisitionError
			return errors.As(err, &e) && e.Cause == "the provider is away"
		},
		"TIMEOUT: no ID in time waited_ms=100 cause=lease": func(err error) bool {
			var e *RequestTimeoutError
			var n net.Error
			_ = errors.As(err, &n)
			return errors.As(err, &e) && e.Waited == 100*time.Millisecond && e.Cause == "lease" && e.Timeout() && errors.Is(err, context.DeadlineExceeded)
		},
		"LOCK_HELD: held retry_after_ms=1200 owner=a/1001": func(err error) bool {
			var e *LockHeldError
			return errors.As(err, &e) && e.RetryAfter == 1200*time.Millisecond && e.Owner == "a/1001"
		},
		"LOCK_FENCED: wait until_ms=1795209600000": func(err error) bool {
			var e *FencedError
			return errors.As(err, &e) && e.Until.UnixMilli() == 1795209600000
		},
		"STORE_FULL: let keys end setting=max_keys limit=750000": func(err error) bool {
			var e *Error
			return errors.As(err, &e) && errors.Is(err, ErrStoreFull) && e.Details["setting"] == "max_keys" && e.Details["limit"] == "750000"
		},
		"SEQUENCE_FENCED: wait until_ms=0": func(err error) bool {
			var e *FencedError
			return errors.As(err, &e) && e.Until.IsZero()
		},
		"SEQUENCE_EXHAUSTED: no more max_value=9999 left=3": func(err error) bool {
			var e *SequenceExhaustedError
			return errors.As(err, &e) && e.MaxValue == 9999 && e.Left == 3
		},
		"NO_PROVIDER: none":   func(err error) bool { return errors.Is(err, ErrNoProvider) },
		"NEW_CODE: new a=1":   func(err error) bool { return errors.Is(err, Code("NEW_CODE")) },
		"no text of a daemon": func(err error) bool { return errors.Is(err, ErrProtocol) },
	} {
		err := ParseError(text)
		var e *Error
		if !errors.As(err, &e) || !check(err) || !check(errors.Join(errors.New("x"), err)) {
			t.Errorf("%s became %T: %v", text, err, err)
		}
		code, message, coded := strings.Cut(text, ": ")
		if coded && !errors.Is(err, Code(code)) {
			t.Errorf("%s is not its code", text)
		}
		if errors.Is(err, ErrUnknownService) {
			t.Errorf("%s is every code", text)
		}
		if first, _, _ := strings.Cut(message, " "); !strings.Contains(err.Error(), code+": "+first) && coded {
			t.Errorf("%s reads %q", text, err)
		}
	}
}

// A daemon without a provider: its errors, as they come.
func TestErrorsOfADaemon(t *testing.T) {
	c := newDaemon(t, "--provider", "none:").client()
	if _, err := c.NextID(t.Context(), RegularOnly()); !errors.Is(err, ErrNoProvider) {
		t.Error(err)
	}
	if id, err := c.NextID(t.Context()); err != nil {
		t.Error(err)
	} else if fallback, err := c.IsFallback(t.Context(), id); err != nil || !fallback {
		t.Error(fallback, err)
	}
	if _, err := c.NextID(t.Context(), ForService("nobody")); !errors.Is(err, ErrUnknownService) {
		t.Error(err)
	}
	if _, err := c.NextIDs(t.Context(), MaxBatch+1); !errors.Is(err, ErrInvalidParams) {
		t.Error(err)
	}
	if err := c.Call(t.Context(), "NoSuchMethod", nil); !errors.Is(err, ErrUnknownMethod) {
		t.Error(err)
	}
	if texts, err := c.NextExternalIDs(t.Context(), 3); err != nil || len(texts) != 3 || len(texts[2]) != 11 {
		t.Error(texts, err)
	}
	for _, uuid := range []func(context.Context) (string, error){c.UUID, c.UUIDv4} {
		if text, err := uuid(t.Context()); err != nil || len(text) != 36 {
			t.Error(text, err)
		}
	}
	st, err := c.Status(t.Context())
	if err != nil || st.Version == "" || st.PID == 0 || st.Scope == "" || len(st.Services) != 1 || st.Services[0].BitTS != 41 {
		t.Errorf("%+v, %v", st, err)
	}
}

// The client takes the code, the message and the details from an error's text. The text
// may come from another program than the daemon.
func TestErrorTexts(t *testing.T) {
	for text, want := range map[string]Error{
		"":                            {Code: ErrProtocol},
		"E492: Not an editor command": {Code: "E492", Message: "Not an editor command"},
		"Invalid method: foo":         {Code: ErrProtocol, Message: "Invalid method: foo"},
		"FOO:bar":                     {Code: ErrProtocol, Message: "FOO:bar"},
		"FOO:":                        {Code: "FOO"},
		"FOO: a=1 then b=2":           {Code: "FOO", Message: "a=1 then", Details: map[string]string{"b": "2"}},
		"FOO: x a=1 B=2":              {Code: "FOO", Message: "x a=1 B=2"},
		"FOO: x a= b=2":               {Code: "FOO", Message: "x a=", Details: map[string]string{"b": "2"}},
		`FOO: x a="1" b="2`:           {Code: "FOO", Message: `x a="1" b="2`},
		`FOO: x a="1"2 b=3`:           {Code: "FOO", Message: `x a="1"2`, Details: map[string]string{"b": "3"}},
		"FOO: x a=b=c":                {Code: "FOO", Message: "x", Details: map[string]string{"a": "b=c"}},
		"FOO: x a=1 a=2":              {Code: "FOO", Message: "x", Details: map[string]string{"a": "1"}},
		`FOO: cause="q\" =\n"`:        {Code: "FOO", Details: map[string]string{"cause": "q\" =\n"}},
	} {
		var got *Error
		if !errors.As(ParseError(text), &got) || got.Code != want.Code || got.Message != want.Message || !maps.Equal(got.Details, want.Details) {
			t.Errorf("%q: %#v", text, got)
		}
	}
}
