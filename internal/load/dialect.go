package load

import "fmt"

// dialect makes the requests to one kind of server, and finds and checks the answers in
// a stream. Each connection has its own.
type dialect interface {
	// appendRequest appends the request with the given number.
	appendRequest(b []byte, number uint32) []byte
	// take checks the answer that begins at b[0] and is due for the request
	// with the given number. It returns the answer's length, or 0 when more
	// bytes are needed.
	take(b []byte, number uint32) (int, error)
}

// Names of the dialects.
const (
	RPC       = "kazahana"  // MessagePack-RPC
	Echo      = "echo"      // the same requests, sent back
	Redis     = "redis"     // RESP: INCR, INCRBY
	Memcached = "memcached" // the text protocol: GET
)

// newDialect returns the dialect for requests that ask for count IDs each.
func newDialect(name string, count int) (dialect, error) {
	switch name {
	case RPC:
		return newRPC(count, ""), nil
	case Echo:
		rpc := newRPC(count, "")
		size := len(rpc.request)
		if count > 1 {
			size = rpc.answerSize()
		}
		return &echo{numbered: rpc.numbered, size: size}, nil
	case Redis:
		return newCounter(count), nil
	case Memcached:
		return newGetter(count), nil
	}
	return nil, fmt.Errorf("there is no dialect %q", name)
}
