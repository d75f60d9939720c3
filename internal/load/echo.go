package load

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// EchoSizes are the sizes of a request for count IDs and of the daemon's answer. An echo
// server needs them to send the same number of bytes.
func EchoSizes(count int) (request, answer int) {
	rpc := newRPC(count, "")
	return len(rpc.request), rpc.answerSize()
}

// echo is for servers that send their input back. Its requests are those of rpc, byte by
// byte, so that all sizes are equal. The answer to a request for more than one ID is as
// long as the daemon's, and begins with the request.
type echo struct {
	numbered
	size int // of an answer
}

var errNoEcho = errors.New("the echo server answered with other bytes than it got")

func (d *echo) take(b []byte, number uint32) (int, error) {
	if len(b) < d.size {
		return 0, nil
	}
	const rest = numberOffset + 4
	if binary.BigEndian.Uint32(b[numberOffset:]) != number || !bytes.Equal(b[rest:len(d.request)], d.request[rest:]) {
		return 0, errNoEcho
	}
	return d.size, nil
}
