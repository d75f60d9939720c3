package state

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// The test binary plays other processes: with childEnv set it runs one of the
// functions below on the directories in childDirEnv and childLiveEnv, and no test.
const (
	childEnv     = "KAZAHANA_STATE_TEST_CHILD"
	childDirEnv  = "KAZAHANA_STATE_TEST_DIR"
	childLiveEnv = "KAZAHANA_STATE_TEST_LIVE"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		if err := childModes[mode](place{os.Getenv(childDirEnv), os.Getenv(childLiveEnv)}); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	await.Main(m)
}

var childModes = map[string]func(place) error{
	"hold": childHold,
	"try":  childTry,
	"busy": childBusy,
}

// childHold keeps the directories until its standard input ends.
func childHold(p place) error {
	s, err := p.open()
	if err != nil {
		return err
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	return s.Close()
}

// childTry opens the directories and makes a service.
func childTry(p place) error {
	s, err := p.open()
	if err != nil {
		return err
	}
	if _, err := s.Service("default"); err != nil {
		return err
	}
	return s.Close()
}

// childBusy raises the mark and saves without end, reports each value once it
// would survive a kill -9, and has the disk follow beside that.
func childBusy(p place) error {
	s, err := p.open()
	if err != nil {
		return err
	}
	sv, err := s.Service("default")
	if err != nil {
		return err
	}
	go func() {
		for {
			_ = s.Sync()
		}
	}()
	for v := sv.Mark() + 1; ; v++ {
		sv.RaiseMark(v)
		if err := sv.Save(savedWith(testLease(1, v))); err != nil {
			return err
		}
		if err := report(v); err != nil {
			return err
		}
	}
}

func report(v int64) error {
	_, err := os.Stdout.Write(binary.NativeEndian.AppendUint64(nil, uint64(v)))
	return err
}

// child is a running child process.
type child struct {
	*exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func startChild(t *testing.T, mode string, p place, credential *syscall.Credential) *child {
	t.Helper()
	ring.All(t)
	path, err := os.Executable()
	must.Succeed(t, err)
	if credential != nil {
		path = "/proc/self/exe" // go test's own directory is closed to other users
	}
	cmd := exec.Command(path)
	// GORACE: under the race detector a process sleeps for a second at its end.
	cmd.Env = append(os.Environ(), childEnv+"="+mode, childDirEnv+"="+p.dir, childLiveEnv+"="+p.live, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must.Succeed(t, err)
	stdout, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &child{Cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout)}
}

// ready waits until the child has the directories.
func (c *child) ready(t *testing.T) {
	t.Helper()
	if line, err := c.stdout.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
}

// kill ends the child with SIGKILL and returns its last reports.
func (c *child) kill(t *testing.T) []byte {
	t.Helper()
	must.Succeed(t, c.Process.Signal(syscall.SIGKILL))
	rest, err := io.ReadAll(c.stdout)
	must.Succeed(t, err)
	if err := c.Wait(); !strings.Contains(fmt.Sprint(err), "killed") {
		t.Fatalf("the child was to be killed, and ended with: %v %s", err, rest)
	}
	return rest
}

func runChild(t *testing.T, mode string, p place, user *syscall.Credential) string {
	t.Helper()
	c := startChild(t, mode, p, user)
	said, err := io.ReadAll(c.stdout)
	must.Succeed(t, err)
	_ = c.Wait() // its reports tell how it ended
	return string(said)
}

// place is where one daemon keeps its state.
type place struct{ dir, live string }

func (p place) options() Options {
	opts := optionsOf("machine a", "boot a")
	opts.Live = p.live
	return opts
}

func (p place) open() (*State, error) { return Open(context.Background(), p.dir, p.options()) }

func optionsOf(machine, boot string) Options {
	return Options{Identity: func() Identity { return Identity{MachineID: machine, BootID: boot} }}
}

func (p place) disk(name string) string { return filepath.Join(p.dir, name) }

// folder is where the live state is that goes with the state file.
func (p place) folder(t testing.TB) string {
	t.Helper()
	return p.inspect(t).Live
}

func (p place) inspect(t testing.TB) Report {
	t.Helper()
	report, err := Inspect(p.dir, p.options())
	must.Succeed(t, err)
	return report
}

// newPlace names a state directory and a live directory that are not there yet.
func newPlace(t testing.TB) place {
	t.Helper()
	return place{filepath.Join(t.TempDir(), "state"), filepath.Join(disktest.Memory(t), "live")}
}

// inMemory names both, in memory, for tests that write thousands of times.
func inMemory(t testing.TB) place {
	t.Helper()
	root := disktest.Memory(t)
	return place{filepath.Join(root, "state"), filepath.Join(root, "live")}
}

var testTimeline = snowflake.DefaultTimeline()

func testLease(id, created int64) lease.Lease {
	return lease.Lease{
		ID: id, Created: created, Expired: created + 600_000, ReservedUntil: created + 1_200_000,
		Secret: fmt.Sprintf("secret-%d-%d", id, created), EpochMS: snowflake.DefaultEpochMS,
		BitReserve: 1, BitTS: 41, BitID: 14, BitSeq: 8,
	}
}

func savedWith(held ...lease.Lease) Saved {
	return Saved{Held: held, Timeline: testTimeline, Source: SourceLease}
}

// testState is a State that keeps its log and errors.
type testState struct {
	*State
	t    testing.TB
	logs *observer.ObservedLogs

	mu     sync.Mutex
	failed int // calls of OnError
}

// mustOpen opens the place, and closes it at the end of the test.
func mustOpen(t testing.TB, p place, changes ...func(*Options)) *testState {
	t.Helper()
	s, err := tryOpen(t, p, changes...)
	must.Succeed(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func tryOpen(t testing.TB, p place, changes ...func(*Options)) (_ *testState, err error) {
	t.Helper()
	s := &testState{t: t}
	opts := s.options(p)
	for _, change := range changes {
		change(&opts)
	}
	s.State, err = Open(context.Background(), p.dir, opts)
	return s, err
}

func (s *testState) options(p place) Options {
	core, logs := observer.New(zapcore.InfoLevel)
	s.logs = logs
	opts := p.options()
	opts.Log = zap.New(core)
	opts.OnError = func() { s.mu.Lock(); defer s.mu.Unlock(); s.failed++ }
	return opts
}

func (s *testState) service(name string) *Service {
	s.t.Helper()
	sv, err := s.Service(name)
	must.Succeed(s.t, err)
	return sv
}

// said is everything that was logged at that level or above, a line each.
func (s *testState) said(level zapcore.Level) string {
	var b strings.Builder
	for _, e := range s.logs.All() {
		if e.Level >= level {
			fmt.Fprintln(&b, e.Level, e.Message, e.ContextMap())
		}
	}
	return b.String()
}

func (s *testState) wantSaid(level zapcore.Level, text string) {
	s.t.Helper()
	if said := s.said(level); !strings.Contains(said, text) {
		s.t.Errorf("the log does not say %q:\n%s", text, said)
	}
}

// wantQuiet checks that there was nothing to complain of.
func (s *testState) wantQuiet() {
	s.t.Helper()
	if said := s.said(zap.WarnLevel); said != "" {
		s.t.Errorf("the log says:\n%s", said)
	}
}

// crash ends the life of the State as a kill -9 does: nothing is written any more,
// the locks are gone.
func (s *testState) crash() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.State.mu.Lock()
	defer s.State.mu.Unlock()
	s.closed = true
	must.Succeed(s.t, errors.Join(s.closeLive(), s.disk.Close()))
}

// openWaiting opens the place in the background, and returns once it waits for a
// process that is dying.
func openWaiting(t *testing.T, p place) (s *testState, opened <-chan error) {
	t.Helper()
	s = &testState{t: t}
	opts, done := s.options(p), make(chan error, 1)
	go func() {
		var err error
		s.State, err = Open(t.Context(), p.dir, opts)
		done <- err
	}()
	await.Eventually(t, "the log says what it waits for", func() bool {
		return strings.Contains(s.said(zap.WarnLevel), "a process that was killed and has not ended holds the live state")
	})
	return s, done
}

func wantLoads(t testing.TB, sv *Service, want Saved) {
	t.Helper()
	if got := sv.Load(); !reflect.DeepEqual(got, want) {
		t.Errorf("Load gives\n%+v, want\n%+v", got, want)
	}
}

func wantState(t testing.TB, sv *Service, want Saved, mark int64) {
	t.Helper()
	wantLoads(t, sv, want)
	if got := sv.Mark(); got != mark {
		t.Errorf("Mark is %d, want %d", got, mark)
	}
}

func mustSave(t testing.TB, sv *Service, saved Saved) {
	t.Helper()
	must.Succeed(t, sv.Save(saved))
}

func mustClose(t testing.TB, s *testState) {
	t.Helper()
	must.Succeed(t, s.Close())
}

const (
	testMark = int64(1_800_000_000_000)
	resetTo  = int64(1_700_000_000_000)
)

// usedPlace makes a place of a killed daemon, where the service "default" has leases, a cached one
// for fallback IDs, and a mark.
func usedPlace(t testing.TB) (p place, saved Saved) {
	t.Helper()
	p = newPlace(t)
	s := mustOpen(t, p)
	sv := s.service("default")
	cached := testLease(5, 500)
	saved = savedWith(testLease(3, 1000), testLease(9, 2000))
	saved.Cached, saved.Offered = &cached, &snowflake.Timeline{EpochMS: 5, BitTS: 42}
	mustSave(t, sv, saved)
	sv.RaiseMark(testMark)
	must.Succeed(t, s.Sync())
	s.crash()
	return p, saved
}

// change edits a file in place.
func change(t testing.TB, path string, edit func([]byte) []byte) {
	t.Helper()
	content, err := os.ReadFile(path)
	must.Succeed(t, err)
	content = edit(content)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	must.Succeed(t, err)
	_, err = f.Write(content)
	must.Succeed(t, errors.Join(err, f.Close()))
}

func poke(offset int, value ...byte) func([]byte) []byte {
	return func(b []byte) []byte { copy(b[offset:], value); return b }
}

func cut(size int) func([]byte) []byte { return func(b []byte) []byte { return b[:size] } }

func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	disktest.Run(t, "cp", "-a", from, to)
	return to
}

func glob(t testing.TB, dir, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	must.Succeed(t, err)
	return paths
}

func contentsOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	contents := map[string]string{}
	for _, path := range glob(t, dir, "*") {
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			continue
		}
		content, err := os.ReadFile(path)
		must.Succeed(t, err)
		contents[filepath.Base(path)] = string(content)
	}
	return contents
}

func wantFileError(t testing.TB, err error, path, text string) {
	t.Helper()
	var e *FileError
	switch {
	case !errors.As(err, &e):
		t.Errorf("error is %v, want a FileError about %s", err, path)
	case e.Path != path || e.Remedy == "" || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n"):
		t.Errorf("error is %q, want one line about %s with %q and a remedy", err, path, text)
	}
}
