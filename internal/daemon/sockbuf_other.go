//go:build !linux

package daemon

import (
	"errors"
	"syscall"
)

// Other systems have no control groups, and small buffers by default.

func setSendBuffer(syscall.Conn, int) {}

func unread(syscall.Conn) int { return 0 }

func shutdown(syscall.Conn) error { return errors.ErrUnsupported }
