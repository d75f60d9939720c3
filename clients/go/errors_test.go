package kazahana

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/wire"
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
		"SEQUENCE_FENCED: wait until_ms=0": func(err error) bool {
			var e *FencedError
			return errors.As(err, &e) && e.Until.IsZero()
		},
		"SEQUENCE_EXHAUSTED: no more max_value=9999 left=3": func(err error) bool {
			var e *SequenceExhaustedError
			return errors.As(err, &e) && e.MaxValue == 9999 && e.Left == 3
		},
		"PLACEMENT_NOT_READY: off state=off": func(err error) bool {
			var e *PlacementNotReadyError
			return errors.As(err, &e) && e.State == "off"
		},
		`PLACEMENT_PENDING: wait cause="another member still owns it"`: func(err error) bool {
			var e *PlacementPendingError
			return errors.As(err, &e) && e.Cause == "another member still owns it"
		},
		"ACTIVATION_FAILED: failed cause=full": func(err error) bool {
			var e *ActivationFailedError
			return errors.As(err, &e) && e.Cause == "full"
		},
		"ACTIVATION_ENDED: over": func(err error) bool { return errors.Is(err, ErrActivationEnded) },
		"NO_PROVIDER: none":      func(err error) bool { return errors.Is(err, ErrNoProvider) },
		"NEW_CODE: new a=1":      func(err error) bool { return errors.Is(err, Code("NEW_CODE")) },
		"no text of a daemon":    func(err error) bool { return errors.Is(err, ErrProtocol) },
	} {
		w := wire.ParseErrorText(wire.Failed, text)
		err := fromWire(w)
		var e *Error
		if !errors.As(err, &e) || !check(err) || !check(errors.Join(errors.New("x"), err)) {
			t.Errorf("%s became %T: %v", text, err, err)
		}
		if w.Code != "" && !errors.Is(err, Code(w.Code)) {
			t.Errorf("%s is not its code", text)
		}
		if errors.Is(err, ErrUnknownService) {
			t.Errorf("%s is every code", text)
		}
		if w.Code != "" && !strings.Contains(err.Error(), string(w.Code)+": "+w.Message) {
			t.Errorf("%s reads %q", text, err)
		}
	}
}

// codes are those that the daemon may give.
var codes = []Code{
	ErrClockBackward, ErrLeaseAcquisition, ErrNoProvider, ErrTimeout, ErrTimestampOverflow, ErrUnknownService, ErrUnknownMethod, ErrInvalidParams,
	ErrInvalidExternalID, ErrPermissionDenied, ErrOverloaded, ErrShuttingDown, ErrRequestIDReused, ErrNoStore, ErrStoreUnavailable, ErrLockHeld,
	ErrLockNotOwned, ErrLockExpired, ErrLockNotFound, ErrLockFenced, ErrSequenceExhausted, ErrSequenceFenced, ErrPlacementNotReady,
	ErrPlacementPending, ErrPlacementUnserved, ErrActivationFailed, ErrActivationEnded,
}

// Every code of the wire has a name here.
func TestCodesAreComplete(t *testing.T) {
	for _, c := range []wire.Code{
		wire.CodeClockBackward, wire.CodeLeaseAcquisition, wire.CodeNoProvider, wire.CodeTimeout, wire.CodeTimestampOverflow,
		wire.CodeUnknownService, wire.CodeUnknownMethod, wire.CodeInvalidParams, wire.CodeInvalidExternalID, wire.CodePermissionDenied,
		wire.CodeOverloaded, wire.CodeShuttingDown, wire.CodeRequestIDReused, wire.CodeStoreUnavailable, wire.CodeLockHeld,
		wire.CodeLockNotOwned, wire.CodeLockExpired, wire.CodeLockNotFound, wire.CodeLockFenced, wire.CodeSequenceExhausted, wire.CodeSequenceFenced,
		wire.CodePlacementNotReady, wire.CodePlacementPending, wire.CodePlacementUnserved, wire.CodeActivationFailed, wire.CodeActivationEnded,
	} {
		if !slices.Contains(codes, Code(c)) {
			t.Errorf("%s has no name", c)
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
