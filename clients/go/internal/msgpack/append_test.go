package msgpack

import (
	"math"
	"testing"
)

// Integers of 64 bits keep each bit, also those within structs.
func TestAppendKeepsIntegers(t *testing.T) {
	for _, n := range []uint64{0, 1<<53 + 1, math.MaxInt64, 1 << 63, math.MaxUint64 - 1} {
		b, err := Append(nil, struct{ N uint64 }{n})
		if err != nil {
			t.Fatal(err)
		}
		r := NewReader(b)
		switch got := r.Value().(map[string]any)["N"].(type) {
		case int64:
			if uint64(got) != n {
				t.Errorf("%d became %d", n, got)
			}
		case uint64:
			if got != n {
				t.Errorf("%d became %d", n, got)
			}
		default:
			t.Errorf("%d became %v", n, got)
		}
	}
}
