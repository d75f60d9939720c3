package snowflake

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestParseExternalLikeHex: one external ID in 2,048 begins with 0x or 0X.
func TestParseExternalLikeHex(t *testing.T) {
	c, met := Codec{}, 0
	for id := ID(1 << 60); met < 20; id++ {
		text := c.Encode(id)
		if !strings.HasPrefix(strings.ToLower(text), "0x") {
			continue
		}
		met++
		if got, err := ParseID(text, c); err != nil || got != id {
			t.Errorf("%s is read as %d, %v; it is %d", text, got, err, id)
		}
	}
}

func TestParseID(t *testing.T) {
	for text, want := range map[string]ID{
		"0": 0, "1": 1, "12345678901": 12345678901, "9223372036854775807": 1<<63 - 1,
		"0x0": 0, "0X7fffffffffffffff": 1<<63 - 1, "0x123456789": 0x123456789,
	} {
		if got, err := ParseID(text, Codec{}); err != nil || got != want {
			t.Errorf("%q is read as %d, %v; want %d", text, got, err, want)
		}
	}
	external := map[string]bool{"": true, "x": true, "AAAAAAAAAA*": true, "+1": true, "-1": true, "1_000": true, "0x12345678*": true}
	for _, text := range []string{
		"", "x", "+1", "-1", "1_000", "AAAAAAAAAA*", "0x12345678*",
		"0x", "0xzz", "0x-1", "9223372036854775808", "18446744073709551616", "0x8000000000000000", "0x10000000000000000",
	} {
		got, err := ParseID(text, Codec{})
		if err == nil || errors.Is(err, ErrInvalidExternal) != external[text] {
			t.Errorf("%q is read as %d, %v", text, got, err)
		}
		if err != nil && text != "" && strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("the error repeats %q: %v", text, err)
		}
	}
}
