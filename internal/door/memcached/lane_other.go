//go:build !linux

package memcached

import (
	"errors"
	"net"

	"github.com/kazahana/kazahana/internal/daemon"
)

type lane struct{}

func newLane(*server) (*lane, error)            { return nil, errors.ErrUnsupported }
func (*lane) park(*daemon.Guest, net.Conn) bool { return false }
func (*lane) close()                            {}
