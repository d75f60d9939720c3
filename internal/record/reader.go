package record

import (
	"encoding/binary"
	"math"
)

// Reader reads a value, one part after the other. Once it has failed it returns zero values.
type Reader struct {
	value, rest []byte
	text        string // the value, once a text was read: all texts are parts of it
	failed      bool
}

// NewReader returns a Reader of the value, which must not change.
func NewReader(value []byte) Reader { return Reader{value: value, rest: value} }

// Rest returns the bytes that were not read.
func (r *Reader) Rest() []byte { return r.rest }

// Failed reports whether a part was not there, or Fail was called.
func (r *Reader) Failed() bool { return r.failed }

// Fail is for a part that cannot be.
func (r *Reader) Fail() { r.failed = true }

// Bytes reads n bytes, which are a part of the value.
func (r *Reader) Bytes(n int) []byte {
	if r.failed = r.failed || len(r.rest) < n; r.failed {
		return make([]byte, n)
	}
	taken := r.rest[:n:n]
	r.rest = r.rest[n:]
	return taken
}

// Byte reads a byte.
func (r *Reader) Byte() byte { return r.Bytes(1)[0] }

// Text reads a text of n bytes.
func (r *Reader) Text(n int) string {
	if r.Bytes(n); r.failed || n == 0 {
		return ""
	}
	if r.text == "" {
		r.text = string(r.value)
	}
	end := len(r.value) - len(r.rest)
	return r.text[end-n : end]
}

// Number reads a varint from 0 to the largest int64.
func (r *Reader) Number() int64 {
	if len(r.rest) > 0 && r.rest[0] < 0x80 { // most are short
		return int64(r.Byte())
	}
	n, size := binary.Uvarint(r.rest)
	r.Bytes(max(size, 0))
	if r.failed = r.failed || size <= 0 || n > math.MaxInt64; r.failed {
		return 0
	}
	return int64(n)
}

// Signed reads a varint that may be negative.
func (r *Reader) Signed() int64 {
	n, size := binary.Varint(r.rest)
	r.Bytes(max(size, 0))
	if r.failed = r.failed || size <= 0; r.failed {
		return 0
	}
	return n
}
