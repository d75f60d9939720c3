package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/address"
	"github.com/kazahana/kazahana/internal/didyoumean"
)

// The parsers turn the text of one setting into its type. Their errors continue a
// sentence that begins with the value: `"5" has no unit: ...`.

// longestDuration is far beyond any sensible setting; it catches slips of a unit
// before they overflow.
const longestDuration = 365 * 24 * time.Hour

func parseText(text string) (string, error) { return text, nil }

// orNone makes the word none stand for the zero value.
func orNone[T any](parse func(string) (T, error)) func(string) (T, error) {
	return func(text string) (T, error) {
		if text == none {
			var zero T
			return zero, nil
		}
		return parse(text)
	}
}

// wholeNumber accepts decimal numbers only: YAML readers disagree on whether a
// leading zero means octal.
func wholeNumber(text string, lowest, highest int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	outside := errors.Is(err, strconv.ErrRange)
	switch {
	case err != nil && !outside, strconv.FormatInt(n, 10) != text && !outside:
		return 0, fmt.Errorf("is not a whole number: write one from %d to %d", lowest, highest)
	case outside, n < lowest, n > highest:
		return 0, fmt.Errorf("is out of range: write a whole number from %d to %d", lowest, highest)
	}
	return n, nil
}

// byteSize accepts 0, and whole numbers of bytes, KiB, MiB or GiB from lowest up.
func byteSize(text string, lowest int64) (int64, error) {
	number, unit := text, int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB"} {
		if before, found := strings.CutSuffix(text, suffix); found {
			number, unit = strings.TrimSpace(before), 1<<(10*(i+1))
		}
	}
	n, err := wholeNumber(number, 0, maxBytes/unit)
	switch size := n * unit; {
	case err != nil:
		return 0, errors.New("is not a size: write 0, or a whole number and KiB, MiB or GiB, for example 256MiB")
	case size != 0 && size < lowest:
		return 0, fmt.Errorf("is too little: the least is %dMiB", lowest>>20)
	default:
		return size, nil
	}
}

// maxBytes is more than any machine has.
const maxBytes = 1 << 50

// parseNumericID accepts a user or group ID. The largest number is not one: system
// calls use it for "unchanged".
func parseNumericID(text string) (uint32, error) {
	n, err := wholeNumber(text, 0, math.MaxUint32-1)
	if err != nil {
		return 0, fmt.Errorf("is not a numeric ID: write one from 0 to %d (id NAME shows it)", math.MaxUint32-1)
	}
	return uint32(n), nil
}

var plainNumber = regexp.MustCompile(`^[+-]?[0-9][0-9._]*$`)

// duration accepts Go durations from lowest to highest, and a plain 0 if that is in range.
func duration(text string, lowest, highest time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil && plainNumber.MatchString(text):
		return 0, fmt.Errorf("has no unit: write %ss or %sms, for example", text, text)
	case err != nil:
		return 0, errors.New("is not a duration: write a number and a unit, for example 500ms, 5s or 2m")
	case d < lowest:
		return 0, fmt.Errorf("is too short: the least is %s", lowest)
	case d > highest:
		return 0, fmt.Errorf("is too long: the most is %s", highest)
	}
	return d, nil
}

// parseBackward parses a duration that may be negative, for a wait without limit.
// Only the sign counts then, so -1 needs no unit.
func parseBackward(text string) (time.Duration, error) {
	if text == "-1" {
		return -1, nil
	}
	if strings.HasPrefix(text, "-") && plainNumber.MatchString(text) {
		return 0, errors.New("has no unit: write -1 to wait without limit")
	}
	return duration(text, -longestDuration, longestDuration)
}

// parseWord accepts a word of a list.
func parseWord(text string, f *flag) (string, error) {
	words := f.words()
	if slices.Contains(words, text) {
		return text, nil
	}
	hint := ""
	if near := didyoumean.Name(text, words); near != "" {
		hint = ": did you mean " + near + "?"
	}
	return "", fmt.Errorf("is none of %s%s", strings.Join(words, ", "), hint)
}

