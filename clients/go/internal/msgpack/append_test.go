package msgpack

import (
	"bytes"
	"math"
	"testing"
)

// Integers of 63 bits keep each bit, also those within structs, and larger ones are refused.
func TestAppendKeepsIntegers(t *testing.T) {
	for _, n := range []int64{0, -1, -32, -33, 127, 128, 1<<53 + 1, math.MaxInt64, math.MinInt64} {
		b, err := Append(nil, []any{n, struct{ N int64 }{n}})
		if err != nil {
			t.Fatal(err)
		}
		r := NewReader(bytes.NewReader(b))
		r.Next(len(b))
		all, _ := r.Value().([]any)
		if r.Err() != nil || len(all) != 2 || all[0] != n || all[1].(map[string]any)["N"] != n {
			t.Errorf("%d became %v, %v", n, all, r.Err())
		}
	}
	if _, err := Append(nil, struct{ N uint64 }{1 << 63}); err == nil {
		t.Error("2^63 was written")
	}
}
