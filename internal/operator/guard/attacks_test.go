package guard

import (
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// attack is what a connection without a credential does to keep its place.
type attack struct {
	first  string
	flood  string // sent again and again, after first
	unread bool   // it never reads
}

// request1 asks for the root.
const request1 = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

var attacks = map[string]attack{
	"silent":                 {},
	"half a head":            {first: "GET / HTTP/1.1\r\nHost: x\r\nX-A: "},
	"a head without end":     {first: "GET / HTTP/1.1\r\nHost: x\r\n", flood: "X"},
	"kept alive":             {first: request1},
	"a flood of requests":    {first: request1, flood: request1},
	"an answer is not read":  {first: "GET /large HTTP/1.1\r\nHost: x\r\n\r\n", unread: true},
	"answers are not read":   {first: request1, flood: request1, unread: true},
	"a body that never ends": {first: "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"},
}

// attack opens a connection that goes on with the attack until the test's end.
func (s *site) attack(a attack) net.Conn {
	s.Helper()
	c := s.dial()
	var doing sync.WaitGroup
	s.Cleanup(func() {
		_ = c.Close()
		doing.Wait()
	})
	doing.Go(func() {
		_, err := io.WriteString(c, a.first)
		for err == nil && a.flood != "" {
			_, err = io.WriteString(c, a.flood)
		}
	})
	if strings.Contains(a.first, "/large") {
		select {
		case <-s.writing:
		case <-time.After(long):
			s.Error("the connection is not served")
		}
	}
	if !a.unread && a.flood != "" {
		doing.Go(func() { _, _ = io.Copy(io.Discard, c) })
	}
	return c
}
