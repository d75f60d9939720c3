package wire

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/vmihailenco/msgpack/v5"
)

// Kind is the kind of a MessagePack value.
type Kind uint8

// The kinds of values. KindNone is the absence of a value.
const (
	KindNone Kind = iota
	KindNil
	KindBool
	KindInt
	KindFloat
	KindString
	KindBinary
	KindArray
	KindMap
	KindExtension
)

var kindNames = [...]string{"nothing", "nil", "a boolean", "an integer", "a float", "a string", "binary data",
	"an array", "a map", "an extension type"}

// String names the kind with its article, for error messages.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// values reads the values of one delimited message with the msgpack library. Its reader
// is reused. It cannot run out of bytes inside a value, because a Splitter has found the
// value's end.
type values struct {
	raw    []byte
	reader bytes.Reader
	dec    *msgpack.Decoder // reads from reader: a values must not be copied
}

func (v *values) reset(raw []byte) {
	v.raw = raw
	v.reader.Reset(raw)
	if v.dec == nil {
		v.dec = msgpack.NewDecoder(&v.reader)
	}
}

func (v *values) pos() int { return len(v.raw) - v.reader.Len() }

// seek goes to a position, which pos must have returned.
func (v *values) seek(pos int) {
	if _, err := v.reader.Seek(int64(pos), io.SeekStart); err != nil {
		panic("wire: seek in a message: " + err.Error())
	}
}

// kind returns the kind of the next value.
func (v *values) kind() Kind {
	if v.reader.Len() == 0 {
		return KindNone
	}
	return shapes[v.raw[v.pos()]].kind
}

// integer reads an integer or a float that is a whole number, as a magnitude
// and a sign, so that both int64 and uint64 fit.
func (v *values) integer() (magnitude uint64, negative bool, err error) {
	switch kind := v.kind(); kind {
	case KindFloat:
		f, err := v.dec.DecodeFloat64()
		if err != nil {
			return 0, false, err
		}
		if math.Trunc(f) != f || math.IsInf(f, 0) {
			return 0, false, fmt.Errorf("%v is not an integer", f)
		}
		if math.Abs(f) >= 1<<64 {
			return 0, false, fmt.Errorf("%v does not fit 64 bits", f)
		}
		return uint64(math.Abs(f)), f < 0, nil
	case KindInt:
		unsigned := v.raw[v.pos()] == 0xcf
		n, err := v.dec.DecodeInt64()
		if n < 0 && !unsigned {
			return -uint64(n), true, err
		}
		return uint64(n), false, err
	default:
		return 0, false, unexpected("an integer", kind)
	}
}

func (v *values) int64() (int64, error) {
	magnitude, negative, err := v.integer()
	switch {
	case err != nil:
		return 0, err
	case negative && magnitude > 1<<63:
		return 0, fmt.Errorf("-%d is too small (at least %d)", magnitude, int64(math.MinInt64))
	case negative:
		return -int64(magnitude), nil
	case magnitude > math.MaxInt64:
		return 0, fmt.Errorf("%d is too large (at most %d)", magnitude, int64(math.MaxInt64))
	}
	return int64(magnitude), nil
}

func (v *values) uint64() (uint64, error) {
	magnitude, negative, err := v.integer()
	if err == nil && negative {
		return 0, fmt.Errorf("-%d is negative", magnitude)
	}
	return magnitude, err
}

func (v *values) bool() (bool, error) {
	if kind := v.kind(); kind != KindBool {
		return false, unexpected("a boolean", kind)
	}
	return v.dec.DecodeBool()
}

// bytes reads a string or binary data as a slice of the message.
func (v *values) bytes() ([]byte, error) {
	if kind := v.kind(); kind != KindString && kind != KindBinary {
		return nil, unexpected("a string", kind)
	}
	n, err := v.dec.DecodeBytesLen()
	if err != nil {
		return nil, err
	}
	from := v.pos()
	v.seek(from + n)
	return v.raw[from : from+n : from+n], nil
}

func (v *values) arrayLen() (int, error) {
	if kind := v.kind(); kind != KindArray {
		return 0, unexpected("an array", kind)
	}
	return v.dec.DecodeArrayLen()
}

func (v *values) mapLen() (int, error) {
	if kind := v.kind(); kind != KindMap {
		return 0, unexpected("a map", kind)
	}
	return v.dec.DecodeMapLen()
}

// bytesOfNext passes over one value of any kind and returns its bytes. The
// library's own Skip would copy, and keep, a buffer as large as the value.
func (v *values) bytesOfNext() ([]byte, error) {
	from := v.pos()
	// The size of the whole message has been checked already.
	skim := Splitter{limit: math.MaxInt32, anyValue: true}
	n, err := skim.Scan(v.raw[from:])
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, unexpected("a value", KindNone)
	}
	v.seek(from + n)
	return v.raw[from : from+n : from+n], nil
}

func unexpected(want string, got Kind) error {
	return fmt.Errorf("want %s, got %v", want, got)
}
