package snowflake

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ParseID parses an ID in any spelling: decimal, hexadecimal after 0x, or external. A
// text that could be a number or an external ID is a number: one external ID in 10^9
// has only digits, and two in 10^8 are 0x and nine hexadecimal digits. Errors do not
// repeat s.
func ParseID(s string, codec Codec) (ID, error) {
	digits, base := s, 10
	if hex, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	switch {
	case err == nil && n>>ValueBits == 0:
		return ID(n), nil
	case err == nil:
		return 0, errors.New("no ID: its reserve bit is set")
	case errors.Is(err, strconv.ErrRange) || (base == 16 && len(s) != ExternalLen): // an external ID may begin with 0x
		return 0, errors.New("no ID: it is no number of at most 63 bits")
	case len(s) != ExternalLen:
		return 0, fmt.Errorf("neither decimal, nor hexadecimal after 0x, nor the %d characters of an external ID: %w",
			ExternalLen, ErrInvalidExternal)
	}
	return codec.Decode(s)
}
