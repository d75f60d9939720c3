//go:build linux

package ids

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed cecho/epoll_echo.c
var cEchoSource []byte

// compileCEcho leaves the C echo server in dir.
func compileCEcho(ctx context.Context, dir string) (path string, err error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", absence{"there is no gcc (Debian packages gcc and libc6-dev)"}
	}
	source := filepath.Join(dir, "epoll_echo.c")
	if err := os.WriteFile(source, cEchoSource, 0o600); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "epoll_echo")
	said, err := exec.CommandContext(ctx, gcc, "-O2", "-o", path, source).CombinedOutput()
	if strings.Contains(string(said), "No such file or directory") {
		return "", absence{"gcc finds no C library (Debian package libc6-dev)"}
	}
	if err != nil {
		return "", fmt.Errorf("compile the C echo server: %w\n%s", err, said)
	}
	return path, nil
}

func startCEcho(ctx context.Context, b *bench) (*server, error) {
	path, err := compileCEcho(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	return b.startEcho(ctx, &server{name: cEcho,
		note: "C echo: the same in C, gcc -O2, one thread in a level-triggered epoll loop, a read and a write for each event",
	}, "cecho", path)
}
