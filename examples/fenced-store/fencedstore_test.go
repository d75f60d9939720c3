package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	patience = await.Patience
	// term of the locks: B waits for the end of A's.
	term = time.Second
)

// The test binary plays the writers: with writerEnv set it is one, and the value
// is what it adds.
const writerEnv = "FENCEDTEST_WRITER"

// programs has what TestMain built, and kazahanad is the daemon: the one that KAZAHANAD
// names, or one of these.
var programs, kazahanad string

func TestMain(m *testing.M) {
	if what := os.Getenv(writerEnv); what != "" {
		if err := write(what); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kz-fenced-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	if ring.IsFast() {
		return m.Run()
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-tags", "grpcnotrace", "-o", dir+string(filepath.Separator), ".")
	if kazahanad = os.Getenv("KAZAHANAD"); kazahanad == "" {
		kazahanad = filepath.Join(dir, "kazahanad")
		build.Args = append(build.Args, "../../cmd/kazahanad")
	}
	out, err := build.CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// write is a writer as most are written: it takes the lock, reads, thinks, and
// writes what it has read and added to. It thinks until it reads a line.
func write(what string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	token := os.Getenv("KAZAHANA_FENCING_TOKEN") // set where kazahanad lock runs it
	if token == "" {
		conn, err := net.Dial("unix", os.Getenv("KAZAHANA_SOCKET"))
		if err != nil {
			return err
		}
		daemon := wire.NewClient(conn)
		defer daemon.Close()
		var l struct {
			FencingToken int64 `json:"fencing_token"`
		}
		err = daemon.Call(ctx, "Lock.Acquire", &l, "notes", map[string]any{
			"ttl_ms": term.Milliseconds(), "wait_ms": patience.Milliseconds(),
		})
		if err != nil {
			return err
		}
		token = strconv.FormatInt(l.FencingToken, 10)
	}
	value, err := visit(ctx, http.MethodGet, token, "")
	if err != nil {
		return err
	}
	fmt.Printf("token %s read %q\n", token, value)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	if _, err := visit(ctx, http.MethodPut, token, strings.TrimSpace(value+" "+what)); err != nil {
		return err
	}
	fmt.Println("written")
	return nil
}

// visit uses the store at FENCEDTEST_STORE.
func visit(ctx context.Context, method, token, body string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, os.Getenv("FENCEDTEST_STORE")+"/notes", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("Fencing-Token", token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	return string(text), err
}

// process is one that the test has started.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // of its standard output; closed at its end
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	in, err := cmd.StdinPipe()
	must.Succeed(t, err)
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	log := &bytes.Buffer{}
	cmd.Stderr, cmd.SysProcAttr = log, ring.DieWithParent(syscall.SIGKILL, nil)
	must.Succeed(t, cmd.Start())
	p := &process{t: t, cmd: cmd, in: in, lines: make(chan string, 100)}
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range p.lines {
		}
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%v said:\n%s", cmd.Args, log)
		}
	})
	return p
}

// line is the next line that it writes.
func (p *process) line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("%v has ended", p.cmd.Args)
		}
		return line
	case <-time.After(patience):
		p.t.Fatalf("%v says nothing", p.cmd.Args)
	}
	return ""
}

func (p *process) wantLine(want string) {
	p.t.Helper()
	if line := p.line(); line != want {
		p.t.Fatalf("%v said %q, want %q", p.cmd.Args, line, want)
	}
}

func (p *process) goOn() { _, _ = io.WriteString(p.in, "go on\n") }

// stop stops it, and returns when it has been stopped.
func (p *process) stop() {
	p.t.Helper()
	must.Succeed(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || !status.Stopped() {
			p.t.Fatalf("it has not stopped: %v, %v", status, err)
		}
		return
	}
}

// scene is a daemon and a store with the value "first".
type scene struct {
	t   *testing.T
	env []string
}

func newScene(t *testing.T, check bool) *scene {
	t.Helper()
	ring.All(t)
	dir, err := os.MkdirTemp("", "kz-")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "d.sock")
	start(t, exec.Command(kazahanad, "serve", "--config", "none", "--socket", socket, "--state-dir", filepath.Join(dir, "state")))
	await.Success(t, "the daemon listens", func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	store := start(t, exec.Command(filepath.Join(programs, "fenced-store"), "-listen", "127.0.0.1:0", fmt.Sprintf("-check=%v", check)))
	t.Setenv("FENCEDTEST_STORE", store.line())
	s := &scene{t: t, env: append(os.Environ(), "KAZAHANA_SOCKET="+socket)}
	s.visit(http.MethodPut, 0, "first")
	return s
}

func (s *scene) visit(method string, token int64, body string) string {
	s.t.Helper()
	value, err := visit(s.t.Context(), method, strconv.FormatInt(token, 10), body)
	must.Succeed(s.t, err)
	return value
}

// writer starts one that adds what it is called, by a command in front of it.
func (s *scene) writer(what string, before ...string) *process {
	s.t.Helper()
	argv := append(before, os.Args[0])
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(s.env, writerEnv+"="+what)
	return start(s.t, cmd)
}

// A is stopped past its term, B takes over, and A wakes. A late write is refused even if
// the new holder has only read so far: else what that writes would not have A's part.
func TestLateWriter(t *testing.T) {
	const old = "the fencing token 1 is old: another client came with 2"
	for _, test := range []struct {
		name          string
		check, writes bool   // B does before A wakes
		late          string // the end of A's write
		value         string
	}{
		{"without the check B's update is lost", false, true, "written", "first A"},
		{"with the check A is refused", true, true, old, "first B"},
		{"also if B has only read", true, false, old, "first B"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(t, test.check)
			a := s.writer("A")
			a.wantLine(`token 1 read "first"`)
			a.stop()
			a.goOn() // which it finds when it wakes
			b := s.writer("B")
			b.wantLine(`token 2 read "first"`)
			wake := func() {
				_ = a.cmd.Process.Signal(syscall.SIGCONT)
				a.wantLine(test.late)
			}
			if !test.writes {
				wake()
			}
			b.goOn()
			b.wantLine("written")
			if value := s.visit(http.MethodGet, 2, ""); value != "first B" {
				t.Fatalf("after B the value is %q", value)
			}
			if test.writes {
				wake()
			}
			if value := s.visit(http.MethodGet, 2, ""); value != test.value {
				t.Errorf("in the end the value is %q, want %q", value, test.value)
			}
		})
	}
}

// Under kazahanad lock a program finds its token in the environment.
func TestWriterUnderLock(t *testing.T) {
	s := newScene(t, true)
	for i, what := range []string{"A", "B"} {
		w := s.writer(what, kazahanad, "lock", "notes", "--wait", "1m", "--")
		w.wantLine(fmt.Sprintf("token %d read %q", i+1, []string{"first", "first A"}[i]))
		w.goOn()
		w.wantLine("written")
	}
	if value := s.visit(http.MethodGet, 2, ""); value != "first A B" {
		t.Errorf("in the end the value is %q", value)
	}
}

func TestStoreWantsAToken(t *testing.T) {
	newScene(t, true)
	if _, err := visit(t.Context(), http.MethodPut, "", "x"); err == nil || !strings.Contains(err.Error(), "Fencing-Token") {
		t.Errorf("without a token: %v", err)
	}
}
