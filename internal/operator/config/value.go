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
	key     string   // full name, for example services.orders.fallback
	name    string   // last part of key
	where   string   // "--fallback", "KAZAHANA_FALLBACK", "FILE line 3"; "" for a default
	kind    kind     //
	text    string   // scalar
	repeats []string // scalar: every occurrence of a flag that was given more than once
	members []value  // list or mapping
}

// errorf names the key and the place in front of the message.
func (v value) errorf(format string, args ...any) error {
	return fmt.Errorf("%s in %s: %s", quoteName(v.key), v.where, fmt.Sprintf(format, args...))
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
// comma-separated parts of all occurrences of a flag or of a variable. The word none
// alone is the empty list. Any other empty list is refused: for allow_uids it could
// mean every user or no user.
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
	for _, text := range v.occurrences() {
		for part := range strings.SplitSeq(text, ",") {
			one := v
			one.text, one.repeats = strings.TrimSpace(part), nil
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

// occurrences returns every text of a scalar: more than one only for a flag that
// was repeated.
func (v value) occurrences() []string {
	switch {
	case v.kind != scalar:
		return nil
	case len(v.repeats) > 0:
		return v.repeats
	}
	return []string{v.text}
}

// none switches off a key whose default is none.
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
