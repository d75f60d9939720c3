package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/recordhttp"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Every refusal arrives as it was sent.
func TestRefusalsTravel(t *testing.T) {
	for _, err := range []error{
		&lock.HeldError{Key: "k", Owner: "o", Token: 1 << 52, ExpiresMS: 1_800_000_000_123, RemainingMS: 90_000_123},
		&lock.FencedError{UntilMS: 1_800_000_000_123, RemainingMS: 90_000_123, Reason: "restarted"},
		lock.ErrNotOwned, lock.ErrExpired, lock.ErrRequestReused, lock.ErrNotFound, lock.ErrInvalid,
	} {
		for _, sent := range []error{err, fmt.Errorf("%w: why", err)} {
			b, jsonErr := json.Marshal(FromError(sent))
			must.Succeed(t, jsonErr)
			var p problem.Problem
			must.Succeed(t, json.Unmarshal(b, &p))
			got := toError("k", &p)
			if !errors.Is(got, err) && !reflect.DeepEqual(got, err) || !lock.IsAnswer(got) {
				t.Errorf("%v arrived as %#v", sent, got)
			}
		}
	}
	full := &record.FullError{Setting: record.SettingKeys, Limit: 7, Payer: "o"}
	judge := func(p *problem.Problem) error { return toError("k", p) }
	if got := recordhttp.Refused(recordhttp.FromError(full), judge); !reflect.DeepEqual(got, error(full)) || !lock.IsAnswer(got) {
		t.Errorf("%v arrived as %#v", full, got)
	}
	if p := FromError(errors.New("dial redis.internal")); p != nil {
		t.Errorf("a failure became %+v", p)
	}
	for _, code := range []problem.Code{problem.Overloaded, problem.RateLimited, problem.Forbidden, problem.Unauthenticated, problem.NotFound, problem.NotSupported, problem.Unavailable} {
		if err := toError("k", problem.New(code, "no")); err != nil {
			t.Errorf("%s became the answer %v", code, err)
		}
	}
}
