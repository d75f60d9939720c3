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
	// With sizes, each request of so many bytes is answered with itself and then zeros, in so
	// many; without, all bytes go back at once.
	request, answer int
}

func (e echoSocket) argument() string { return fmt.Sprintf("%d,%d,%s", e.request, e.answer, e.path) }

func parseEchoSocket(argument string) (echoSocket, error) {
	parts := append(strings.SplitN(argument, ",", 3), "", "", "")
	request, err1 := strconv.Atoi(parts[0])
	answer, err2 := strconv.Atoi(parts[1])
	e := echoSocket{path: parts[2], request: request, answer: answer}
	if err := errors.Join(err1, err2); err != nil || e.path == "" || request < 0 || answer < request {
		return e, fmt.Errorf("echo: %q is not REQUEST-SIZE,ANSWER-SIZE,PATH (%v)", argument, err)
	}
	return e, nil
}

// echoMain is the part echo: the server that anybody would write in Go, a
// goroutine for each connection that reads what comes and writes it back.
func echoMain(args []string) error {
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
		go e.echo(conn)
	}
}

// echo serves one connection. With sizes, its caller awaits an answer before the next request.
func (e echoSocket) echo(conn net.Conn) {
	defer conn.Close()
	const atOnce = 4096 // without sizes
	buf := make([]byte, max(e.answer, atOnce))
	room := buf[:atOnce]
	if e.request > 0 {
		room = buf[:e.request]
	}
	for have := 0; ; {
		n, err := conn.Read(room[have:])
		if err != nil {
			return
		}
		answer := buf[:n]
		if e.request > 0 {
			if have += n; have < e.request {
				continue
			}
			have, answer = 0, buf[:e.answer]
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}
