package redis

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/certtest"
)

// fake is a server that has one answer to everything but HELLO.
func fake(t *testing.T, answer string) string {
	dir, err := os.MkdirTemp("", "kazahana-fake-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.Sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					command, err := readCommand(in)
					if err != nil {
						return
					}
					text := answer
					if command == "hello" {
						text = "-ERR unknown command"
					}
					if _, err := io.WriteString(c, text+"\r\n"); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); os.RemoveAll(dir) })
	return path
}

// readCommand reads one command, and returns its name.
func readCommand(in *bufio.Reader) (string, error) {
	number := func() int {
		line, _ := in.ReadString('\n')
		n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimLeft(line, "*$")))
		return n
	}
	name := ""
	for i := range number() {
		b := make([]byte, number()+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return "", err
		}
		if i == 0 {
			name = strings.ToLower(strings.TrimSpace(string(b)))
		}
	}
	if name == "" {
		return "", io.EOF
	}
	return name, nil
}

// certificates writes an authority, and a certificate by it for 127.0.0.1.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	authority := certtest.New(t, "test authority")
	cert, key = authority.Issue("redis")
	return authority.File, cert, key
}
