package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestSplitterRefuses(t *testing.T) {
	rep := strings.Repeat
	cases := []struct {
		name, hex, reason string
		tooLarge          bool
	}{
		{"HTTP", "47", "first byte 0x47 does not begin an array", false},
		{"a map", "80", "first byte 0x80", false},
		{"a string", "a0", "first byte 0xa0", false},
		{"the unused byte first", "c1", "first byte 0xc1", false},
		{"the unused byte inside", "91c1", "0xc1 is never used", false},
		{"the unused byte deep inside", "9392c0c1", "0xc1 is never used", false},
		{"array 32", "ddffffffff", "larger than 262144", true},
		{"array 32 just too long", "dd00040000", "larger than", true},
		{"array 16 inside others", rep("dcffff", 17), "larger than", true},
		{"map 32", "91dfffffffff", "larger than", true},
		{"map 32 whose pairs are too many", "91df00020000", "larger than", true},
		{"string 32", "91dbffffffff", "larger than", true},
		{"string 32 just too long", "91db0003fffb", "larger than", true},
		{"binary 32", "91c6ffffffff", "larger than", true},
		{"extension 32", "91c9ffffffff", "larger than", true},
		{"string that leaves no room for its siblings", "93db0003fff9", "larger than", true},
		{"too deep", rep("91", MaxDepth+1), "nested deeper than 32", false},
		{"too deep by maps", "91" + rep("81", MaxDepth), "nested deeper than 32", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := unhex(t, c.hex)
			var s Splitter
			for range 2 { // the error stays
				var parse *ParseError
				n, err := s.Scan(b)
				if n != 0 || !errors.As(err, &parse) || !strings.Contains(err.Error(), c.reason) {
					t.Fatalf("got %d, %v, want %q", n, err, c.reason)
				}
				if errors.Is(err, ErrTooLarge) != c.tooLarge {
					t.Fatalf("%v: is ErrTooLarge: %v", err, !c.tooLarge)
				}
			}
			s.Reset()
			if n, err := s.Scan([]byte{0x90}); n != 1 || err != nil {
				t.Fatalf("after Reset: %d, %v", n, err)
			}
		})
	}
}

func TestSplitterLimitIsExact(t *testing.T) {
	build := func(size int) []byte { // an array of one string, size bytes in all
		msg := append([]byte{0x91, 0xdb}, 0, byte((size-6)>>16), byte((size-6)>>8), byte(size-6))
		return append(msg, make([]byte, size-6)...)
	}
	var s Splitter
	if n, err := s.Scan(build(MaxMessage)); n != MaxMessage || err != nil {
		t.Fatalf("%d bytes: got %d, %v", MaxMessage, n, err)
	}
	if n, err := s.Scan(build(MaxMessage + 1)[:6]); n != 0 || !errors.Is(err, ErrTooLarge) {
		t.Fatalf("%d bytes: got %d, %v", MaxMessage+1, n, err)
	}
	// A buffer of the limit's size must never be full without a verdict, even
	// where the last bytes are half a header.
	small := NewSplitter(10)
	for _, last := range []byte{0xcf, 0xdb, 0xdd, 0xdf, 0xc9, 0xd8, 0xa1, 0x91, 0x81} {
		small.Reset()
		msg := append([]byte{0x99, 0, 0, 0, 0, 0, 0, 0, 0}, last)
		if n, err := small.Scan(msg); n != 0 || !errors.Is(err, ErrTooLarge) {
			t.Errorf("last byte %#x: got %d, %v", last, n, err)
		}
	}
}

// Were a Scan to begin anew, these scans would read 34 gigabytes.
func TestSplitterIsLinear(t *testing.T) {
	msg := append([]byte{0xdd, 0, 0x03, 0xff, 0xf0}, bytes.Repeat([]byte{0xc0}, 0x03fff0)...)
	var s Splitter
	for i := 1; i < len(msg); i++ {
		if n, err := s.Scan(msg[:i]); n != 0 || err != nil {
			t.Fatalf("at %d: %d, %v", i, n, err)
		}
	}
	if n, err := s.Scan(msg); n != len(msg) || err != nil {
		t.Fatalf("got %d, %v", n, err)
	}
}

// anyValue draws a MessagePack value.
func anyValue(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		kinds := 8
		if depth > 0 {
			kinds = 10
		}
		switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2:
			return rapid.Int64().Draw(t, "int64")
		case 3:
			return rapid.Uint64().Draw(t, "uint64")
		case 4:
			return rapid.Float64().Draw(t, "float64")
		case 5:
			return rapid.Int().Draw(t, "compact")
		case 6:
			return string(rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "string"))
		case 7:
			return rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes")
		case 8:
			return rapid.SliceOfN(anyValue(depth-1), 0, 20).Draw(t, "array")
		}
		return rapid.MapOfN(rapid.String(), anyValue(depth-1), 0, 20).Draw(t, "map")
	})
}

func TestSplitterAgreesWithTheLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(anyValue(4), 1, 5).Draw(t, "values")
		stream, err := msgpack.Marshal(values)
		must.Succeed(t, err)
		var s Splitter
		for at := rapid.IntRange(0, len(stream)-1).Draw(t, "first"); ; at++ {
			n, err := s.Scan(stream[:at])
			if err != nil || n != 0 && n != len(stream) {
				t.Fatalf("%d of %d bytes: got %d, %v", at, len(stream), n, err)
			}
			if n > 0 {
				return
			}
		}
	})
}
