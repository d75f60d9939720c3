package recordhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

var errNo = errors.New("no")

// Refusals and a lack of room arrive, and other errors stay as they are.
func TestRefusalsTravel(t *testing.T) {
	for _, want := range []*record.FullError{
		{}, {Setting: record.SettingKeys, Limit: 1 << 40}, {Setting: record.SettingDisk, Limit: 5, Payer: `tenant "acme"`},
	} {
		b, err := json.Marshal(FromError(fmt.Errorf("the put: %w", want)))
		must.Succeed(t, err)
		var p problem.Problem
		must.Succeed(t, json.Unmarshal(b, &p))
		if got := ToError(&p); p.Code != problem.StoreFull || p.RetryAfterMS == 0 || !reflect.DeepEqual(got, error(want)) {
			t.Errorf("%s arrived as %#v", b, got)
		}
	}
	silent, refuses := func(*problem.Problem) error { return nil }, func(*problem.Problem) error { return errNo }
	for err, want := range map[error]bool{problem.New(problem.LockHeld, "held"): true, errors.New("lost"): false} {
		if got := Refused(err, silent); got != err {
			t.Errorf("%v, of which nothing was made, is %v", err, got)
		}
		if got := Refused(err, refuses); (got == errNo) != want {
			t.Errorf("%v is %v", err, got)
		}
	}
	if stray, ok := errors.AsType[*record.StrayError](Refused(problem.New(problem.Forbidden, "no scope"), silent)); !ok || stray.Unsure {
		t.Errorf("what nobody has judged is %+v", stray)
	}
	if p := FromError(errors.New("dial redis.internal")); p != nil {
		t.Errorf("a failure became %+v", p)
	}
	if err := ToError(problem.New(problem.Overloaded, "much to do")); err != nil {
		t.Errorf("much to do became %v", err)
	}
}
