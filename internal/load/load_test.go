//go:build linux

package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// asSubMode makes the test binary behave as the program: the load generator
// must have a process to itself, because its system calls stop the runtime.
const asSubMode = "BENCH_AS_SUB_MODE"

func TestMain(m *testing.M) {
	if os.Getenv(asSubMode) != "" {
		if err := putInProcess(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func putInProcess(options string) error {
	var o Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	result, err := Put(context.Background(), o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// ask puts load on a server, from a process of its own that dies with the test's
// goroutine.
func ask(t *testing.T, o Options) (result Result, err error) {
	t.Helper()
	self, err := os.Executable()
	must.Succeed(t, err)
	t.Setenv(asSubMode, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // or each process takes a second longer
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	options, err := json.Marshal(o)
	must.Succeed(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, string(options))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return result, fmt.Errorf("%s (%w)", errs.String(), err)
	}
	return result, json.Unmarshal(out, &result)
}

// listen serves connections with serve until the test is over.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	must.Succeed(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return path
}

// serveEcho sends back what comes.
func serveEcho(conn net.Conn) { _, _ = io.Copy(conn, conn) }

func TestLoadOnEcho(t *testing.T) {
	ring.All(t)
	request, answer := EchoSizes(100)
	sized := func(conn net.Conn) {
		b := make([]byte, answer)
		for {
			if _, err := io.ReadFull(conn, b[:request]); err != nil {
				return
			}
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}
	for name, c := range map[string]struct {
		serve   func(net.Conn)
		options Options
	}{
		"one":       {serveEcho, Options{Count: 1, Connections: 1, Depth: 1}},
		"many":      {serveEcho, Options{Count: 1, Connections: 5, Depth: 1}},
		"pipelined": {serveEcho, Options{Count: 1, Connections: 1, Depth: 64}},
		"both":      {serveEcho, Options{Count: 1, Connections: 5, Depth: 7}},
		"batches":   {sized, Options{Count: 100, Connections: 1, Depth: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.options
			o.Socket, o.Dialect, o.Warmup, o.Duration = listen(t, c.serve), Echo, time.Millisecond, 300*time.Millisecond
			result, err := ask(t, o)
			must.Succeed(t, err)
			if result.Requests < 1 || result.Requests%int64(o.Depth) != 0 || result.Elapsed <= 0 || result.P50 <= 0 ||
				result.P90 < result.P50 || result.P99 < result.P90 || result.P999 < result.P99 || result.Max < result.P999 {
				t.Errorf("result %+v", result)
			}
		})
	}
}

// TestLoadRefusesWrongServers: a server that answers wrongly, too much or not
// at all ends the measurement with an error that says so.
func TestLoadRefusesWrongServers(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(net.Conn)
		want  string
	}{
		"echo":     {serveEcho, "something else than what was asked for"},
		"hangs up": {func(conn net.Conn) { _, _ = conn.Read(make([]byte, 100)) }, "closed the connection"},
		"too much": {func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 100))
			_, _ = conn.Write(append(answer(firstNumber, 7), 0x94))
			_, _ = conn.Read(make([]byte, 100))
		}, "more than it was asked for"},
		"same ID": {func(conn net.Conn) {
			for number := uint32(firstNumber); ; number++ {
				if _, err := conn.Read(make([]byte, 100)); err != nil {
					return
				}
				_, _ = conn.Write(answer(number, 7))
			}
		}, "not above the one before it"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Socket: listen(t, c.serve), Dialect: RPC, Count: 1, Connections: 1, Depth: 1, Duration: time.Second}
			_, err := ask(t, o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestSilentServer(t *testing.T) {
	path := listen(t, func(conn net.Conn) {
		for {
			if _, err := conn.Read(make([]byte, 100)); err != nil {
				return
			}
		}
	})
	for _, connections := range []int{1, 3} {
		o := Options{
			Socket: path, Dialect: Echo, Count: 1, Connections: connections, Depth: 1,
			Duration: time.Second, Timeout: 100 * time.Millisecond,
		}
		if _, err := ask(t, o); err == nil || !strings.Contains(err.Error(), errSilent.Error()) {
			t.Errorf("%d connections: %v", connections, err)
		}
	}
}
