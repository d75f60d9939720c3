//go:build linux

// Package storm has the clients of all languages ask one daemon while it is
// killed and restarted: no caller sees an error, and no ID comes twice.
package storm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/ring"
	"golang.org/x/sys/unix"
)

const (
	// stormEnv is how long the storm lasts; with it, everybody takes part: make
	// storm-clients sets it.
	stormEnv     = "KAZAHANA_STORM_CLIENTS"
	stormDefault = 3 * time.Second
	// childEnv has the test's binary play the asker in Go.
	childEnv = "KZTEST_CHILD"
	// patience is how long anything may take on a busy machine: only a test that
	// fails waits for so long.
	patience     = 60 * time.Second
	pollInterval = 10 * time.Millisecond
	// enough bytes of records show that a process is answered.
	enough = 4096
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	if err := ask(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// asker is a process that asks.
type asker struct {
	language, kind string
	files          int // that it writes: one for each process of a cluster
}

var (
	brief = []asker{{"Python", "threads", 1}, {"Python", "tasks", 1}, {"Node", "cluster", 5}, {"Go", "goroutines", 1}}
	whole = []asker{
		{"Python", "threads", 1}, {"Python", "threads", 1}, {"Python", "threads", 1}, {"Python", "threads", 1}, {"Python", "threads", 1},
		{"Python", "prefetch", 1}, {"Python", "prefetch", 1}, {"Python", "tasks", 1},
		{"Node", "calls", 1}, {"Node", "calls", 1}, {"Node", "prefetch", 1}, {"Node", "cluster", 5},
		{"Go", "goroutines", 1},
	}
)

func TestStorm(t *testing.T) {
	ring.Deep(t)
	askers, lasts, kills := brief, stormDefault, 1
	if text := os.Getenv(stormEnv); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", stormEnv, err)
		}
		askers, kills = whole, 2
	}
	s := newSite(t)
	s.start()
	for i, a := range askers {
		s.launch(a, i)
	}
	for life := range kills + 1 {
		if life > 0 {
			s.kill()
			s.start()
		}
		s.awaitAnswers()
		time.Sleep(lasts / time.Duration(kills+1))
	}
	for _, p := range s.processes {
		p.end(t)
	}
	total := totals{}
	for _, p := range s.processes {
		total.add(t, p)
	}
	total.checkOrder(t)
	n, first := total.duplicates()
	if n > 0 {
		t.Errorf("%d IDs came twice; the first is %d", n, first)
	}
	if total.errors > 0 {
		t.Errorf("%d calls failed", total.errors)
	}
	t.Logf("%d processes, %v, daemon killed and restarted %d times\n%s%d IDs, %d of them twice",
		len(askers), lasts, kills, total.table(), len(total.ids), n)
}

// site is a daemon and those who ask it.
type site struct {
	t         *testing.T
	dir       string // short: a socket's path is limited
	socket    string
	daemon    string // its program
	python    string
	running   *exec.Cmd
	processes []*process
}

func newSite(t *testing.T) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "kz-")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, dir: dir, socket: filepath.Join(dir, "d.sock"), daemon: os.Getenv("KAZAHANAD")}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if s.daemon == "" {
		s.daemon = filepath.Join(dir, "kazahanad")
		s.output("go", "build", "-o", s.daemon, "../../../cmd/kazahanad")
	}
	for _, program := range []string{"python3", "node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the storm needs %s: %v", program, err)
		}
	}
	s.python = s.output("../../../clients/python/scripts/test", "interpreter")
	s.output("../../../clients/node/scripts/test", "build")
	return s
}

// output runs a program to its end, and returns the last line that it prints.
func (s *site) output(program string, args ...string) string {
	s.t.Helper()
	var errs bytes.Buffer
	cmd := exec.CommandContext(s.t.Context(), program, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s%s", program, args, err, out, errs.Bytes())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// dieWithParent: no process outlives the test, however that ends.
var dieWithParent = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

// start runs the daemon, and returns when it accepts connections.
func (s *site) start() {
	s.t.Helper()
	var log bytes.Buffer
	s.running = exec.Command(s.daemon, "serve", "--config", "none", "--socket", s.socket,
		"--state-dir", filepath.Join(s.dir, "state"), "--startup-wait", "30s")
	s.running.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir}
	s.running.Stderr, s.running.SysProcAttr = &log, dieWithParent
	if err := s.running.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.kill)
	eventually(s.t, "the daemon listens", func() bool {
		conn, err := net.Dial("unix", s.socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// kill ends the daemon as a crash would.
func (s *site) kill() {
	if s.running != nil {
		_ = s.running.Process.Kill()
		_ = s.running.Wait()
		s.running = nil
	}
}

// process is an asker that was started.
type process struct {
	asker
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
	path   string // of its first file; the others' begin so
}

func (s *site) launch(a asker, number int) {
	s.t.Helper()
	p := &process{asker: a, path: filepath.Join(s.dir, "ids"+strconv.Itoa(number))}
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	switch a.language {
	case "Python":
		p.cmd = exec.Command(s.python, "asker.py", a.kind, s.socket, p.path)
	case "Node":
		p.cmd = exec.Command("node", "asker.cjs", a.kind, s.socket, p.path)
	case "Go":
		p.cmd = exec.Command(self, s.socket, p.path)
	}
	src, err := filepath.Abs("../../../clients/python/src")
	if err != nil {
		s.t.Fatal(err)
	}
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "PYTHONPATH=" + src, "PYTHONDONTWRITEBYTECODE=1",
		childEnv + "=1", "GORACE=atexit_sleep_ms=0"}
	p.cmd.Stderr, p.cmd.SysProcAttr = &p.stderr, dieWithParent
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	s.processes = append(s.processes, p)
}

// written are the sizes of the files of a process.
func (p *process) written(t *testing.T) map[string]int64 {
	t.Helper()
	files, err := filepath.Glob(p.path + "*")
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int64{}
	for _, file := range files {
		if name := filepath.Base(file); strings.HasPrefix(name, filepath.Base(p.path)+"-") || file == p.path {
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			sizes[file] = info.Size()
		}
	}
	return sizes
}

// awaitAnswers returns when this life of the daemon has answered everybody.
func (s *site) awaitAnswers() {
	s.t.Helper()
	for _, p := range s.processes {
		before := p.written(s.t)
		eventually(s.t, p.language+" "+p.kind+" is answered", func() bool {
			if err := p.cmd.Process.Signal(unix.Signal(0)); err != nil {
				s.t.Fatalf("%s %s has ended: %s", p.language, p.kind, p.stderr.String())
			}
			now := p.written(s.t)
			for file, size := range now {
				if size < before[file]+enough {
					return false
				}
			}
			return len(now) == p.files
		})
	}
}

// end tells the process to finish, and waits until it has.
func (p *process) end(t *testing.T) {
	t.Helper()
	ended := make(chan error, 1)
	_ = p.stdin.Close()
	go func() { ended <- p.cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-time.After(patience):
		err = errors.Join(errors.New("it does not end"), p.cmd.Process.Kill(), <-ended)
	}
	if said := p.stderr.String(); err != nil || said != "" {
		t.Errorf("%s %s: %v\n%.2000s", p.language, p.kind, err, said)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
