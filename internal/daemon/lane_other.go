//go:build !linux

package daemon

import (
	"context"
	"errors"
)

// newLane fails: there is no epoll.
func newLane(*Server, context.Context) (lane, error) { return nil, errors.ErrUnsupported }
