// Package msgpack reads and writes the part of MessagePack that the daemon uses, which is
// all of it but the extension types.
package msgpack

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// A kind is the kind of a value.
type kind uint8

const (
	kindNone kind = iota
	kindNil
	kindBool
	kindUint
	kindInt // negative, as a rule
	kindFloat
	kindString
	kindBinary
	kindArray
	kindMap
)

func (k kind) String() string {
	return [...]string{"nothing", "nil", "a bool", "an integer", "an integer", "a float", "a string", "a binary", "an array", "a map"}[k]
}

// forms are the values whose first byte is 0xc4 to 0xdf: their kind, and the width of
// their number. The missing ones are extension types.
var forms = [...]struct {
	kind  kind
	width int
}{
	{kindBinary, 1}, {kindBinary, 2}, {kindBinary, 4},
	0xca - 0xc4: {kindFloat, 4}, {kindFloat, 8}, {kindUint, 1}, {kindUint, 2}, {kindUint, 4}, {kindUint, 8},
	{kindInt, 1}, {kindInt, 2}, {kindInt, 4}, {kindInt, 8},
	0xd9 - 0xc4: {kindString, 1}, {kindString, 2}, {kindString, 4}, {kindArray, 2}, {kindArray, 4}, {kindMap, 2}, {kindMap, 4},
}

// head reads the head of the value that b begins with: its kind, its number or its
// length, and the size of the head, which is 0 if b ends within the head.
func head(b []byte) (k kind, n uint64, size int, err error) {
	if len(b) == 0 {
		return kindNone, 0, 0, nil
	}
	switch c := b[0]; {
	case c == 0xcf && len(b) > 8: // an ID: in long answers, nearly all values
		return kindUint, binary.BigEndian.Uint64(b[1:]), 9, nil
	case c < 0x80:
		return kindUint, uint64(c), 1, nil
	case c < 0x90:
		return kindMap, uint64(c & 15), 1, nil
	case c < 0xa0:
		return kindArray, uint64(c & 15), 1, nil
	case c < 0xc0:
		return kindString, uint64(c & 31), 1, nil
	case c == 0xc0:
		return kindNil, 0, 1, nil
	case c == 0xc2 || c == 0xc3:
		return kindBool, uint64(c & 1), 1, nil
	case c >= 0xe0:
		return kindInt, uint64(int64(int8(c))), 1, nil
	case c == 0xc1 || forms[c-0xc4].width == 0:
		return kindNone, 0, 0, fmt.Errorf("a value begins with the byte 0x%02x, an extension type or nothing at all", c)
	}
	form := forms[b[0]-0xc4]
	if len(b) <= form.width {
		return kindNone, 0, 0, nil
	}
	for _, c := range b[1 : 1+form.width] {
		n = n<<8 | uint64(c)
	}
	switch unused := 64 - 8*form.width; {
	case form.kind == kindInt:
		n = uint64(int64(n<<unused) >> unused)
	case form.kind == kindFloat && form.width == 4:
		n = math.Float64bits(float64(math.Float32frombits(uint32(n))))
	}
	return form.kind, n, 1 + form.width, nil
}

// A Scanner finds the ends of messages, in time linear to their size, however the bytes
// come.
type Scanner struct {
	at  int // where the next value begins
	due int // the values still to come
}

// Scan returns the size of the message that b begins with, or 0 if there is more to come.
// Calls about one message begin with the same bytes. Nothing is larger than limit.
func (s *Scanner) Scan(b []byte, limit int) (size int, err error) {
	if s.at == 0 {
		s.due = 1
	}
	for s.due > 0 {
		k, n, size, err := head(b[s.at:])
		switch {
		case err != nil:
			return 0, err
		case size == 0:
			return 0, nil
		case s.at == 0 && k != kindArray:
			return 0, fmt.Errorf("a message is %v, not an array", k)
		case k >= kindString && n > uint64(limit):
			return 0, fmt.Errorf("a message has more than %d bytes", limit)
		}
		due := s.due - 1
		switch k {
		case kindString, kindBinary:
			size += int(n)
		case kindMap:
			due += int(n)
			fallthrough
		case kindArray:
			due += int(n)
		}
		if s.at+size+due > limit { // a value has a byte at least
			return 0, fmt.Errorf("a message has more than %d bytes", limit)
		}
		if s.at+size > len(b) {
			return 0, nil
		}
		s.at, s.due = s.at+size, due
	}
	size, s.at = s.at, 0
	return size, nil
}

