package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// MaxMessage is the largest message that a server accepts.
	MaxMessage = 256 << 10

	// MaxDepth is how many non-empty arrays and maps may be open at once, the
	// message itself included. It bounds every recursion over a message.
	MaxDepth = 32
)

// ErrTooLarge is wrapped by the *ParseError about a message that is, or will be, larger
// than the limit.
var ErrTooLarge = errors.New("message too large")

// A ParseError says why bytes from the peer are not a message. The next message cannot
// be found after that.
type ParseError struct {
	reason string
	cause  error // ErrTooLarge or nil
}

func (e *ParseError) Error() string { return e.reason }

func (e *ParseError) Unwrap() error { return e.cause }

func parseErrorf(format string, args ...any) *ParseError {
	return &ParseError{reason: fmt.Sprintf(format, args...)}
}

// A Splitter finds the end of a message in a growing buffer. It remembers its position,
// and neither keeps nor copies bytes. The zero value accepts messages up to MaxMessage.
type Splitter struct {
	limit    int
	anyValue bool // accept any value at the root, not only an array

	off   int   // everything before it is scanned; may be beyond the buffer, inside a body
	owed  int64 // values announced and not yet begun, at all levels; each is one byte or more
	depth int
	left  [MaxDepth]uint32 // values still to begin at each open level
	ext   bool             // an extension type was seen; holds until the next message begins
}

// NewSplitter returns a Splitter for messages of at most limit bytes.
func NewSplitter(limit int) Splitter { return Splitter{limit: limit} }

// Scan looks for the end of the message that begins at b[0]. It returns the
// message's length and is then ready for the next message; or 0 when more
// bytes are needed: call it again with the same bytes and some more. An error,
// always a *ParseError, comes back at every further call until Reset.
func (s *Splitter) Scan(b []byte) (int, error) {
	if s.off == 0 {
		if len(b) == 0 {
			return 0, nil
		}
		if !s.anyValue && shapes[b[0]].class != classArray {
			return 0, parseErrorf("not MessagePack-RPC: the first byte 0x%02x does not begin an array", b[0])
		}
		s.owed, s.ext = 1, false
	}
	for s.off < len(b) && s.owed > 0 {
		whole, err := s.step(b[s.off:])
		if err != nil {
			return 0, err
		}
		if !whole {
			return 0, nil
		}
	}
	if s.owed > 0 || s.off > len(b) {
		return 0, nil
	}
	n := s.off
	s.Reset()
	return n, nil
}

// Reset forgets the message begun.
func (s *Splitter) Reset() {
	s.off, s.owed, s.depth = 0, 0, 0
}

// step passes over the value that begins at b[0]: a scalar with its body, or the header
// of an array or a map. It returns false, and changes nothing, if the header is
// incomplete.
func (s *Splitter) step(b []byte) (bool, error) {
	shape := &shapes[b[0]]
	if shape.class == classInvalid {
		return false, parseErrorf("not MessagePack: the byte 0x%02x is never used", b[0])
	}
	head := 1 + int(shape.lengthSize)
	whole := len(b) >= head
	number := int64(shape.fixed)
	if whole {
		number += declared(b, shape.lengthSize)
	}
	body, items := number, int64(0)
	switch shape.class {
	case classArray:
		body, items = 0, number
	case classMap:
		body, items = 0, 2*number
	}
	// An incomplete header counts too: the limit must be noticed before a buffer of
	// that size is full.
	end, owed := int64(s.off+head)+body, s.owed-1+items
	if limit := s.maximum(); end+owed > int64(limit) {
		return false, &ParseError{reason: fmt.Sprintf("message larger than %d bytes", limit), cause: ErrTooLarge}
	}
	if !whole {
		return false, nil
	}
	if items > 0 && s.depth == MaxDepth {
		return false, parseErrorf("message nested deeper than %d levels", MaxDepth)
	}
	s.off, s.owed = int(end), owed
	s.ext = s.ext || shape.kind == KindExtension
	s.descend(items)
	return true, nil
}

// declared is the length that follows b[0].
func declared(b []byte, size uint8) int64 {
	switch size {
	case 1:
		return int64(b[1])
	case 2:
		return int64(binary.BigEndian.Uint16(b[1:]))
	case 4:
		return int64(binary.BigEndian.Uint32(b[1:]))
	}
	return 0
}

// descend counts one value at the present level, opens a level for its items,
// and leaves the levels that are complete.
func (s *Splitter) descend(items int64) {
	if s.depth > 0 {
		s.left[s.depth-1]--
	}
	if items > 0 {
		s.left[s.depth] = uint32(items)
		s.depth++
		return
	}
	for s.depth > 0 && s.left[s.depth-1] == 0 {
		s.depth--
	}
}

func (s *Splitter) maximum() int {
	if s.limit > 0 {
		return s.limit
	}
	return MaxMessage
}

// class is the unit of the number in a value's header.
type class uint8

const (
	classInvalid class = iota
	classBody          // bytes
	classArray         // values
	classMap           // pairs of values
)

// shape is the information about a value's size in its first byte.
type shape struct {
	class      class
	kind       Kind
	lengthSize uint8 // bytes of the length that follows
	fixed      uint8 // bytes, values or pairs to add to that length
}

var shapes = func() (t [256]shape) {
	fill := func(low, high int, s shape) {
		for c := low; c <= high; c++ {
			t[c] = s
		}
	}
	fill(0x00, 0x7f, shape{class: classBody, kind: KindInt})
	fill(0xe0, 0xff, shape{class: classBody, kind: KindInt})
	for n := range 16 {
		t[0x80+n] = shape{class: classMap, kind: KindMap, fixed: uint8(n)}
		t[0x90+n] = shape{class: classArray, kind: KindArray, fixed: uint8(n)}
	}
	for n := range 32 {
		t[0xa0+n] = shape{class: classBody, kind: KindString, fixed: uint8(n)}
	}
	t[0xc0] = shape{class: classBody, kind: KindNil}
	fill(0xc2, 0xc3, shape{class: classBody, kind: KindBool})
	for i := range 3 { // lengths of 1, 2 and 4 bytes
		size := uint8(1) << i
		t[0xc4+i] = shape{class: classBody, kind: KindBinary, lengthSize: size}
		t[0xc7+i] = shape{class: classBody, kind: KindExtension, lengthSize: size, fixed: 1}
		t[0xd9+i] = shape{class: classBody, kind: KindString, lengthSize: size}
	}
	t[0xca] = shape{class: classBody, kind: KindFloat, fixed: 4}
	t[0xcb] = shape{class: classBody, kind: KindFloat, fixed: 8}
	for i := range 4 { // integers of 1, 2, 4 and 8 bytes
		t[0xcc+i] = shape{class: classBody, kind: KindInt, fixed: 1 << i}
		t[0xd0+i] = shape{class: classBody, kind: KindInt, fixed: 1 << i}
	}
	for i := range 5 { // extensions of 1 to 16 bytes, and their type
		t[0xd4+i] = shape{class: classBody, kind: KindExtension, fixed: 1<<i + 1}
	}
	for i := range 2 { // lengths of 2 and 4 bytes
		t[0xdc+i] = shape{class: classArray, kind: KindArray, lengthSize: 2 << i}
		t[0xde+i] = shape{class: classMap, kind: KindMap, lengthSize: 2 << i}
	}
	return t
}()
