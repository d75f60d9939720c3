package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// kind is the shape of a value in its source.
type kind int

const (
	scalar kind = iota
	list
	mapping
)

func (k kind) String() string { return [...]string{"single value", "list", "map"}[k] }

// value is one setting as a source wrote it, before its key gives it a type.
type value struct {
	key     string  // full name, for example services.orders.fallback
	name    string  // last part of key
	where   string  // "KAZAHANA_FALLBACK", "FILE line 3"; "" for a flag or a default
	kind    kind    //
	text    string  // scalar
	members []value // list or mapping
}

// errorf names the key and the place in front of the message, but for a flag: Set names it.
func (v value) errorf(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	switch {
	case v.where != "":
		return fmt.Errorf("%s in %s: %s", quoteName(v.key), v.where, text)
	case strings.ContainsAny(v.key, ".["): // within a flag
		return fmt.Errorf("%s: %s", quoteName(v.key), text)
	}
	return errors.New(text)
}

// refuse reports a value of the right shape that is not valid for its key. The
// reason continues a sentence that begins with the value.
func (v value) refuse(text string, reason error) error {
	return v.errorf("%s %v", quote(text), reason)
}

// scalar returns the text of a single value.
func (v value) scalar() (string, error) {
	if v.kind != scalar {
		return "", v.errorf("it is a %v, and must be a single value", v.kind)
	}
	if err := plain(v.text); err != nil {
		return "", v.refuse(v.text, err)
	}
	return v.text, nil
}

// elements returns the parts of a list: the members of a YAML list, or the
// comma-separated parts of a text. The word none alone is the empty list. Any other
// empty list is refused: for allow_uids it could mean every user or no user.
func (v value) elements() ([]value, error) {
	if v.kind == mapping {
		return nil, v.errorf("it is a map, and must be a list")
	}
	var parts []value
	for _, m := range v.members {
		if _, err := m.scalar(); err != nil {
			return nil, err
		}
		parts = append(parts, m)
	}
	if v.kind == scalar {
		for part := range strings.SplitSeq(v.text, ",") {
			one := v
			one.text = strings.TrimSpace(part)
			if _, err := one.scalar(); err != nil {
				return nil, err
			}
			parts = append(parts, one)
		}
	}
	switch {
	case len(parts) == 0:
		return nil, v.errorf("the list is empty: write none, or leave out the key")
	case len(parts) == 1 && parts[0].text == none:
		return nil, nil
	}
	return parts, nil
}

// entries returns the entries of a map of what, none if the value is none.
func (v value) entries(what string) ([]value, error) {
	if v.kind == scalar {
		text, err := v.scalar()
		switch {
		case err != nil || text == none:
			return nil, err
		case !strings.HasPrefix(text, "{"):
			return nil, v.refuse(text, errors.New("is not a map: write {NAME: {KEY: VALUE}}"))
		}
		if v, err = v.parseFlow(text); err != nil {
			return nil, err
		}
	}
	if v.kind != mapping {
		return nil, v.errorf("it is a %v, and must be a map of %s", v.kind, what)
	}
	return v.members, nil
}

// eachEntry reads a map of maps: check judges the name of an entry, read reads it.
func (v value) eachEntry(what string, check, read func(entry value) error) error {
	members, err := v.entries(what)
	if err != nil {
		return err
	}
	for _, entry := range members {
		if err := check(entry); err != nil {
			return err
		}
		if entry.kind != mapping {
			return entry.errorf("it is a %v, and must be a map of keys; {} changes nothing", entry.kind)
		}
		if err := read(entry); err != nil {
			return err
		}
	}
	return nil
}

// none switches off a key without a default.
const none = "none"

// plain refuses an empty text, which is more likely a mistake than intended, and
// control characters.
func plain(text string) error {
	if text == "" {
		return errors.New("is empty: give it a value, or leave out the key for its default")
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return errors.New("holds a control character (a line break?)")
	}
	return nil
}

// quote formats a value for a message: without passwords, and shortened.
func quote(text string) string {
	const most = 120
	text = Redact(text)
	if len(text) > most {
		return strconv.Quote(strings.ToValidUTF8(text[:most], "")) + "..."
	}
	return strconv.Quote(text)
}

// quoteName formats a name that a user typed, quoted only if necessary.
func quoteName(name string) string {
	if name == "" || len(name) > 80 || strings.ContainsFunc(name, odd) || Redact(name) != name {
		return quote(name)
	}
	return name
}

// quotePath formats the path of a file, which has no secrets.
func quotePath(path string) string {
	if path == "" || strings.ContainsFunc(path, odd) {
		return strconv.Quote(path)
	}
	return path
}

func odd(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) || r == '"' }
