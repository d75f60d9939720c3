package load

import (
	"bytes"
	"fmt"
	"strings"
)

// getter speaks memcached's text protocol to katsubushi: one GET for all IDs
// of a request, with a key for each.
type getter struct {
	count   int
	request []byte
	last    int64
}

const (
	getterKey  = "id"
	valueHead  = "VALUE " + getterKey + " 0 " // then the number of digits
	getterTail = "END\r\n"
)

func newGetter(count int) *getter {
	return &getter{count: count, request: []byte("GET" + strings.Repeat(" "+getterKey, count) + "\r\n")}
}

func (d *getter) appendRequest(b []byte, _ uint32) []byte { return append(b, d.request...) }

func (d *getter) take(b []byte, number uint32) (int, error) {
	// An answer to several keys comes in pieces. Wait for the whole: nothing follows
	// it, because such requests are not pipelined.
	if d.count > 1 && bytes.HasPrefix(b, []byte(valueHead)) && !bytes.HasSuffix(b, []byte(getterTail)) {
		return 0, nil
	}
	last, rest := d.last, b
	for i := range d.count {
		id, n, err := value(rest, number)
		if n == 0 || err != nil {
			return 0, err
		}
		if id <= last {
			return 0, fmt.Errorf("request %d was answered with ID %d, which is not above the one before it, %d (%d of %d)", number, id, last, i+1, d.count)
		}
		last, rest = id, rest[n:]
	}
	if n, err := literal(rest, getterTail, number); n == 0 || err != nil {
		return 0, err
	}
	d.last = last
	return len(b) - len(rest) + len(getterTail), nil
}

// value reads one value of an answer: a line with the number of digits, and a
// line with the digits.
func value(b []byte, number uint32) (id int64, length int, err error) {
	head, err := literal(b, valueHead, number)
	if head == 0 || err != nil {
		return 0, 0, err
	}
	digits, sized, err := decimal(b[head:])
	if err != nil {
		return 0, 0, unexpectedLine(b, number)
	}
	if sized == 0 {
		return 0, 0, nil
	}
	id, n, err := decimal(b[head+sized:])
	if err != nil || n > 0 && int64(n) != digits+2 {
		return 0, 0, fmt.Errorf("request %d was answered with a value that is not %d digits: %q", number, digits, b[:min(len(b), 60)])
	}
	if n == 0 {
		return 0, 0, nil
	}
	return id, head + sized + n, nil
}

// literal returns the length of the text that b must begin with, or 0 when more
// bytes are needed.
func literal(b []byte, text string, number uint32) (int, error) {
	if len(b) < len(text) && strings.HasPrefix(text, string(b)) {
		return 0, nil
	}
	if !bytes.HasPrefix(b, []byte(text)) {
		return 0, unexpectedLine(b, number)
	}
	return len(text), nil
}
