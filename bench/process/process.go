//go:build linux

// Package process starts processes, never leaves one behind, and reads what they use.
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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrorPrefix begins what this program writes when it fails, in every part of it.
const ErrorPrefix = "bench: "

// Pin puts this program, and all that it will start, on one core: a thread's affinity outlives
// an exec, and all threads of the new program inherit it. A core below 0 changes nothing.
func Pin(core int) error {
	var now, want unix.CPUSet
	if core < 0 {
		return nil
	}
	want.Set(core)
	if err := unix.SchedGetaffinity(0, &now); err != nil {
		return fmt.Errorf("read the affinity: %w", err)
	}
	if now == want {
		return nil
	}
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		return fmt.Errorf("pin to core %d (another one: -core N; none: -core -1): %w", core, err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, os.Environ())
}

// Start starts cmd in a process group of its own, so that a Ctrl-C reaches only this process,
// which then ends the others in order.
//
// It must only be used on the main goroutine, which must be locked to its thread: the kernel
// kills a process when the thread that started it ends.
func Start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd.Start()
}

// startBeside starts cmd on the cores that this process is not pinned to, if there are any: it
// should not disturb the measured processes.
func startBeside(cmd *exec.Cmd) error {
	var own, others unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		return fmt.Errorf("read the affinity: %w", err)
	}
	for core := range 64 * len(others) {
		if !own.IsSet(core) {
			others.Set(core)
		}
	}
	if unix.SchedSetaffinity(0, &others) != nil { // there is none
		return Start(cmd)
	}
	return errors.Join(Start(cmd), unix.SchedSetaffinity(0, &own))
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

// Run runs cmd to its end, or to the end of ctx, and returns its output.
func Run(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if cmd.Env == nil {
		cmd.Env = Environment()
	}
	// Its children are in its process group.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := Start(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s: %s%s (%w)", cmd.Path, out.Bytes(), strings.TrimPrefix(strings.TrimSpace(errs.String()), ErrorPrefix), err)
	}
	return out.Bytes(), nil
}

// Ask runs a part of this program to its end and decodes its output.
func Ask(ctx context.Context, limit time.Duration, into any, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no result after %v: the server does not answer", limit))
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	// Preemption would interrupt the system calls that the load generator
	// waits in, a hundred times a second and for nothing.
	cmd.Env = Environment("GODEBUG=asyncpreemptoff=1")
	said, err := Run(ctx, cmd)
	if err != nil {
		return err
	}
	return json.Unmarshal(said, into)
}

// Service is a process that runs until it is stopped.
type Service struct {
	cmd     *exec.Cmd
	logPath string
	ended   chan struct{} // closed when it has ended
	endErr  error         // read after ended
}

// Launch starts a service that logs into a file.
func Launch(logPath, path string, args ...string) (*Service, error) {
	return launch(Start, logPath, path, args)
}

// LaunchPart starts a part of this program, beside the measured ones.
func LaunchPart(logPath string, args ...string) (*Service, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return launch(startBeside, logPath, self, args)
}

func launch(start func(*exec.Cmd) error, logPath, path string, args []string) (*Service, error) {
	file, err := os.Create(logPath)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	s := &Service{cmd: exec.Command(path, args...), logPath: logPath, ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = file, file, Environment()
	if err := start(s.cmd); err != nil {
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

// Memory is how many bytes of memory are the process's own: no pages of files, which the kernel
// can drop and read again.
func (s *Service) Memory() (own int64, err error) { return memory(s.cmd.Process.Pid) }

func memory(pid int) (own int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &own); n == 1 {
			return own << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no RssAnon", pid)
}

// AwaitWords waits until the service has written the words.
func (s *Service) AwaitWords(ctx context.Context, limit time.Duration, words string) error {
	return s.Await(ctx, limit, func(context.Context) error {
		log, err := os.ReadFile(s.logPath)
		if err == nil && !bytes.Contains(log, []byte(words)) {
			err = fmt.Errorf("it has not said %q", words)
		}
		return err
	})
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

// AwaitListening waits until the service accepts connections at all of the addresses.
func (s *Service) AwaitListening(ctx context.Context, limit time.Duration, network string, addresses ...string) error {
	return s.Await(ctx, limit, func(ctx context.Context) error {
		for _, address := range addresses {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return err
			}
			_ = conn.Close()
		}
		return nil
	})
}

// FreeAddress is a port of this host that nothing listens on at this moment. It is below the
// ports that systems choose for connections, which could take it before its server does.
func FreeAddress() (address string, err error) {
	for range 1000 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", err
}
