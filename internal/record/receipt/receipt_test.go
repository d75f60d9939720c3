package receipt

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const t0 int64 = 1_800_000_000_000 // Unix ms

// timedID is a request ID that was made at that time, a UUID of version 7.
func timedID(ms int64, serial int) string {
	return fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, serial)
}

func TestMadeAt(t *testing.T) {
	for id, want := range map[string]int64{
		timedID(t0, 1):                              t0,
		strings.ToUpper(timedID(t0, 1)):             t0,
		"mark_of-a-credential." + timedID(t0, 1):    t0,
		strings.ReplaceAll(timedID(t0, 1), "-", ""): t0,
		timedID(t0+1, 1):                            0, // after the latest
		"0189d4c0-1234-4abc-8000-000000000001":      0, // random
		"0189d4c01234" + "4abc8000000000000001":     0,
		"0189d4c0-1234-7abc-c000-000000000001":      0, // random, of another variant
		timedID(firstMS, 1):                         firstMS,
		timedID(firstMS-1, 1):                       0, // random
		"request-7":                                 0,
		"":                                          0,
		"zzzzzzzz-zzzz-7zzz-8zzz-zzzzzzzzzzzz":      0,
	} {
		made, ok := MadeAt(id, t0)
		if ok != (want > 0) || ok && made.MS() != want {
			t.Errorf("%q tells %d, %v, want %d", id, made.MS(), ok, want)
		}
	}
}

// A repetition knows nothing but its ID, and finds the window of any span.
func TestWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		made := Stamp(rapid.Int64Range(firstMS, 2*t0).Draw(t, "made")) * PerMS
		span := rapid.Int64Range(0, 2*Keep.Milliseconds()).Draw(t, "span")
		width := widthOf(span)
		name := window(made, width)
		if all := Windows(made); !slices.Contains(all, name) {
			t.Fatalf("%q is not among %q", name, all)
		}
		// What was done within the span is in few windows.
		if other := window(made+Stamp(span)*PerMS, width); 2*span <= 1<<widest && other != name && other != window(made+Stamp(2*span)*PerMS, width) {
			t.Fatalf("%d ms later there is %q after %q", span, other, name)
		}
	})
}
