// Package msgpack reads and writes the part of MessagePack that the daemon uses: all of it
// but extension types, floats of 32 bits, integers above 2^63-1, and maps with other keys
// than strings.
package msgpack

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// appendHead appends the head of a value of n bytes or elements: of one byte for fewer than
// most, else of code and 4 bytes.
func appendHead(b []byte, n int, fixed byte, most int, code byte) []byte {
	if n < most {
		return append(b, fixed|byte(n))
	}
	return binary.BigEndian.AppendUint32(append(b, code), uint32(n))
}

// AppendArray appends the head of an array of n values.
func AppendArray(b []byte, n int) []byte { return appendHead(b, n, 0x90, 16, 0xdd) }

// AppendMap appends the head of a map of n pairs.
func AppendMap(b []byte, n int) []byte { return appendHead(b, n, 0x80, 16, 0xdf) }

// AppendString appends a string.
func AppendString(b []byte, s string) []byte {
	return append(appendHead(b, len(s), 0xa0, 32, 0xdb), s...)
}

// AppendInt appends an integer: in one byte if it is small, else in nine.
func AppendInt(b []byte, n int64) []byte {
	switch {
	case n >= 0 && n < 0x80:
		return append(b, byte(n))
	case n < 0:
		return append64(b, 0xd3, uint64(n))
	}
	return append64(b, 0xcf, uint64(n))
}

func append64(b []byte, code byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, code), n)
}

// Append appends any value. Structs and other types become what encoding/json makes of
// them.
func Append(b []byte, value any) (_ []byte, err error) {
	switch v := value.(type) {
	case nil:
		return append(b, 0xc0), nil
	case bool:
		if v {
			return append(b, 0xc3), nil
		}
		return append(b, 0xc2), nil
	case int:
		return AppendInt(b, int64(v)), nil
	case int64:
		return AppendInt(b, v), nil
	case float64:
		return append64(b, 0xcb, math.Float64bits(v)), nil
	case string:
		return AppendString(b, v), nil
	case []byte:
		return append(appendHead(b, len(v), 0, 0, 0xc6), v...), nil
	case []any:
		b = AppendArray(b, len(v))
		for i := 0; i < len(v) && err == nil; i++ {
			b, err = Append(b, v[i])
		}
		return b, err
	case map[string]any:
		b = AppendMap(b, len(v))
		for key, one := range v {
			if b, err = Append(AppendString(b, key), one); err != nil {
				return b, err
			}
		}
		return b, nil
	case json.Number:
		n, err := v.Int64()
		if err == nil || errors.Is(err, strconv.ErrRange) {
			return AppendInt(b, n), err
		}
		f, err := v.Float64()
		return append64(b, 0xcb, math.Float64bits(f)), err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return b, fmt.Errorf("encode %T: %w", value, err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var plain any
	if err := d.Decode(&plain); err != nil {
		return b, err
	}
	return Append(b, plain)
}
