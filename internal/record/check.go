package record

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of a call. A change within them fits into one transaction of every store,
// the smallest of which is etcd's: 128 comparisons, 128 operations and 1.5 MiB.
const (
	MaxKey      = 1024    // bytes of a key or a prefix
	MaxValue    = 1 << 20 // bytes of a value
	MaxHead     = 4096    // bytes of a value in a list
	MaxKeys     = 32      // keys of an Ask
	MaxWrites   = 8       // writes of a Rule
	MaxPage     = 1000    // records of a page
	MaxTermMS   = 400 * 24 * 3600 * 1000
	MaxKeepMS   = MaxTermMS
	maxAllBytes = MaxValue + 1<<18 // bytes of all values of a change
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// checkName returns the fault of a key or a prefix.
func checkName(what, name string, least int) error {
	if len(name) < least || len(name) > MaxKey || !utf8.ValidString(name) {
		return invalid("%s %.100q must be %d to %d bytes of UTF-8", what, name, least, MaxKey)
	}
	if i := strings.IndexByte(name, 0); i >= 0 {
		return invalid("%s %.100q has a NUL at byte %d", what, name, i)
	}
	return nil
}

// Validate says what makes the ask impossible; the error wraps ErrInvalid.
func (a Ask) Validate() error {
	if len(a.Keys) > MaxKeys {
		return invalid("%d keys are asked for, more than %d", len(a.Keys), MaxKeys)
	}
	for i, key := range a.Keys {
		if err := checkName("key", key, 1); err != nil {
			return err
		}
		if slices.Contains(a.Keys[:i], key) {
			return invalid("key %q is asked for twice", key)
		}
	}
	return nil
}

// Longest is the longest GrantMS of a write.
func (a Area) Longest() int64 { return cmp.Or(a.MaxGrantMS, MaxTermMS) }

// Checked is the rule with an error in place of writes that the ask or the area does not allow,
// or that break a limit. The error wraps ErrInvalid.
func (a Area) Checked(ask Ask, rule Rule) Rule {
	return func(v View) ([]Write, error) {
		writes, err := rule(v)
		if err == nil {
			err = a.validateWrites(ask, writes)
		}
		if err != nil {
			return nil, err
		}
		return writes, nil
	}
}

func (a Area) validateWrites(ask Ask, writes []Write) error {
	if len(writes) > MaxWrites {
		return invalid("the rule has %d writes, more than %d", len(writes), MaxWrites)
	}
	total := 0
	for i, w := range writes {
		if !slices.Contains(ask.Keys, w.Key) {
			return invalid("the rule writes %q, which was not asked for", w.Key)
		}
		if slices.ContainsFunc(writes[:i], func(before Write) bool { return before.Key == w.Key }) {
			return invalid("the rule writes %q twice", w.Key)
		}
		if err := w.validate(); err != nil {
			return err
		}
		if w.GrantMS > a.Longest() {
			return invalid("the write of %q grants something for %d ms, longer than %d ms, the longest in its area", w.Key, w.GrantMS, a.Longest())
		}
		total += len(w.Value)
	}
	if total > maxAllBytes {
		return invalid("the values of all writes have %d bytes, more than %d", total, maxAllBytes)
	}
	return nil
}

func (w Write) validate() error {
	if w.Value == nil && (w.TermMS != 0 || w.KeepMS != 0 || w.GrantMS != 0) {
		return invalid("the deletion of %q has a term or a grant", w.Key)
	}
	if len(w.Value) > MaxValue {
		return invalid("the value of %q has %d bytes, more than %d", w.Key, len(w.Value), MaxValue)
	}
	if longest := max(w.TermMS, w.KeepMS); min(w.TermMS, w.KeepMS, w.GrantMS, w.Mark) < 0 || longest > MaxTermMS {
		return invalid("the write of %q has a term of %d ms, kept %d ms longer, a grant of %d ms, and the mark %d; they must not be negative, nor the times more than %d ms",
			w.Key, w.TermMS, w.KeepMS, w.GrantMS, w.Mark, int64(MaxTermMS))
	}
	return nil
}

// ValidatePage returns the fault of the arguments of Store.List; the error wraps ErrInvalid.
func ValidatePage(prefix, after string, limit int) error {
	if err := checkName("prefix", prefix, 1); err != nil {
		return err
	}
	if err := checkName("the key before the page", after, 0); err != nil {
		return err
	}
	if limit < 1 || limit > MaxPage {
		return invalid("a page of %d records was asked for; it must be 1 to %d", limit, MaxPage)
	}
	return nil
}

// ValidatePrefix returns the fault of the prefix of Store.Watch; the error wraps ErrInvalid.
func ValidatePrefix(prefix string) error { return checkName("prefix", prefix, 1) }

// EndOf is the first name in the order of bytes that comes after all with the prefix.
func EndOf(prefix string) string {
	// A last byte that is one greater would do, but may make no UTF-8, which PostgreSQL refuses.
	prefix = strings.TrimRight(prefix, string(utf8.MaxRune))
	last, size := utf8.DecodeLastRuneInString(prefix)
	if size == 0 {
		return strings.Repeat(string(utf8.MaxRune), MaxKey/utf8.UTFMax+1) // after every name
	}
	if last++; !utf8.ValidRune(last) {
		last = afterSurrogates
	}
	return prefix[:len(prefix)-size] + string(last)
}

// afterSurrogates is the first rune after the gap in UTF-8.
const afterSurrogates = 0xe000

// HeadOf returns the part of a record that a list shows.
func HeadOf(key string, r Record) Head {
	r.Value = r.Value[:min(len(r.Value), MaxHead)]
	return Head{key, r}
}

// WithTerm is the record with a term that ends at endMS, 0 for none, by the store's own
// clock.
func WithTerm(value []byte, endMS, nowMS int64) Record {
	return Record{Value: value, Over: endMS != 0 && endMS <= nowMS, EndMS: endMS, LeftMS: max(0, endMS-nowMS)}
}
