//go:build linux

package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// asSubMode makes the test binary behave as the program: the load generator
// must have a process to itself, because its system calls stop the runtime.
const asSubMode = "BENCH_AS_SUB_MODE"

func TestMain(m *testing.M) {
	if os.Getenv(asSubMode) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// ask runs a sub-mode on the test's goroutine.
func ask(t *testing.T, limit time.Duration, into any, args ...string) error {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asSubMode, "1")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return launcher{core: -1, self: self}.ask(context.Background(), limit, into, args...)
}

// listen serves connections with serve until the test is over.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
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

func TestLoadOnEcho(t *testing.T) {
	rpc := newRPC(100)
	sized := echoSocket{request: len(rpc.request), answer: rpc.answerSize()}
	for name, c := range map[string]struct {
		serve   func(net.Conn)
		options loadOptions
	}{
		"one":       {echoAll, loadOptions{Count: 1, Connections: 1, Depth: 1}},
		"many":      {echoAll, loadOptions{Count: 1, Connections: 5, Depth: 1}},
		"pipelined": {echoAll, loadOptions{Count: 1, Connections: 1, Depth: 64}},
		"batches":   {sized.answerAll, loadOptions{Count: 100, Connections: 1, Depth: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.options
			o.Socket, o.Dialect, o.Warmup, o.Duration = listen(t, c.serve), dialectEcho, time.Millisecond, 300*time.Millisecond
			var result loadResult
			if err := ask(t, time.Minute, &result, o.arguments()...); err != nil {
				t.Fatal(err)
			}
			if result.Requests < 1 || result.Elapsed <= 0 || result.P50 <= 0 || result.P99 < result.P50 {
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
		"echo":     {echoAll, "something else than what was asked for"},
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
			o := loadOptions{Socket: listen(t, c.serve), Dialect: dialectRPC, Count: 1, Connections: 1, Depth: 1, Duration: time.Second}
			err := ask(t, time.Minute, new(loadResult), o.arguments()...)
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
	o := loadOptions{Socket: path, Dialect: dialectEcho, Count: 1, Connections: 1, Depth: 1, Duration: time.Second}
	err := ask(t, 100*time.Millisecond, new(loadResult), o.arguments()...)
	if err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("error is %v", err)
	}
}
