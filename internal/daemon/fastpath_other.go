//go:build !linux

package daemon

import (
	"context"
	"errors"
)

// share has no meaning without a fast path.
type share struct{}

// newFastPath fails: there is no epoll.
func newFastPath(*Server, context.Context) (fastPath, error) { return nil, errors.ErrUnsupported }
