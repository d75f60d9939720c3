//go:build linux

package ids

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/suite"
	"github.com/kazahana/kazahana/internal/load"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// asSubMode makes the test binary behave as the program.
const asSubMode = "BENCH_AS_SUB_MODE"

func TestMain(m *testing.M) {
	if os.Getenv(asSubMode) != "" {
		runtime.LockOSThread()
		if err := RunPart(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s%v\n", process.ErrorPrefix, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// newBench is a run without a daemon, on the test's own thread.
func newBench(t *testing.T) *bench {
	t.Helper()
	ring.All(t)
	self, err := os.Executable()
	must.Succeed(t, err)
	t.Setenv(asSubMode, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // or each process takes a second longer
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	return &bench{
		plan: plan{Plan: suite.Plan{Duration: 100 * time.Millisecond}}, launch: process.Launcher{Core: -1, Self: self}, dir: ring.Dir(t), progress: io.Discard,
		absent: map[string]string{}, unmeasured: map[string]string{},
	}
}

// started is a reference of a run.
func started(t *testing.T, r reference) (*bench, *server) {
	t.Helper()
	b := newBench(t)
	if r.program != "" {
		ring.Program(t, r.program)
	}
	s, err := r.start(context.Background(), b)
	if s != nil {
		t.Cleanup(s.service.Stop)
	}
	if errors.As(err, new(absence)) { // katsubushi, which scripts/setup cannot install
		t.Skip(err)
	}
	must.Succeed(t, err)
	return b, s
}

// TestReferences: every reference that this machine has answers rightly, in
// every row that it takes part in.
func TestReferences(t *testing.T) {
	for _, r := range references {
		t.Run(r.name, func(t *testing.T) {
			b, s := started(t, r)
			b.servers = []*server{s}
			for _, w := range workloads {
				if err := b.measureServers(context.Background(), w); err != nil {
					t.Errorf("%s: %v", w.title, err)
				}
			}
		})
	}
}

// TestEchoWithoutRoom: when the client does not read, an echo server keeps what
// it owes, and loses nothing.
func TestEchoWithoutRoom(t *testing.T) {
	for _, r := range references[:2] {
		t.Run(r.name, func(t *testing.T) {
			_, s := started(t, r)
			conn, err := net.Dial("unix", s.socket(workloads[0]))
			must.Succeed(t, err)
			defer conn.Close()
			sent := make([]byte, 4<<20)
			for i := range sent {
				sent[i] = byte(i * 7 >> 3)
			}
			written := make(chan error, 1)
			go func() {
				_, err := conn.Write(sent)
				written <- err
			}()
			// Only now that both sides' buffers are full is anything read.
			select {
			case err := <-written:
				t.Fatalf("the socket took %d bytes, though nobody reads (%v)", len(sent), err)
			case <-time.After(100 * time.Millisecond):
			}
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(conn, got); err != nil {
				t.Fatal(err)
			}
			if err := <-written; err != nil || !bytes.Equal(sent, got) {
				t.Errorf("what came back is not what was sent (%v)", err)
			}
		})
	}
}

// TestEchoSizes: a request that comes in pieces is answered once, at its end.
func TestEchoSizes(t *testing.T) {
	const count = 100
	for _, r := range references[:2] {
		t.Run(r.name, func(t *testing.T) {
			_, s := started(t, r)
			conn, err := net.Dial("unix", s.socket(workload{count: count}))
			must.Succeed(t, err)
			defer conn.Close()
			size, answer := load.EchoSizes(count)
			for round := range 2 {
				want := make([]byte, answer)
				for i := range size {
					want[i] = byte(round + i + 1)
					if _, err := conn.Write(want[i : i+1]); err != nil {
						t.Fatal(err)
					}
				}
				got := make([]byte, answer)
				if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("round %d: the answer is % x... (%v)", round, got[:size], err)
				}
			}
		})
	}
}

func TestHold(t *testing.T) {
	b := newBench(t)
	accepted := make(chan net.Conn, 10)
	path := filepath.Join(b.dir, "s")
	l, err := net.Listen("unix", path)
	must.Succeed(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	holder, err := b.launch.Launch(filepath.Join(b.dir, "hold.log"), b.launch.Self,
		arguments("hold", load.Options{Socket: path, Dialect: load.Echo, Count: 1, Connections: 3})...)
	must.Succeed(t, err)
	defer holder.Stop()
	err = holder.Await(context.Background(), time.Minute, func(context.Context) error {
		if !holder.Said(held + "\n") {
			return errors.New("nothing is held")
		}
		return nil
	})
	if err != nil || len(accepted) != 3 {
		t.Errorf("%d connections, %v", len(accepted), err)
	}
}

func TestEchoArguments(t *testing.T) {
	want := echoSocket{path: "/a,b", request: 17, answer: 909}
	if got, err := parseEchoSocket(want.argument()); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, wrong := range []string{"", "1,2", "x,2,/s", "1,x,/s", "2,1,/s", "-1,1,/s"} {
		if got, err := parseEchoSocket(wrong); err == nil {
			t.Errorf("%q is %+v", wrong, got)
		}
	}
}