func parseSwitch(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "yes", "on", "1":
		return true, nil
	case "false", "no", "off", "0":
		return false, nil
	}
	return false, errors.New("is neither true nor false")
}

// parseMode accepts file permissions as chmod does, always octal: YAML readers
// disagree on what 0660 is, so its text is taken.
func parseMode(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "0o"), 8, 32)
	switch {
	case err != nil:
		return 0, errors.New("is not an octal mode: write for example 0660")
	case n > 0o777:
		return 0, errors.New("is more than permissions: write a mode up to 0777")
	case n&0o200 == 0:
		return 0, errors.New("leaves its owner no write permission, without which no client can connect: write for example 0660")
	}
	return fs.FileMode(n), nil
}

// PlacementClient is the authority of a host that only resolves.
const PlacementClient = "client"

func parseAuthority(text string) (string, error) {
	if text == PlacementClient {
		return text, nil
	}
	host, port, ok := splitAddress(text)
	if !ok || host == "" || port == 0 || len(text) > maxAuthority || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("is not an authority: write HOST:PORT, by which other hosts reach this one's processes, or client, or none")
	}
	return text, nil
}

// maxAuthority is the maximum length of an authority in bytes.
const maxAuthority = 255

// parseAddress accepts HOST:PORT and unix:PATH, and normalises the latter. The word none is none,
// unless the key has a default. The error shows the key's example.
func parseAddress(text string, f *flag) (string, error) {
	if text == none && !f.hasDefault() {
		return "", nil
	}
	if strings.HasPrefix(text, "unix:") {
		path, err := address.Parse(text)
		return "unix:" + path, err
	}
	if _, _, ok := splitAddress(text); !ok {
		return "", fmt.Errorf("is not an address: write HOST:PORT, for example %s, or unix:PATH", f.tag.Get("example"))
	}
	return text, nil
}

// splitAddress reads HOST:PORT, where a host with colons is in brackets.
func splitAddress(text string) (host string, port int64, ok bool) {
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 || strings.ContainsAny(text, "/ @") {
		return "", 0, false
	}
	host = text[:colon]
	bracketed := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	if !bracketed && strings.ContainsAny(host, ":[]") {
		return "", 0, false
	}
	port, err := wholeNumber(text[colon+1:], 0, 65535)
	return host, port, err == nil
}

// parseProvider checks only the form of a provider URL. Opening it checks the rest.
func parseProvider(text string) (string, error) {
	if !schemeStart.MatchString(text) {
		return "", errors.New(`is not a provider URL, which begins with a word and a colon: sqlite:PATH, static:ID, "none:" (YAML needs these quotes)`)
	}
	return text, nil
}

var serviceName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func parseServiceName(text string) (string, error) {
	if !serviceName.MatchString(text) {
		return "", errors.New("is not a service name: write 1 to 64 letters, digits, dots, dashes and underscores")
	}
	return text, nil
}

// parseEpoch accepts the instant at which timestamps start.
func parseEpoch(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil:
		return t, errors.New("is not a time: write RFC 3339, for example 2026-01-01T00:00:00Z")
	case t.UnixMilli() < 0:
		return t, errors.New("is before 1970")
	case t.Nanosecond()%int(time.Millisecond) != 0:
		return t, errors.New("is finer than a millisecond, and IDs are not")
	}
	return t.UTC(), nil
}

// longestTerm is the longest term and quarantine that a provider accepts.
const longestTerm = 366 * 24 * time.Hour

var idRange = regexp.MustCompile(`^[0-9]{1,10}-[0-9]{1,10}$`)

func parseRange(text string) (string, error) {
	if !idRange.MatchString(text) {
		return "", errors.New("is not a range of machine IDs: write LOW-HIGH, for example 0-999")
	}
	return text, nil
}

// parseStore accepts a URL, or none.
func parseStore(text string) (string, error) {
	if text == none || text == none+":" {
		return none, nil
	}
	if !schemeStart.MatchString(text) {
		return "", errors.New("is not the URL of a store, for example sqlite:PATH or redis://HOST:6379/0, nor none")
	}
	return text, nil
}
