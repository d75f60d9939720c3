package msgpack

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// AppendUint appends an integer: in one byte if it is small, else in nine.
func AppendUint(b []byte, n uint64) []byte {
	if n < 0x80 {
		return append(b, byte(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
}

// AppendInt appends an integer.
func AppendInt(b []byte, n int64) []byte {
	if n >= 0 {
		return AppendUint(b, uint64(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
}

// appendHead appends the head of a value of n bytes or elements: of one byte for fewer than
// most, else of code and 4 bytes.
func appendHead(b []byte, n int, fixed byte, most int, code byte) []byte {
	if n < most {
		return append(b, fixed|byte(n))
	}
	return binary.BigEndian.AppendUint32(append(b, code), uint32(n))
}

// AppendString appends a string.
func AppendString(b []byte, s string) []byte {
	return append(appendHead(b, len(s), 0xa0, 32, 0xdb), s...)
}

// AppendArray appends the head of an array of n values.
func AppendArray(b []byte, n int) []byte { return appendHead(b, n, 0x90, 16, 0xdd) }

// AppendMap appends the head of a map of n pairs.
func AppendMap(b []byte, n int) []byte { return appendHead(b, n, 0x80, 16, 0xdf) }

// AppendBool appends a bool.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 0xc3)
	}
	return append(b, 0xc2)
}

// Append appends any value. Structs and other types become what encoding/json makes of
// them.
func Append(b []byte, value any) (_ []byte, err error) {
	switch v := value.(type) {
	case nil:
		return append(b, 0xc0), nil
	case bool:
		return AppendBool(b, v), nil
	case int:
		return AppendInt(b, int64(v)), nil
	case int64:
		return AppendInt(b, v), nil
	case uint64:
		return AppendUint(b, v), nil
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v)), nil
	case string:
		return AppendString(b, v), nil
	case []byte:
		return append(appendHead(b, len(v), 0, 0, 0xc6), v...), nil
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return AppendInt(b, n), nil
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return AppendUint(b, n), nil
		}
		f, err := v.Float64()
		if err != nil {
			return b, err
		}
		return Append(b, f)
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
