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
	"github.com/kazahana/kazahana/internal/provider"
)

const now = 1_795_000_000_000

// Every error by which a caller decides arrives as it was sent.
func TestErrorsTravel(t *testing.T) {
	for _, test := range []struct {
		err    error
		is     error // nil: it arrives with its fields
		code   leaseapi.Code
		status int
		after  string // Retry-After
	}{
		{&provider.FullError{Pool: "orders", Slots: 8192, NextEndMS: now + 4200}, nil, leaseapi.CodeNoMachineID, 503, "5"},
		{&provider.FullError{Pool: "orders", Slots: 8192, NextEndMS: now - 5}, nil, leaseapi.CodeNoMachineID, 503, "1"},
		{&provider.FullError{Pool: "orders", Slots: 1}, nil, leaseapi.CodeNoMachineID, 503, "1"},
		{&provider.FencedError{UntilMS: now + 600_000, Reason: "restarted"}, nil, leaseapi.CodeFenced, 503, "60"},
		{&provider.BusyError{RetryAfter: 2500 * time.Millisecond, Reason: "loading"}, nil, leaseapi.CodeBusy, 503, "3"},
		{provider.ErrConflict, provider.ErrConflict, leaseapi.CodeConflict, 409, ""},
		{provider.ErrNotFound, provider.ErrNotFound, leaseapi.CodeLeaseNotFound, 404, ""},
		{provider.ErrBadSignature, provider.ErrBadSignature, leaseapi.CodeBadSignature, 403, ""},
		{provider.ErrTimestampSkew, provider.ErrTimestampSkew, leaseapi.CodeTimestampSkew, 403, ""},
		{fmt.Errorf("%w: meta has more than 64 keys", provider.ErrInvalid), provider.ErrInvalid, leaseapi.CodeInvalidRequest, 400, ""},
		{fmt.Errorf("it keeps no records: %w", errors.ErrUnsupported), errors.ErrUnsupported, leaseapi.CodeNotSupported, 501, ""},
	} {
		for _, sent := range []error{test.err, fmt.Errorf("wrapped: %w", test.err)} {
			p := leaseapi.FromError(sent, now)
			if p.Code != test.code || p.Status != test.status || p.RetryAfter() != test.after {
				t.Errorf("%v: %s, status %d, Retry-After %q, want %s, %d, %q", sent, p.Code, p.Status, p.RetryAfter(), test.code, test.status, test.after)
			}
			b, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			var arrived leaseapi.Problem
			if err := json.Unmarshal(b, &arrived); err != nil {
				t.Fatal(err)
			}
			got := arrived.Err()
			if test.is != nil && !errors.Is(got, test.is) || test.is == nil && !reflect.DeepEqual(got, test.err) {
				t.Errorf("%v arrived as %#v", sent, got)
			}
		}
	}
}

// What says nothing to a client tells it nothing: it may name files and hosts.
func TestUnavailableTellsNothing(t *testing.T) {
	p := leaseapi.FromError(errors.New("dial redis.internal:6379: refused"), now)
	if p.Code != leaseapi.CodeUnavailable || p.Status != 503 || p.RetryAfter() == "" || strings.Contains(p.Detail, "redis") {
		t.Errorf("%+v", p)
	}
	if got := p.Err(); !errors.As(got, new(*leaseapi.Problem)) {
		t.Errorf("%#v", got)
	}
}

// What was refused before anything was done is settled, and comes with the time
// to come back.
func TestRefusalsAreBusy(t *testing.T) {
	for _, code := range []leaseapi.Code{leaseapi.CodeRateLimited, leaseapi.CodeOverloaded} {
		err := leaseapi.NewProblem(code, "slowly").After(90 * time.Second).Err()
		var busy *provider.BusyError
		if !errors.As(err, &busy) || busy.RetryAfter != 90*time.Second || busy.Reason != "slowly" {
			t.Errorf("%s: %#v", code, err)
		}
	}
	for _, code := range []leaseapi.Code{leaseapi.CodeTooLarge, leaseapi.CodeUnsupportedMedia} {
		if err := leaseapi.NewProblem(code, "no").Err(); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%s: %v", code, err)
		}
	}
	// A server that does not have the path cannot, whatever it is asked next.
	for _, code := range []leaseapi.Code{leaseapi.CodeNotSupported, leaseapi.CodeNotFound, leaseapi.CodeMethodNotAllowed} {
		if err := leaseapi.NewProblem(code, "no").Err(); !errors.Is(err, errors.ErrUnsupported) || !strings.HasPrefix(err.Error(), "no") {
			t.Errorf("%s: %v", code, err)
		}
	}
	for _, code := range []leaseapi.Code{leaseapi.CodeUnauthenticated, leaseapi.CodeForbidden} {
		if err := leaseapi.NewProblem(code, "no").Err(); !errors.As(err, new(*leaseapi.Problem)) {
			t.Errorf("%s: %v", code, err)
		}
	}
}
