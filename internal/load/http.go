package load

import (
	"bytes"
	"fmt"
	"strings"
)

// httpGetter asks for one ID by HTTP, and keeps the connection.
type httpGetter struct{ last int64 }

const (
	httpRequest = "GET /id HTTP/1.1\r\nHost: x\r\n\r\n"
	httpHead    = "HTTP/1.1 200 OK\r\n"
	httpLength  = "\r\nContent-Length: "
)

func (*httpGetter) appendRequest(b []byte, _ uint32) []byte { return append(b, httpRequest...) }

func (d *httpGetter) take(b []byte, number uint32) (int, error) {
	if n, err := literal(b, httpHead, number); n == 0 || err != nil {
		return 0, err
	}
	head, body, found := bytes.Cut(b, []byte("\r\n\r\n"))
	if !found {
		return 0, nil
	}
	_, length, found := strings.Cut(string(head)+"\r\n", httpLength)
	size, n, err := decimal([]byte(length))
	if !found || n == 0 || err != nil {
		return 0, fmt.Errorf("request %d was answered without a length: %q", number, head)
	}
	if int64(len(body)) < size {
		return 0, nil
	}
	id, n, err := decimal(append(bytes.Clone(body[:size]), "\r\n"...))
	if err != nil || int64(n) != size+2 {
		return 0, fmt.Errorf("request %d was answered with a body that is no ID: %q", number, body[:min(size, 60)])
	}
	if id <= d.last {
		return 0, fmt.Errorf("request %d was answered with ID %d, which is not above the one before it, %d", number, id, d.last)
	}
	d.last = id
	return len(head) + len("\r\n\r\n") + int(size), nil
}
