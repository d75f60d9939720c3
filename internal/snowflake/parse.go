package snowflake

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseID reads an ID in any of its spellings: decimal, hexadecimal after 0x,
// or external. Eleven digits could be either a decimal or an external ID; they
// are taken as decimal: of external IDs about one in 10^9 has digits alone.
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
		return 0, fmt.Errorf("%s is no ID: its reserve bit is set", s)
	case base == 16 || (s != "" && strings.Trim(s, "0123456789") == ""):
		return 0, fmt.Errorf("%q is no ID: it is no number of at most 63 bits", s)
	}
	return codec.Decode(s)
}
