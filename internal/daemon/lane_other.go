//go:build !linux

package daemon

import (
	"context"
	"errors"
)

// share has no meaning without a lane.
type share struct{}

// newLane fails: there is no epoll.
func newLane(*Server, context.Context) (lane, error) { return nil, errors.ErrUnsupported }
