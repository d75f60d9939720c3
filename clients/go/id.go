package kazahana

import (
	"bytes"
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// An ID is a 64-bit identifier, unique and sortable by its time. It is never negative, so a
// signed 64-bit column sorts IDs by time.
//
// As text it is decimal. In JSON it is a string: readers that have only floats would round
// a number.
type ID int64

// ParseID reads an ID in decimal, or in hexadecimal with 0x.
func ParseID(s string) (ID, error) {
	digits, base := s, 10
	if hex, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 63)
	if err != nil {
		return 0, invalid(ErrInvalidParams, "%.40q is not an ID: write decimal, or hexadecimal with 0x, with at most 63 bits", s)
	}
	return ID(n), nil
}

// String returns the ID in decimal.
func (id ID) String() string { return strconv.FormatInt(int64(id), 10) }

// Time returns the ID's time, to the millisecond. The layout must be the ID's.
func (id ID) Time(layout Layout) time.Time {
	return time.UnixMilli(layout.unixMS(id)).UTC()
}

// MarshalText writes the ID in decimal; encoding/json makes a string of it.
func (id ID) MarshalText() ([]byte, error) { return strconv.AppendInt(nil, int64(id), 10), nil }

// UnmarshalText reads the same texts as ParseID.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseID(string(text))
	return err
}

// UnmarshalJSON reads a string, as MarshalText writes it, or an integer.
func (id *ID) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	return id.UnmarshalText(bytes.Trim(text, `"`))
}

// Value stores the ID in a database as a 64-bit integer.
func (id ID) Value() (driver.Value, error) { return int64(id), nil }

// Scan reads a column of integers or of decimal text. For a nullable column use
// sql.Null[ID].
func (id *ID) Scan(column any) error {
	switch v := column.(type) {
	case int64:
		if v < 0 {
			return invalid(ErrInvalidParams, "%d is not an ID: it is negative", v)
		}
		*id = ID(v)
		return nil
	case string, uint64: // MySQL's BIGINT UNSIGNED is a uint64
		return id.UnmarshalText(fmt.Append(nil, v))
	case []byte:
		return id.UnmarshalText(v)
	}
	return fmt.Errorf("kazahana: cannot read an ID from a column of type %T", column)
}
