//go:build linux

package ids

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// echoSocket is a socket of the echo server.
type echoSocket struct {
	path string
	// With sizes, each request of so many bytes is answered with so many;
	// without, whatever comes goes back at once.
	request, answer int
}

func (e echoSocket) argument() string { return fmt.Sprintf("%d,%d,%s", e.request, e.answer, e.path) }

func parseEchoSocket(argument string) (e echoSocket, err error) {
	parts := strings.SplitN(argument, ",", 3)
	if len(parts) != 3 {
		return e, fmt.Errorf("echo: %q is not REQUEST-SIZE,ANSWER-SIZE,PATH", argument)
	}
	e.path = parts[2]
	if e.request, err = strconv.Atoi(parts[0]); err != nil {
		return e, fmt.Errorf("echo: %w", err)
	}
	if e.answer, err = strconv.Atoi(parts[1]); err != nil {
		return e, fmt.Errorf("echo: %w", err)
	}
	if e.request < 0 || e.answer < e.request {
		return e, fmt.Errorf("echo: an answer of %d bytes cannot begin with a request of %d", e.answer, e.request)
	}
	return e, nil
}

// echoMain is the sub-mode echo: the server that anybody would write in Go, a
// goroutine for each connection that reads what comes and writes it back.
func echoMain(args []string) error {
	if len(args) == 0 {
		return errors.New("echo: needs a socket")
	}
	failed := make(chan error)
	for _, argument := range args {
		e, err := parseEchoSocket(argument)
		if err != nil {
			return err
		}
		l, err := net.Listen("unix", e.path)
		if err != nil {
			return err
		}
		go func() { failed <- e.serve(l) }()
	}
	return <-failed
}

func (e echoSocket) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if e.request == 0 {
				echoAll(conn)
			} else {
				e.answerAll(conn)
			}
		}()
	}
}

func echoAll(conn net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

// answerAll answers each whole request with itself and then zeros. Its caller
// awaits an answer before the next request.
func (e echoSocket) answerAll(conn net.Conn) {
	buf := make([]byte, e.answer)
	for have := 0; ; {
		n, err := conn.Read(buf[have:e.request])
		if err != nil {
			return
		}
		if have += n; have < e.request {
			continue
		}
		if _, err := conn.Write(buf); err != nil {
			return
		}
		have = 0
	}
}
