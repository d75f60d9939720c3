package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
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

// Write fails for good once it has failed.
func (o *output) Write(p []byte) (n int, err error) {
	o.written = true
	if o.err == nil {
		n, o.err = o.to.Write(p)
	}
	return n, o.err
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
