package leaseapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

const now = 1_795_000_000_000

// Every error by which a caller decides arrives as it was sent.
func TestErrorsTravel(t *testing.T) {
	for _, test := range []struct {
		err    error
		is     error // nil: it arrives with its fields
		code   problem.Code
		status int
		after  string // Retry-After
	}{
		{&provider.FullError{Pool: "orders", Slots: 8192, NextEndMS: now + 4200}, nil, problem.NoMachineID, 503, "5"},
		{&provider.FullError{Pool: "orders", Slots: 8192, NextEndMS: now - 5}, nil, problem.NoMachineID, 503, "1"},
		{&provider.FullError{Pool: "orders", Slots: 1}, nil, problem.NoMachineID, 503, "1"},
		{&provider.FencedError{UntilMS: now + 600_000, Reason: "restarted"}, nil, problem.Fenced, 503, "60"},
		{&provider.BusyError{RetryAfter: 2500 * time.Millisecond, Reason: "loading"}, nil, problem.Busy, 503, "3"},
		{provider.ErrConflict, provider.ErrConflict, problem.Conflict, 409, ""},
		{provider.ErrNotFound, provider.ErrNotFound, problem.LeaseNotFound, 404, ""},
		{provider.ErrBadSignature, provider.ErrBadSignature, problem.BadSignature, 403, ""},
		{provider.ErrTimestampSkew, provider.ErrTimestampSkew, problem.TimestampSkew, 403, ""},
		{fmt.Errorf("%w: meta has more than 64 keys", provider.ErrInvalid), provider.ErrInvalid, problem.InvalidRequest, 400, ""},
		{fmt.Errorf("it keeps no records: %w", errors.ErrUnsupported), errors.ErrUnsupported, problem.NotSupported, 501, ""},
	} {
		for _, sent := range []error{test.err, fmt.Errorf("wrapped: %w", test.err)} {
			p := leaseapi.FromError(sent, now)
			if p.Code != test.code || p.Status != test.status || p.RetryAfter() != test.after {
				t.Errorf("%v: %s, status %d, Retry-After %q, want %s, %d, %q", sent, p.Code, p.Status, p.RetryAfter(), test.code, test.status, test.after)
			}
			b, err := json.Marshal(p)
			must.Succeed(t, err)
			var arrived problem.Problem
			must.Succeed(t, json.Unmarshal(b, &arrived))
			got := leaseapi.ToError(&arrived)
			if test.is != nil && !errors.Is(got, test.is) || test.is == nil && !reflect.DeepEqual(got, test.err) {
				t.Errorf("%v arrived as %#v", sent, got)
			}
		}
	}
}

// What says nothing to a client tells it nothing: it may name files and hosts.
func TestUnavailableTellsNothing(t *testing.T) {
	p := leaseapi.FromError(errors.New("dial redis.internal:6379: refused"), now)
	if p.Code != problem.Unavailable || p.Status != 503 || p.RetryAfter() == "" || strings.Contains(p.Detail, "redis") {
		t.Errorf("%+v", p)
	}
	if got := leaseapi.ToError(p); !errors.As(got, new(*problem.Problem)) {
		t.Errorf("%#v", got)
	}
}

// A refusal before anything was done is settled, and comes with the time to come back.
func TestRefusalsAreBusy(t *testing.T) {
	for _, code := range []problem.Code{problem.RateLimited, problem.Overloaded} {
		err := leaseapi.ToError(problem.New(code, "slowly").After(90 * time.Second))
		if busy, ok := errors.AsType[*provider.BusyError](err); !ok || busy.RetryAfter != 90*time.Second || busy.Reason != "slowly" {
			t.Errorf("%s: %#v", code, err)
		}
	}
	for _, code := range []problem.Code{problem.TooLarge, problem.UnsupportedMedia} {
		if err := leaseapi.ToError(problem.New(code, "no")); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%s: %v", code, err)
		}
	}
	// A server that does not have the path cannot, at any later request.
	for _, code := range []problem.Code{problem.NotSupported, problem.NotFound, problem.MethodNotAllowed} {
		if err := leaseapi.ToError(problem.New(code, "no")); !errors.Is(err, errors.ErrUnsupported) || !strings.HasPrefix(err.Error(), "no") {
			t.Errorf("%s: %v", code, err)
		}
	}
	for _, code := range []problem.Code{problem.Unauthenticated, problem.Forbidden} {
		if err := leaseapi.ToError(problem.New(code, "no")); !errors.As(err, new(*problem.Problem)) {
			t.Errorf("%s: %v", code, err)
		}
	}
}
