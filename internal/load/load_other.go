//go:build !linux

package load

import (
	"context"
	"errors"
)

// Put puts load on a server, on Linux.
func Put(context.Context, Options) (Result, error) {
	return Result{}, errors.New("the load generator is for Linux: it waits for many connections by epoll")
}
