// Package keyname holds the rules for the names that clients choose: one for keys of locks and
// sequences, kinds and identities of actors, and Forms for names in ASCII.
package keyname

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Check returns the fault of a name of 1 to most bytes of UTF-8. Names are shown in logs
// and on terminals, and one name must not look like another. So control characters are
// refused, as are characters without a width or that change the direction of text
// (Unicode's Cf), and every space but the ASCII one.
func Check(name string, most int) error {
	switch {
	case name == "" || len(name) > most:
		return fmt.Errorf("has %d bytes: 1 to %d are right", len(name), most)
	case !utf8.ValidString(name):
		return fmt.Errorf("is not UTF-8")
	}
	for i, r := range name {
		switch {
		case unicode.IsControl(r):
			return fmt.Errorf("has the control character %U at byte %d", r, i)
		case r < utf8.RuneSelf:
		case unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Zs, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point),
			r == '\u2800':
			return fmt.Errorf("has the invisible character %U at byte %d", r, i)
		}
	}
	return nil
}

// Form is the length and the characters of a name in ASCII. Each request is compared with
// some: a regular expression takes ten times as long.
type Form struct {
	least, most int
	has         [utf8.RuneSelf]bool
}

// NewForm is the form of names of least to most characters. The ranges are pairs of
// characters, the first and the last one of each range.
func NewForm(least, most int, ranges string) *Form {
	f := &Form{least: least, most: most}
	for i := 0; i < len(ranges); i += 2 {
		for c := ranges[i]; c <= ranges[i+1]; c++ {
			f.has[c] = true
		}
	}
	return f
}

// Matches reports whether the name has the form.
func (f *Form) Matches(name string) bool {
	if len(name) < f.least || len(name) > f.most {
		return false
	}
	for i := range len(name) {
		if name[i] >= utf8.RuneSelf || !f.has[name[i]] {
			return false
		}
	}
	return true
}

// Forms of names that locks and sequences have in common.
var (
	// Tenant is the form of tenants in stores: 1 to 64 of A-Z a-z 0-9 . _ @ -.
	Tenant = NewForm(1, 64, "AZaz09..__@@--")
	// RequestID is up to MaxRequestID visible characters.
	RequestID = NewForm(1, MaxRequestID, "!~")
)
