package load

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// counter speaks RESP to Redis: INCR for a count of 1, else INCRBY. The answer is the
// last of the numbers handed out.
type counter struct {
	count   int64
	request []byte
	last    int64
}

const counterKey = "id"

func newCounter(count int) *counter {
	words := []string{"INCR", counterKey}
	if count > 1 {
		words = []string{"INCRBY", counterKey, strconv.Itoa(count)}
	}
	// Client libraries send an array of strings with lengths.
	request := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		request = fmt.Appendf(request, "$%d\r\n%s\r\n", len(word), word)
	}
	return &counter{count: int64(count), request: request}
}

func (d *counter) appendRequest(b []byte, _ uint32) []byte { return append(b, d.request...) }

// maxInteger is the maximum length of an answer with an integer.
const maxInteger = len(":-9223372036854775808\r\n")

func (d *counter) take(b []byte, number uint32) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if b[0] != ':' {
		return 0, unexpectedLine(b, number)
	}
	value, n, err := decimal(b[1:])
	switch {
	case err != nil || n == 0 && len(b) >= maxInteger:
		return 0, fmt.Errorf("request %d was answered with something else than an integer: %q", number, b[:min(len(b), maxInteger)])
	case n == 0:
		return 0, nil
	case value < d.last+d.count:
		return 0, fmt.Errorf("request %d was answered with %d, and must be with %d or more: the answer before it was %d",
			number, value, d.last+d.count, d.last)
	}
	d.last = value
	return 1 + n, nil
}

var errNoDecimal = errors.New("no decimal number")

// decimal reads a number of at most 18 digits, or 19 that fit, and the end of
// its line. It returns the length of both, or 0 when more bytes are needed.
func decimal(b []byte) (value int64, length int, err error) {
	for i, c := range b {
		switch {
		case '0' <= c && c <= '9':
			if value = value*10 + int64(c-'0'); value < 0 || i >= 19 {
				return 0, 0, errNoDecimal
			}
		case c == '\r' && i > 0:
			if i+1 == len(b) {
				return 0, 0, nil
			}
			if b[i+1] != '\n' {
				return 0, 0, errNoDecimal
			}
			return value, i + 2, nil
		default:
			return 0, 0, errNoDecimal
		}
	}
	return 0, 0, nil
}

// unexpectedLine is the error for an answer with a wrong beginning; nil while its line
// is incomplete.
func unexpectedLine(b []byte, number uint32) error {
	const shown = 100
	line, _, whole := bytes.Cut(b, []byte("\r\n"))
	if !whole && len(b) < shown {
		return nil
	}
	return fmt.Errorf("request %d was answered with something else than what was asked for: %q", number, line[:min(len(line), shown)])
}
