package http

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/recordhttp"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Every refusal arrives as it was sent.
func TestRefusalsTravel(t *testing.T) {
	for _, want := range []error{
		&sequence.ExhaustedError{Key: "k", Max: 1<<63 - 1, Left: 1<<63 - 2}, &sequence.ExhaustedError{Key: "k", Max: 7},
		&sequence.FencedError{Key: "k", UntilMS: 1_800_000_000_000, Reason: "restarted"}, &sequence.FencedError{Key: "k", Reason: "restarted"},
		&sequence.MismatchError{Key: "k", Recorded: "a", Asked: "b"}, sequence.ErrRequestReused, sequence.ErrInvalid,
	} {
		b, err := json.Marshal(FromError(want, 0))
		must.Succeed(t, err)
		var p problem.Problem
		must.Succeed(t, json.Unmarshal(b, &p))
		if got := toError("k", &p); !errors.Is(got, want) && !reflect.DeepEqual(got, want) || !sequence.IsAnswer(got) {
			t.Errorf("%v arrived as %#v", want, got)
		}
	}
	full := &record.FullError{Setting: record.SettingDisk, Limit: 7, Payer: "o"}
	judge := func(p *problem.Problem) error { return toError("k", p) }
	if got := recordhttp.Refused(recordhttp.FromError(full), judge); !reflect.DeepEqual(got, error(full)) || !sequence.IsAnswer(got) {
		t.Errorf("%v arrived as %#v", full, got)
	}
	if p := FromError(errors.New("dial redis.internal"), 0); p != nil {
		t.Errorf("a failure became %+v", p)
	}
}
