package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The status that a shell shows for a program that the signal ended. Where SIGPIPE is ignored, a
// command ends in the same way when its reader has gone.
const (
	exitInterrupted = 128 + int(syscall.SIGINT)
	exitTerminated  = 128 + int(syscall.SIGTERM)
	exitPipe        = 128 + int(syscall.SIGPIPE)
)

// output is stdout. It remembers its first failure: a command with incomplete output does not
// succeed, whether or not it looked at each write.
type output struct {
	to      io.Writer
	written bool
	err     error
}

// Write writes all of p, or fails for good.
func (o *output) Write(p []byte) (n int, err error) {
	o.written = true
	for o.err == nil && n < len(p) {
		var more int
		more, o.err = o.to.Write(p[n:])
		n += more
		// Another process that has the same pipe can make it non-blocking at any time.
		if file, ok := o.to.(*os.File); ok && errors.Is(o.err, syscall.EAGAIN) {
			o.err = untilWritable(file)
		}
	}
	return n, o.err
}

// untilWritable waits until the file takes more.
func untilWritable(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var waited error
	err = raw.Control(func(fd uintptr) {
		_, waited = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
	})
	if errors.Is(waited, syscall.EINTR) {
		waited = nil // the next write shows
	}
	return errors.Join(err, waited)
}

// judge returns the outcome of a command that ended with err. Some file systems report
// a failure to write at the close only.
func (o *output) judge(err error) error {
	if file, ok := o.to.(*os.File); ok && o.written && o.err == nil {
		o.err = file.Close()
	}
	switch {
	case o.err == nil, err != nil && !errors.Is(err, o.err):
		return err
	case errors.Is(o.err, syscall.EPIPE):
		return exitStatus{code: exitPipe} // the reader has had enough
	}
	cause := o.err
	if path := (*fs.PathError)(nil); errors.As(cause, &path) {
		cause = path.Err
	}
	return fmt.Errorf("stdout: %w: the output is incomplete", cause)
}
