// Package keyname holds the one rule for the names that clients choose: keys of locks and
// sequences, kinds and identities of actors.
package keyname

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Check says what is wrong with a name of 1 to most bytes of UTF-8. Names are shown in logs
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
