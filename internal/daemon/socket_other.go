//go:build !linux

package daemon

import "syscall"

// setSendBuffer is not needed: other systems have no control groups, and small buffers by default.
func setSendBuffer(syscall.Conn) {}
