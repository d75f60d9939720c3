//go:build go1.25

package kazahana

import (
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	_ driver.Valuer = ID(0)
	_ sql.Scanner   = (*ID)(nil)
)

func TestIDSpellings(t *testing.T) {
	for i := range 1000 {
		id := ID(rand.Int64() >> (i % 63))
		if i < 2 {
			id = []ID{0, math.MaxInt64}[i]
		}
		text, err := json.Marshal(map[string]ID{"id": id})
		if err != nil || string(text) != `{"id":"`+id.String()+`"}` {
			t.Fatalf("%s, %v", text, err)
		}
		var back map[string]ID
		if err := json.Unmarshal(text, &back); err != nil || back["id"] != id {
			t.Fatalf("%v, %v", back, err)
		}
		value, err := id.Value()
		if err != nil {
			t.Fatal(err)
		}
		for _, column := range []any{value, uint64(id), id.String(), []byte(id.String())} {
			var got ID
			if err := got.Scan(column); err != nil || got != id {
				t.Fatalf("%T: %d, %v", column, got, err)
			}
		}
	}
	for text, want := range map[string]ID{`"7"`: 7, `7`: 7, `9007199254740993`: 9007199254740993, `"0x10"`: 16, `null`: 0} {
		var got ID
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, wrong := range []string{"", "-1", "9223372036854775808", "0x", "0x8000000000000000", "x", "1.5", "+1", "1_0"} {
		if id, err := ParseID(wrong); !errors.Is(err, ErrInvalidParams) {
			t.Errorf("%q: %d, %v", wrong, id, err)
		}
	}
	var id ID
	for _, wrong := range []any{int64(-1), uint64(1 << 63), 1.5, nil, "x", true} {
		if err := id.Scan(wrong); err == nil {
			t.Errorf("%v was read", wrong)
		}
	}
	var null sql.Null[ID]
	if err := null.Scan(nil); err != nil || null.Valid {
		t.Error(null, err)
	}
}

// What is known without a daemon agrees with what it says.
func TestOfflineAgreesWithTheDaemon(t *testing.T) {
	c := newDaemon(t).client()
	layout := DefaultLayout()
	for range 20 {
		id := nextID(t, c)
		online, err := c.Inspect(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		offline, err := layout.Inspect(id)
		if err != nil || offline != online {
			t.Errorf("%+v, %v, want %+v", offline, err, online)
		}
		if !id.Time(layout).Equal(online.Time) {
			t.Errorf("made at %v, not %v", id.Time(layout), online.Time)
		}
		if fallback, err := c.IsFallback(t.Context(), id); err != nil || fallback {
			t.Error(fallback, err)
		}
		external, err := c.ToExternal(t.Context(), id)
		if err != nil || external != (ExternalCodec{}).Encode(id) {
			t.Error(external, err)
		}
		if back, err := c.ToInternal(t.Context(), external, NotAfter(time.Now().Add(time.Hour))); err != nil || back != id {
			t.Error(back, err)
		}
		if _, err := c.ToInternal(t.Context(), external, NotAfter(layout.Epoch)); !errors.Is(err, ErrInvalidExternalID) {
			t.Error(err)
		}
		if _, err := (ExternalCodec{}).DecodeBefore(external, layout, layout.Epoch); !errors.Is(err, ErrInvalidExternalID) {
			t.Error(err)
		}
	}
	from := time.Date(2026, 11, 20, 0, 0, 0, 1, time.UTC) // a bit more than a millisecond
	for _, to := range []time.Time{from.Add(time.Millisecond), from.Add(24 * time.Hour), from.Add(999_999)} {
		a, b, err := c.Bounds(t.Context(), from, to)
		x, y, err2 := layout.Bounds(from, to)
		if err != nil || err2 != nil || a != x || b != y {
			t.Errorf("to %v: %d %d %v, offline %d %d %v", to, a, b, err, x, y, err2)
		}
	}
	if _, _, err := layout.Bounds(from, from); !errors.Is(err, ErrInvalidParams) {
		t.Error(err)
	}
	if _, err := layout.Inspect(-1); !errors.Is(err, ErrInvalidParams) {
		t.Error(err)
	}
	if _, err := (Layout{}).Inspect(1); !errors.Is(err, ErrInvalidParams) {
		t.Error(err)
	}
}
