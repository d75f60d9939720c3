//go:build go1.25

package kazahanatest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/clienttest"
)

// options are the last parameter of a call.
type options = map[string]any

// The fake answers as a daemon does: with errors of the same codes, and with the types and
// the names of fields that a daemon's answers have.
func TestAnswersAreADaemons(t *testing.T) {
	d := clienttest.NewDaemon(t)
	d.Await()
	real, err := kazahana.New(kazahana.WithSocket(d.Socket), kazahana.WithTimeout(clienttest.Patience))
	if err != nil {
		t.Fatal(err)
	}
	defer real.Close()
	fake := client(t, New())
	if _, err := real.NextID(t.Context(), kazahana.RegularOnly()); err != nil { // it has its lease by then
		t.Fatal(err)
	}
	const id, most = int64(137_465_797_017_600_256), int64(kazahana.MaxBatch)
	external := kazahana.ExternalCodec{}.Encode(kazahana.ID(id))
	calls := []struct {
		method string
		params []any
	}{
		{"NextID", nil},
		{"NextID", []any{options{"format": "string"}}},
		{"NextID", []any{options{"format": "external"}}},
		{"NextID", []any{options{"format": "int"}}},
		{"NextID", []any{options{"format": "words"}}},
		{"NextIDs", []any{3}},
		{"NextIDs", []any{2, options{"format": "string"}}},
		{"NextIDs", []any{0}},
		{"NextIDs", []any{most + 1}},
		{"NextIDs", []any{"3"}},
		{"NextIDs", nil},
		{"Inspect", []any{id}},
		{"Inspect", []any{-1}},
		{"Inspect", nil},
		{"Inspect", []any{fmt.Sprint(id)}},
		{"Inspect", []any{fmt.Sprintf("0x%x", id)}},
		{"Inspect", []any{external}},
		{"Bounds", []any{int64(1_800_000_000_000), int64(1_800_000_001_000)}},
		{"Bounds", []any{int64(1_800_000_000_000), int64(1_800_000_000_000)}},
		{"Bounds", []any{int64(1_800_000_000_000)}},
		{"ToExternal", []any{id}},
		{"ToExternal", nil},
		{"ToExternal", []any{-1}},
		{"ToExternal", []any{fmt.Sprint(id)}},
		{"ToExternal", []any{fmt.Sprintf("0X%X", id)}},
		{"ToExternal", []any{external}},
		{"ToExternal", []any{"9223372036854775808"}}, // 64 bits
		{"ToExternal", []any{"0x"}},
		{"ToExternal", []any{"0x?????????"}}, // as long as an external ID
		{"ToExternal", []any{"short"}},
		{"ToExternal", []any{""}},
		{"ToExternal", []any{1.5}},
		{"ToInternal", []any{external}},
		{"ToInternal", []any{external, options{"latest_ms": int64(1_700_000_000_000)}}},
		{"ToInternal", []any{"short"}},
		{"ToInternal", []any{nil}},
		{"ToInternal", []any{1}},
		{"UUID", nil},
		{"UUID", []any{4}},
		{"UUID", []any{5}},
		{"Ping", nil},
		{"Status", nil},
		{"NoSuchMethod", nil},
		{"Sequence.Next", []any{"s", options{"request_id": "a"}}},
		{"Sequence.Next", []any{"s", options{"request_id": "a"}}}, // again
		{"Sequence.Next", []any{"s", options{"request_id": "b"}}},
		{"Sequence.NextBatch", []any{"s", 3, options{"request_id": "c"}}},
		{"Sequence.NextBatch", []any{"s", 3, options{"request_id": "c"}}},
		{"Sequence.NextBatch", []any{"s", 0}},
		{"Sequence.NextBatch", []any{"s"}},
		{"Sequence.Next", nil},
		{"Lock.Get", []any{"never held"}},
		{"Lock.Acquire", []any{"k", options{"ttl_ms": 60_000, "request_id": "d"}}},
		{"Lock.Acquire", []any{"k", options{"ttl_ms": 60_000, "request_id": "e"}}}, // held
		{"Lock.Get", []any{"k"}},
		{"Lock.Release", []any{"k", options{"lease_id": "00000000000000000000000000000000"}}},
		{"Lock.Renew", []any{"k", options{"lease_id": "00000000000000000000000000000000"}}},
		{"Lock.Renew", []any{"k"}},
		{"Lock.Renew", []any{"never held"}},
		{"Lock.Watch", []any{"never held"}},
		{"Lock.Release", []any{"never held"}},
		{"Lock.Release", []any{"k"}},
		{"Lock.Release", []any{"k"}}, // again
		{"Lock.Get", []any{"k"}},
		{"Lock.Acquire", []any{"k", options{"ttl_ms": 60_000, "request_id": "f"}}},
		{"Lock.Acquire", nil},
	}
	computed := []string{"Inspect", "Bounds", "ToExternal", "ToInternal", "Ping", "Sequence.Next", "Sequence.NextBatch"} // from the parameters alone
	for _, call := range calls {
		var want, got any
		refused := real.Call(t.Context(), call.method, &want, call.params...)
		err := fake.Call(t.Context(), call.method, &got, call.params...)
		what := fmt.Sprint(call.method, call.params)
		if code(refused) != code(err) {
			t.Errorf("%s: the fake answers %v, and a daemon %v", what, err, refused)
		}
		alike(t, what, got, want)
		if call.method[:2] == "Lo" && err == nil && state(got) != state(want) {
			t.Errorf("%s: the fake's lock is %v, and a daemon's %v", what, state(got), state(want))
		}
		if slices.Contains(computed, call.method) && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the fake gives %v, and a daemon %v", what, got, want)
		}
	}
}

func state(answer any) any { return answer.(map[string]any)["state"] }

func code(err error) kazahana.Code {
	var e *kazahana.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// alike compares types, and the fields that the fake has.
func alike(t *testing.T, what string, got, want any) {
	t.Helper()
	if reflect.TypeOf(got) != reflect.TypeOf(want) {
		t.Errorf("%s: the fake has %T, and a daemon %T: %v, %v", what, got, want, got, want)
		return
	}
	switch got := got.(type) {
	case map[string]any:
		for key, value := range got {
			alike(t, what+" "+key, value, want.(map[string]any)[key])
		}
	case []any:
		if all := want.([]any); len(got) != len(all) {
			t.Errorf("%s: the fake has %d values, and a daemon %d", what, len(got), len(all))
		} else if len(got) > 0 {
			alike(t, what+" [0]", got[0], all[0])
		}
	}
}
