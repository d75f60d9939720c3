//go:build !linux

package memcached

import (
	"errors"
	"net"

	"github.com/kazahana/kazahana/internal/daemon"
)

type fastPath struct{}

func newFastPath(*server) (*fastPath, error)        { return nil, errors.ErrUnsupported }
func (*fastPath) park(*daemon.Guest, net.Conn) bool { return false }
func (*fastPath) close()                            {}
