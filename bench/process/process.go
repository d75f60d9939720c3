//go:build linux

// Package process starts processes pinned to a core, never leaves one behind,
// and reads what they use.
package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrorPrefix begins what this program writes when it fails, in every sub-mode.
const ErrorPrefix = "bench: "

// Launcher starts processes on one core.
//
// It must only be used on the main goroutine, which must be locked to its
// thread: children inherit the thread's affinity, and are killed by the kernel
// when the thread that started them ends.
type Launcher struct {
	Core int                 // -1: not pinned
	Self string              // this program
	As   *syscall.Credential // the user; nil: this process's own
}

// Start starts cmd pinned, in a process group of its own, so that a Ctrl-C
// reaches only this process, which then ends the others in order.
func (l Launcher) Start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: l.As}
	if l.Core < 0 {
		return cmd.Start()
	}
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the affinity: %w", err)
	}
	// Set before the start, not after it: a Go program counts its processors
	// when it begins.
	if err := pin(0, l.Core); err != nil {
		return err
	}
	return errors.Join(cmd.Start(), unix.SchedSetaffinity(0, &before))
}

// pin lets a thread run on one core only; 0 is this thread.
func pin(thread, core int) error {
	var pinned unix.CPUSet
	pinned.Set(core)
	if err := unix.SchedSetaffinity(thread, &pinned); err != nil {
		return fmt.Errorf("pin to core %d (another one: -core N; none: -core -1): %w", core, err)
	}
	return nil
}

// Join moves this process to the core, with all its threads and those to come.
func (l Launcher) Join() error {
	if l.Core < 0 {
		return nil
	}
	runtime.GOMAXPROCS(1)
	return eachThread(func(id int) error { return pin(id, l.Core) })
}

// eachThread calls do for each thread of this process. Threads that come later inherit from the
// one that starts them. A thread that has ended meanwhile is no error.
func eachThread(do func(thread int) error) error {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, e := range entries {
		thread, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		if err := do(thread); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// GoFirst gives this process the highest priority, but not its main thread, from which the
// processes that it starts inherit theirs. The runtime makes no threads from a locked one.
func GoFirst() error {
	const highest = -20
	return eachThread(func(id int) error {
		if id == os.Getpid() {
			return nil
		}
		return unix.Setpriority(unix.PRIO_PROCESS, id, highest)
	})
}

// Beside is for processes that should not disturb those that are measured: it
// starts them on another core that this process may use, if there is one.
func (l Launcher) Beside() Launcher {
	var allowed unix.CPUSet
	if l.Core < 0 || unix.SchedGetaffinity(0, &allowed) != nil {
		return l
	}
	for core := range 8 * int(unsafe.Sizeof(allowed)) {
		if core != l.Core && allowed.IsSet(core) {
			return Launcher{Core: core, Self: l.Self}
		}
	}
	return l
}

// Environment is this process's without what would configure a daemon, or the
// runtime of a Go program.
func Environment(more ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "KAZAHANA_") && !strings.HasPrefix(e, "GODEBUG=") {
			env = append(env, e)
		}
	}
	return append(env, more...)
}

// Ask runs a sub-mode of this program to its end and decodes what it prints.
func (l Launcher) Ask(ctx context.Context, limit time.Duration, into any, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no result after %v: the server does not answer", limit))
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, l.Self, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	// Preemption would interrupt the system calls that the load generator
	// waits in, a hundred times a second and for nothing.
	cmd.Env = Environment("GODEBUG=asyncpreemptoff=1")
	if err := l.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s (%w)", strings.TrimPrefix(strings.TrimSpace(errs.String()), ErrorPrefix), err)
	}
	return json.Unmarshal(out.Bytes(), into)
}

// Service is a process that runs until it is stopped.
type Service struct {
	cmd     *exec.Cmd
	logPath string
	ended   chan struct{} // closed when it has ended
	endErr  error         // read after ended
}

// Launch starts a service that logs into a file.
func (l Launcher) Launch(logPath, path string, args ...string) (*Service, error) {
	file, err := os.Create(logPath)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	s := &Service{cmd: exec.Command(path, args...), logPath: logPath, ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = file, file, Environment()
	if err := l.Start(s.cmd); err != nil {
		return nil, err
	}
	go func() {
		s.endErr = s.cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// Stop ends the service at once: nothing that it has is kept.
func (s *Service) Stop() {
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// End asks the service to stop, and waits until it has.
func (s *Service) End(limit time.Duration) error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.ended:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("did not stop within %v; its log ends with:\n%s", limit, s.logTail())
	}
}

// Failure is the error of a service that has ended by itself, else nil. It
// allows for the moment by which others notice that earlier.
func (s *Service) Failure() error {
	const moment = 100 * time.Millisecond
	select {
	case <-s.ended:
		return fmt.Errorf("the server ended by itself (%v); its log ends with:\n%s", s.endErr, s.logTail())
	case <-time.After(moment):
		return nil
	}
}

// PID is its process ID.
func (s *Service) PID() int { return s.cmd.Process.Pid }

// Said reports whether it has written the text.
func (s *Service) Said(text string) bool {
	log, err := os.ReadFile(s.logPath)
	return err == nil && bytes.Contains(log, []byte(text))
}

func (s *Service) logTail() string {
	const most = 2000
	log, err := os.ReadFile(s.logPath)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(log[max(len(log)-most, 0):]))
}

// Await calls ready until it returns nil.
func (s *Service) Await(ctx context.Context, limit time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	const pause = 20 * time.Millisecond
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return s.Failure()
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w; its log ends with:\n%s", limit, err, s.logTail())
		case <-time.After(pause):
		}
	}
}

// FreeAddress is a port of this host that nothing listens on at this moment. It is below
// those that systems choose for connections, which could take it before its server does.
func FreeAddress() (address string, err error) {
	for range 1000 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", err
}