// A Reader reads the values of a message that a Scanner has found. After an error it
// reads zeros.
type Reader struct {
	b   []byte
	err error
}

// NewReader returns a Reader of b.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// next reads the head of the next value, which must be of the kind or the other one.
func (r *Reader) next(want, other kind) (kind, uint64) {
	k, n, size, err := head(r.b)
	switch {
	case r.err != nil:
		return kindNone, 0
	case err != nil:
		r.err = err
	case k != want && k != other:
		r.err = fmt.Errorf("%v instead of %v", k, want)
	case (k == kindString || k == kindBinary) && uint64(len(r.b)-size) < n:
		r.err = errors.New("the message is too short")
	default:
		r.b = r.b[size:]
		return k, n
	}
	return kindNone, 0
}

// Nil reads a nil if there is one, and reports whether there was.
func (r *Reader) Nil() bool {
	if len(r.b) == 0 || r.b[0] != 0xc0 {
		return false
	}
	r.b = r.b[1:]
	return true
}

// Int reads an integer up to 2^63-1.
func (r *Reader) Int() int64 {
	k, n := r.next(kindUint, kindInt)
	if k == kindUint && n > math.MaxInt64 {
		r.err = fmt.Errorf("the integer %d is more than 63 bits long", n)
		return 0
	}
	return int64(n)
}

// Array reads the head of an array: how many values follow.
func (r *Reader) Array() int {
	_, n := r.next(kindArray, kindArray)
	if n > uint64(len(r.b)) { // of a message that was not scanned
		r.err = errors.New("the message is too short")
		return 0
	}
	return int(n)
}

// Text reads a string, which may come as a binary.
func (r *Reader) Text() string {
	_, n := r.next(kindString, kindBinary)
	text := string(r.b[:n])
	r.b = r.b[n:]
	return text
}

// maxDepth is how deep arrays and maps may be nested.
const maxDepth = 32

// Value reads any value: nil, bool, int64, uint64 if it is too large for that, float64,
// string, []byte, []any or map[string]any.
func (r *Reader) Value() any { return r.value(maxDepth) }

func (r *Reader) value(depth int) any {
	k, n, _, _ := head(r.b)
	if k == kindString || k == kindBinary {
		if text := r.Text(); k == kindString {
			return text
		} else {
			return []byte(text)
		}
	}
	if r.next(k, k); r.err == nil && (depth == 0 || k >= kindArray && n > uint64(len(r.b))) {
		r.err = errors.New("a value is nested too deep, or too short")
	}
	switch {
	case r.err != nil:
		return nil
	case k == kindBool:
		return n == 1
	case k == kindUint && n > math.MaxInt64:
		return n
	case k == kindUint, k == kindInt:
		return int64(n)
	case k == kindFloat:
		return math.Float64frombits(n)
	case k == kindArray:
		all := make([]any, n)
		for i := range all {
			all[i] = r.value(depth - 1)
		}
		return all
	case k == kindMap:
		all := make(map[string]any, n)
		for range n {
			key := r.Text()
			all[key] = r.value(depth - 1)
		}
		return all
	}
	return nil
}

// Assign stores a Value in target, a pointer, by the rules and the tags of encoding/json.
func Assign(value, target any) error {
	if t, ok := target.(*any); ok {
		*t = value
		return nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, target)
}
