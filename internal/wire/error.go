package wire

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Code names what went wrong. Codes are part of the public contract.
type Code string

// The codes that methods may give.
const (
	CodeClockBackward     Code = "CLOCK_BACKWARD"
	CodeLeaseAcquisition  Code = "LEASE_ACQUISITION"
	CodeNoProvider        Code = "NO_PROVIDER"
	CodeTimeout           Code = "TIMEOUT"
	CodeTimestampOverflow Code = "TIMESTAMP_OVERFLOW"
	CodeUnknownService    Code = "UNKNOWN_SERVICE"
	CodeUnknownMethod     Code = "UNKNOWN_METHOD"
	CodeInvalidParams     Code = "INVALID_PARAMS"
	CodeInvalidExternalID Code = "INVALID_EXTERNAL_ID"
	CodePermissionDenied  Code = "PERMISSION_DENIED"
	CodeOverloaded        Code = "OVERLOADED"
	CodeShuttingDown      Code = "SHUTTING_DOWN"
	CodeStartFailed       Code = "START_FAILED"
	CodeParseError        Code = "PARSE_ERROR"
	CodeRequestIDReused   Code = "REQUEST_ID_REUSED"
	CodeStoreUnavailable  Code = "STORE_UNAVAILABLE"
	CodeStoreFull         Code = "STORE_FULL"
	CodeLockHeld          Code = "LOCK_HELD"
	CodeLockNotOwned      Code = "LOCK_NOT_OWNED"
	CodeLockExpired       Code = "LOCK_EXPIRED"
	CodeLockNotFound      Code = "LOCK_NOT_FOUND"
	CodeLockFenced        Code = "LOCK_FENCED"
	CodeSequenceExhausted Code = "SEQUENCE_EXHAUSTED"
	CodeSequenceFenced    Code = "SEQUENCE_FENCED"
	CodePlacementNotReady Code = "PLACEMENT_NOT_READY"
	CodePlacementPending  Code = "PLACEMENT_PENDING"
	CodePlacementUnserved Code = "PLACEMENT_UNSERVED"
	CodeActivationFailed  Code = "ACTIVATION_FAILED"
	CodeActivationEnded   Code = "ACTIVATION_ENDED"
)

// ErrorKind is the first element of an error on the wire.
type ErrorKind uint8

// The kinds of errors.
const (
	Failed       ErrorKind = 0 // the request was right, and it failed
	WrongRequest ErrorKind = 1 // the same request will fail again
)

// Kind returns the kind that errors with this code have.
func (c Code) Kind() ErrorKind {
	switch c {
	case CodeUnknownService, CodeUnknownMethod, CodeInvalidParams, CodeInvalidExternalID, CodeParseError, CodeRequestIDReused:
		return WrongRequest
	}
	return Failed
}

// An Error is an error as the wire carries it: [kind, text]. Its text is
//
//	CODE: message key=value key="another value"
//
// A code is upper-case letters, digits and underscores; a key the same in
// lower case. A value is bare, or quoted as a Go string if it is empty or
// contains a space, a quote, an equals sign or something unprintable. The
// details are the longest tail of the text that consists of such words. A message that
// could be read as details gets a space after each equals sign.
type Error struct {
	Kind    ErrorKind
	Code    Code   // empty if the peer is not a kazahana daemon
	Message string // one line
	Details []Detail
}

// A Detail is a fact about an error, for programs.
type Detail struct{ Key, Value string }

// Errorf returns an Error with the kind that belongs to the code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Kind: code.Kind(), Code: code, Message: fmt.Sprintf(format, args...)}
}

// With adds a detail and returns e. It panics if the key has other characters than
// lower-case letters, digits and underscores.
func (e *Error) With(key string, value any) *Error {
	if !isWord(key, 'a', 'z') {
		panic("wire: bad key of a detail: " + key)
	}
	e.Details = append(e.Details, Detail{Key: key, Value: fmt.Sprint(value)})
	return e
}

