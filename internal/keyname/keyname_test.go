package keyname

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for name, want := range map[string]string{
		"orders/42":             "",
		"a b":                   "",
		"風花":                    "",
		"naïve":                 "",
		strings.Repeat("x", 16): "",
		"":                      "has 0 bytes: 1 to 16 are right",
		strings.Repeat("x", 17): "has 17 bytes",
		"a\xff":                 "is not UTF-8",
		"a\n":                   "control character U+000A at byte 1",
		"a\x7f":                 "control character U+007F",
		"pay\u200broll":         "invisible character U+200B at byte 3", // zero-width space
		"a\u200db":              "invisible character U+200D",           // zero-width joiner
		"\ufeffa":               "invisible character U+FEFF",
		"a\u202eb":              "invisible character U+202E", // right-to-left override
		"a\u2066b":              "invisible character U+2066", // left-to-right isolate
		"a\u00a0b":              "invisible character U+00A0", // no-break space
		"a\u2028b":              "invisible character U+2028",
		"a\ufe0f":               "invisible character U+FE0F", // variation selector
		"a\u180b":               "invisible character U+180B",
		"a\u034f":               "invisible character U+034F",  // combining grapheme joiner
		"\u3164":                "invisible character U+3164",  // Hangul filler
		"a\u2800b":              "invisible character U+2800",  // blank Braille
		"\U000e0041":            "invisible character U+E0041", // tag
	} {
		err := Check(name, 16)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// A form has all characters of its ranges, no others, and its two lengths.
func TestForm(t *testing.T) {
	f := NewForm(2, 4, "acZZ--")
	for name, want := range map[string]bool{
		"ab": true, "ac-Z": true, "--": true, "": false, "a": false, "abcab": false, "ad": false, "aY": false, "a\x00": false, "a.": false, "aé": false, "a\xff": false,
	} {
		if f.Matches(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
	for c := range 256 {
		name := string([]byte{byte(c)})
		if want := strings.Contains("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-", name); Tenant.Matches(name) != want {
			t.Errorf("tenant %q: %v", name, !want)
		}
		if want := c > ' ' && c < 0x7f; RequestID.Matches(name) != want {
			t.Errorf("request ID %q: %v", name, !want)
		}
	}
}

// A kept request ID is short, and tells request IDs apart.
func TestKeptRequestID(t *testing.T) {
	long := strings.Repeat("r", MaxRequestID)
	kept := map[string]string{}
	for _, id := range []string{"r", "0123456789abcdef", "0123456789abcdef0", long, long[1:], NewRequestID(), NewRequestID(), MarkedRequestID("m", "r"), MarkedRequestID("n", "r")} {
		k := KeptRequestID(id)
		if len(id) <= MaxKept && k != id || len(id) > MaxKept && (len(k) != MaxKept || k != KeptRequestID(id)) || !RequestID.Matches(id) {
			t.Errorf("%q is kept as %q", id, k)
		}
		if other, ok := kept[k]; ok {
			t.Errorf("%q and %q are kept alike", id, other)
		}
		kept[k] = id
	}
}
