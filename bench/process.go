//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// launcher starts processes on one core.
//
// It must only be used on the main goroutine, which must be locked to its
// thread: children inherit the thread's affinity, and are killed by the kernel
// when the thread that started them ends.
type launcher struct {
	core int // -1: not pinned
	self string
}

// start starts cmd pinned, in a process group of its own, so that a Ctrl-C
// reaches only this process, which then ends the others in order.
func (l launcher) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if l.core < 0 {
		return cmd.Start()
	}
	var before, pinned unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the affinity: %w", err)
	}
	pinned.Set(l.core)
	// Set before the start, not after it: a Go program counts its processors
	// when it begins.
	if err := unix.SchedSetaffinity(0, &pinned); err != nil {
		return fmt.Errorf("pin to core %d (another one: -core N; none: -core -1): %w", l.core, err)
	}
	return errors.Join(cmd.Start(), unix.SchedSetaffinity(0, &before))
}

// environment is this process's without what would configure a daemon.
func environment(more ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "KAZAHANA_") {
			env = append(env, e)
		}
	}
	return append(env, more...)
}

// ask runs a sub-mode of this program to its end and decodes what it prints.
func (l launcher) ask(ctx context.Context, limit time.Duration, into any, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no result after %v: the server does not answer", limit))
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, l.self, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	// Preemption would interrupt the system calls that the load generator
	// waits in, a hundred times a second and for nothing.
	cmd.Env = environment("GODEBUG=asyncpreemptoff=1")
	if err := l.start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s (%w)", strings.TrimPrefix(strings.TrimSpace(errs.String()), errorPrefix), err)
	}
	return json.Unmarshal(out.Bytes(), into)
}

// service is a process that runs until it is stopped.
type service struct {
	cmd     *exec.Cmd
	logPath string
	ended   chan struct{} // closed when it has ended
	endErr  error         // read after ended
}

// launch starts a service that logs into a file.
func (l launcher) launch(logPath, path string, args ...string) (*service, error) {
	file, err := os.Create(logPath)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	s := &service{cmd: exec.Command(path, args...), logPath: logPath, ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = file, file, environment()
	if err := l.start(s.cmd); err != nil {
		return nil, err
	}
	go func() {
		s.endErr = s.cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// stop ends the service at once: nothing that it has is kept.
func (s *service) stop() {
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// failure is the error of a service that has ended by itself, else nil. It
// allows for the moment by which others notice that earlier.
func (s *service) failure() error {
	const moment = 100 * time.Millisecond
	select {
	case <-s.ended:
		return fmt.Errorf("the server ended by itself (%v); its log ends with:\n%s", s.endErr, s.logTail())
	case <-time.After(moment):
		return nil
	}
}

func (s *service) logTail() string {
	const most = 2000
	log, err := os.ReadFile(s.logPath)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(log[max(len(log)-most, 0):]))
}

// await calls ready until it returns nil.
func (s *service) await(ctx context.Context, limit time.Duration, ready func(context.Context) error) error {
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
			return s.failure()
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w; its log ends with:\n%s", limit, err, s.logTail())
		case <-time.After(pause):
		}
	}
}
