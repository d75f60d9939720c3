package ids

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
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
		if err := Parts[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s%v\n", process.ErrorPrefix, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// testBench is a run without a daemon, on the test's own thread.
func testBench(t *testing.T) *bench {
	t.Helper()
	ring.All(t)
	t.Setenv(asSubMode, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // or each process takes a second longer
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	b := newBench()
	b.Run = &suite.Run{Plan: suite.Plan{Duration: 100 * time.Millisecond, Dir: ring.Dir(t)}, Absent: map[string]string{}}
	return b
}

// started is a reference of a run.
func started(t *testing.T, name string) (*bench, *server) {
	t.Helper()
	b := testBench(t)
	all := b.references()
	r := all[slices.IndexFunc(all, func(r reference) bool { return r.name == name })]
	if r.program != "" {
		ring.Program(t, r.program)
	}
	s, err := r.start(t.Context(), b)
	if s != nil && s.service != nil {
		t.Cleanup(s.service.Stop)
	}
	must.Succeed(t, err)
	if s == nil { // katsubushi, which scripts/setup cannot install
		t.Skip(b.Absent[name])
	}
	return b, s
}

// TestReferences: every reference that this machine has answers rightly, in
// every row that it takes part in.
func TestReferences(t *testing.T) {
	for _, name := range []string{goEcho, cEcho, redis, katsubushi} {
		t.Run(name, func(t *testing.T) {
			b, s := started(t, name)
			b.measured(t, s)
		})
	}
}

// measured has a server answer in every row that it takes part in.
func (b *bench) measured(t *testing.T, s *server) {
	t.Helper()
	b.servers = []*server{s}
	for _, w := range workloads {
		if err := b.measureServers(t.Context(), w); err != nil {
			t.Errorf("%s: %v", w.title, err)
		}
		rate, ok := b.Samples.Spread(report.Series{Row: w.key, Subject: s.name, Quantity: w.rate()})
		if takesPart := s.socket(w) != ""; ok != takesPart || takesPart && rate.Median <= 0 {
			t.Errorf("%s: %v", w.title, rate)
		}
	}
}

// TestBefore: another version of the daemon stands beside this one, in every row.
func TestBefore(t *testing.T) {
	b := testBench(t)
	b.before = os.Getenv("KAZAHANAD")
	if b.before == "" {
		b.before = filepath.Join(t.TempDir(), "kazahanad")
		build := exec.Command("go", "build", "-tags", "grpcnotrace,nopgxregisterdefaulttypes", "-o", b.before, "./cmd/kazahanad")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	r := b.references()[0]
	if r.name != before {
		t.Fatalf("beside the daemon stands %s", r.name)
	}
	s, err := r.start(t.Context(), b)
	must.Succeed(t, err)
	t.Cleanup(s.service.Stop)
	b.measured(t, s)
}

// TestEchoWithoutRoom: when the client does not read, an echo server keeps the bytes that it
// owes, and loses nothing.
func TestEchoWithoutRoom(t *testing.T) {
	for _, name := range []string{goEcho, cEcho} {
		t.Run(name, func(t *testing.T) {
			_, s := started(t, name)
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
	for _, name := range []string{goEcho, cEcho} {
		t.Run(name, func(t *testing.T) {
			_, s := started(t, name)
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
	b := testBench(t)
	accepted := make(chan net.Conn, 10)
	path := filepath.Join(b.Dir, "s")
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
	holder, err := process.LaunchPart(filepath.Join(b.Dir, "hold.log"),
		arguments("hold", load.Options{Socket: path, Dialect: load.Echo, Count: 1, Connections: 3})...)
	must.Succeed(t, err)
	defer holder.Stop()
	if err := holder.AwaitWords(t.Context(), time.Minute, held+"\n"); err != nil || len(accepted) != 3 {
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
