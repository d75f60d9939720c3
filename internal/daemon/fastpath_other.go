//go:build !linux

package daemon

import (
	"context"
	"errors"
)

// newFastPath fails: there is no epoll.
func newFastPath(*Server, context.Context) (fastPath, error) { return nil, errors.ErrUnsupported }
