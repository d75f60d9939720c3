package msgpack

import (
	"fmt"
	"io"
	"math"
)

const (
	// bufferSize is how much is read at once, if so much has come: 450 IDs.
	bufferSize = 4 << 10
	// maxDepth is how deep arrays and maps may be nested.
	maxDepth = 32
	// believed is how many values get room before they have come.
	believed = 64
)

// A FormatError names the part of a stream that no daemon sends.
type FormatError string

func (e FormatError) Error() string { return string(e) }

// A Reader reads messages from a stream in one pass: it waits for bytes that have not come yet.
// After an error it reads zeros.
type Reader struct {
	in     io.Reader
	buffer []byte
	come   []byte // the part of buffer that has come, and is not read yet
	left   int    // how many bytes the message may still have
	err    error
}

// NewReader returns a Reader of a stream.
func NewReader(in io.Reader) *Reader { return &Reader{in: in, buffer: make([]byte, bufferSize)} }

// Await waits until the next message begins. The Reader stays good after an error of Await,
// since no message is cut: the wait may have been limited.
func (r *Reader) Await() error {
	if len(r.come) > 0 || r.err != nil {
		return r.err
	}
	n, err := r.in.Read(r.buffer)
	if r.come = r.buffer[:n]; n > 0 {
		return nil
	}
	return err
}

// Next begins a message of a limited size.
func (r *Reader) Next(limit int) { r.left = limit }

// Err returns the first error: a FormatError, or the stream's.
func (r *Reader) Err() error { return r.err }

// Fail makes a FormatError the Reader's error, unless it has one.
func (r *Reader) Fail(format string, args ...any) {
	if r.err == nil {
		r.err = FormatError(fmt.Sprintf(format, args...))
	}
}

// number reads an unsigned number of so many bytes.
func (r *Reader) number(size int) (n uint64) {
	if r.left -= size; r.left < 0 {
		r.Fail("a message is too large")
	}
	if len(r.come) < size && r.err == nil {
		old := copy(r.buffer, r.come)
		n, err := io.ReadAtLeast(r.in, r.buffer[old:], size-old)
		r.come, r.err = r.buffer[:old+n], err
	}
	if r.err != nil {
		return 0
	}
	for _, one := range r.come[:size] {
		n = n<<8 | uint64(one)
	}
	r.come = r.come[size:]
	return n
}

// integer reads the rest of an integer, if the code begins one.
func (r *Reader) integer(code byte) (n int64, ok bool) {
	switch {
	case code < 0x80 || code >= 0xe0:
		return int64(int8(code)), true
	case code >= 0xcc && code <= 0xcf:
		if n = int64(r.number(1 << (code - 0xcc))); n < 0 {
			r.Fail("the integer %d is more than 63 bits long", uint64(n))
		}
		return n, true
	case code >= 0xd0 && code <= 0xd3:
		size := 1 << (code - 0xd0)
		return int64(r.number(size)<<(64-8*size)) >> (64 - 8*size), true
	}
	return 0, false
}

// Int reads an integer.
func (r *Reader) Int() int64 {
	code := byte(r.number(1))
	n, ok := r.integer(code)
	if !ok {
		r.Fail("the byte 0x%02x instead of an integer", code)
	}
	return n
}

// Array reads the head of an array: how many values follow.
func (r *Reader) Array() int {
	switch code := byte(r.number(1)); {
	case code&0xf0 == 0x90:
		return r.length(uint64(code & 15))
	case code == 0xdc || code == 0xdd:
		return r.length(r.number(2 << (code - 0xdc)))
	default:
		r.Fail("the byte 0x%02x instead of an array", code)
		return 0
	}
}

// length checks the length of a value. Each member has a byte at least.
func (r *Reader) length(n uint64) int {
	if r.err == nil && n > uint64(r.left) {
		r.Fail("a message is too large")
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

// Value reads any value: nil, bool, int64, float64, string, []byte, []any or
// map[string]any.
func (r *Reader) Value() any { return r.value(maxDepth) }

func (r *Reader) value(depth int) any {
	if depth == 0 {
		r.Fail("values nest deeper than %d", maxDepth)
		return nil
	}
	code := byte(r.number(1))
	if n, ok := r.integer(code); ok {
		return n
	}
	switch {
	case code < 0x90:
		return r.pairs(uint64(code&15), depth)
	case code < 0xa0:
		return r.values(uint64(code&15), depth)
	case code < 0xc0:
		return string(r.bytes(uint64(code & 31)))
	case code == 0xc0:
		return nil
	case code == 0xc2 || code == 0xc3:
		return code == 0xc3
	case code >= 0xc4 && code <= 0xc6:
		return r.bytes(r.number(1 << (code - 0xc4)))
	case code == 0xcb:
		return math.Float64frombits(r.number(8))
	case code >= 0xd9 && code <= 0xdb:
		return string(r.bytes(r.number(1 << (code - 0xd9))))
	case code == 0xdc || code == 0xdd:
		return r.values(r.number(2<<(code-0xdc)), depth)
	case code == 0xde || code == 0xdf:
		return r.pairs(r.number(2<<(code-0xde)), depth)
	}
	r.Fail("a value begins with the byte 0x%02x", code)
	return nil
}

func (r *Reader) values(length uint64, depth int) []any {
	n := r.length(length)
	all := make([]any, 0, min(n, believed))
	for ; n > 0 && r.err == nil; n-- {
		all = append(all, r.value(depth-1))
	}
	return all
}

func (r *Reader) pairs(length uint64, depth int) map[string]any {
	n := r.length(length)
	all := make(map[string]any, min(n, believed))
	for ; n > 0 && r.err == nil; n-- {
		key, ok := r.value(depth - 1).(string)
		if !ok {
			r.Fail("the key of a map is no string")
		}
		all[key] = r.value(depth - 1)
	}
	return all
}

func (r *Reader) bytes(length uint64) []byte {
	b := make([]byte, r.length(length))
	r.left -= len(b)
	n := copy(b, r.come)
	r.come = r.come[n:]
	if r.err == nil {
		_, r.err = io.ReadFull(r.in, b[n:])
	}
	return b
}