// Detail returns the value of the first detail with that key.
func (e *Error) Detail(key string) (string, bool) {
	for _, d := range e.Details {
		if d.Key == key {
			return d.Value, true
		}
	}
	return "", false
}

// Is reports whether target is an *Error with the same code, so that
// errors.Is(err, &Error{Code: CodeTimeout}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Error returns the text form.
func (e *Error) Error() string {
	message := oneLine(e.Message)
	if _, details := splitDetails(message); len(details) > 0 || strings.Contains(message, `="`) {
		message = strings.TrimSpace(strings.ReplaceAll(message, "=", "= "))
	}
	var words []string
	if e.Code != "" {
		words = append(words, string(e.Code)+":")
	}
	if message != "" {
		words = append(words, message)
	}
	for _, d := range e.Details {
		value := d.Value
		if needsQuotes(value) {
			value = strconv.Quote(value)
		}
		words = append(words, d.Key+"="+value)
	}
	return strings.Join(words, " ")
}

// ParseErrorText reads the text form. Text that is not in that form becomes the
// message of an Error without a code.
func ParseErrorText(kind ErrorKind, text string) *Error {
	e := &Error{Kind: kind}
	if code, rest, ok := strings.Cut(text, ":"); ok && isWord(code, 'A', 'Z') && (rest == "" || rest[0] == ' ') {
		e.Code = Code(code)
		text = strings.TrimPrefix(rest, " ")
	}
	e.Message, e.Details = splitDetails(text)
	return e
}

// splitDetails cuts off the longest tail that consists of details only. It
// passes over the text once.
func splitDetails(text string) (string, []Detail) {
	var details []Detail
	begin := len(text) // of the present run of details
	for at := 0; at < len(text); {
		d, n := cutDetail(text[at:])
		if n > 0 {
			if len(details) == 0 {
				begin = at
			}
			details = append(details, d)
			at += n + 1
			continue
		}
		details, begin = nil, len(text)
		space := strings.IndexByte(text[at:], ' ')
		if space < 0 {
			break
		}
		at += space + 1
	}
	if len(details) == 0 {
		return text, nil
	}
	return strings.TrimSuffix(text[:begin], " "), details
}

// cutDetail reads the detail at the beginning of s, up to a space or the end,
// and returns how long it is, or 0.
func cutDetail(s string) (Detail, int) {
	equals := strings.IndexAny(s, "= ")
	if equals < 0 || s[equals] != '=' || !isWord(s[:equals], 'a', 'z') {
		return Detail{}, 0
	}
	d, rest := Detail{Key: s[:equals]}, s[equals+1:]
	if !strings.HasPrefix(rest, `"`) {
		end := strings.IndexByte(rest, ' ')
		if end < 0 {
			end = len(rest)
		}
		d.Value = rest[:end]
		if end == 0 {
			return Detail{}, 0
		}
		return d, equals + 1 + end
	}
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil || (len(quoted) < len(rest) && rest[len(quoted)] != ' ') {
		return Detail{}, 0
	}
	if d.Value, err = strconv.Unquote(quoted); err != nil {
		return Detail{}, 0
	}
	return d, equals + 1 + len(quoted)
}

// isWord reports whether s begins with a letter of the range, and goes on with
// such letters, digits and underscores.
func isWord(s string, low, high byte) bool {
	for i := range len(s) {
		letter := low <= s[i] && s[i] <= high
		if !letter && (i == 0 || s[i] != '_' && (s[i] < '0' || s[i] > '9')) {
			return false
		}
	}
	return s != ""
}

func needsQuotes(value string) bool {
	return value == "" || !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool {
		return r == '"' || r == '=' || !unicode.IsGraphic(r) || unicode.IsSpace(r)
	})
}

// oneLine makes a message one line of printable text.
func oneLine(message string) string {
	message = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(message, "\uFFFD"))
	return strings.TrimSpace(message)
}

// Excerpt quotes what a peer sent for use in a message, cut off if it is long.
func Excerpt(b []byte) string {
	const longest = 64
	if len(b) > longest {
		return strconv.Quote(string(b[:longest])) + "..."
	}
	return strconv.Quote(string(b))
}
