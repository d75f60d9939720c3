package kazahana

import (
	"context"
	"net"
	"time"

	"github.com/kazahana/kazahana/internal/address"
)

const (
	// DefaultTimeout is how long a call may take if nothing else is said.
	DefaultTimeout = 10 * time.Second
	// DefaultMaxAge is how old a prefetched ID may be if nothing else is said.
	DefaultMaxAge = 50 * time.Millisecond
	// MaxBatch is how many IDs or values one call can give.
	MaxBatch = 65_536
	// MaxTimeout is the longest timeout: more than a lock can be waited for.
	MaxTimeout = 48 * time.Hour

	maxMaxAge = time.Hour
)

// An Option is an option of New.
type Option func(*settings) error

type settings struct {
	dial     dialer
	service  string
	timeout  time.Duration
	single   bool
	prefetch int
	maxAge   time.Duration
}

// WithSocket names the daemon's socket, by its path or as a unix:///PATH URI.
// Default: KAZAHANA_SOCKET, else the first of these that exists, which is looked
// for at each connect: $XDG_RUNTIME_DIR/kazahana/kazahanad.sock,
// /run/kazahana/kazahanad.sock, /tmp/kazahana-UID/kazahanad.sock.
func WithSocket(path string) Option {
	return func(s *settings) error {
		parsed, err := address.Parse(path)
		if err != nil {
			return invalid(ErrInvalidParams, "the socket %.120q %v", path, err)
		}
		s.dial = dialSocket(parsed)
		return nil
	}
}

// WithDialer has the function connect, in place of a socket's path: to a daemon
// behind a tunnel, or to the fake of package kazahanatest. Closing a connection
// must end its blocked reads and writes.
func WithDialer(dial func(context.Context) (net.Conn, error)) Option {
	return func(s *settings) error {
		s.dial = dialWith(dial)
		return nil
	}
}

// WithService names the daemon's service that is meant wherever a call names
// none. Default: the daemon's own.
func WithService(name string) Option {
	return func(s *settings) error {
		s.service = name
		return nil
	}
}

// WithTimeout bounds how long a call may take over all its attempts, 1 ms to
// MaxTimeout. A context that ends sooner counts. Default: DefaultTimeout.
func WithTimeout(timeout time.Duration) Option {
	return func(s *settings) error {
		if timeout < time.Millisecond || timeout > MaxTimeout {
			return invalid(ErrInvalidParams, "a timeout of %v: 1ms to %v are right", timeout, MaxTimeout)
		}
		s.timeout = timeout
		return nil
	}
}

// WithSingleAttempt has a call make one attempt. It fails at once where it would
// otherwise wait for a daemon and ask again: while none is there, when it is
// stopping, when the connection is lost. That suits probes, and whoever repeats by
// rules of his own.
func WithSingleAttempt() Option {
	return func(s *settings) error {
		s.single = true
		return nil
	}
}

// WithPrefetch has NextID take IDs from memory, where batches of at least n of
// them are put ahead of need, and larger ones where they are used up within a
// millisecond. An ID that was asked for longer than maxAge ago is thrown away,
// since it would sort wrongly; 0 means DefaultMaxAge. n is 0 (none: the
// default) to MaxBatch.
//
// Age is counted while the machine runs. After a suspend, up to 15 older IDs may
// come before it is noticed.
func WithPrefetch(n int, maxAge time.Duration) Option {
	return func(s *settings) error {
		if maxAge == 0 {
			maxAge = DefaultMaxAge
		}
		if n < 0 || n > MaxBatch || maxAge < time.Millisecond || maxAge > maxMaxAge {
			return invalid(ErrInvalidParams, "a prefetch of %d for %v: 0 to %d IDs, for 1ms to %v, are right", n, maxAge, MaxBatch, maxMaxAge)
		}
		s.prefetch, s.maxAge = n, maxAge
		return nil
	}
}

// A CallOption is an option of a single call.
type CallOption func(*callOptions)

type callOptions struct {
	service     string
	regularOnly bool
	latest      time.Time
	requestID   string
	wait        time.Duration
}

// ForService names the daemon's service that is meant.
func ForService(name string) CallOption {
	return func(o *callOptions) { o.service = name }
}

// RegularOnly has a call fail rather than give a fallback ID, which the daemon
// makes while it has no lease.
func RegularOnly() CallOption {
	return func(o *callOptions) { o.regularOnly = true }
}

// NotAfter has ToInternal refuse IDs from after a time: almost every forged one.
func NotAfter(latest time.Time) CallOption {
	return func(o *callOptions) { o.latest = latest }
}

// WithRequestID has a sequence give the same values to the same request ID: up
// to 128 visible ASCII characters. Without it each call makes its own, and keeps
// it while it is repeated.
func WithRequestID(id string) CallOption {
	return func(o *callOptions) { o.requestID = id }
}

// WithWait says how long Resolve waits for an activation that is under way, 0 to
// MaxResolveWait. 0: not at all. Default: DefaultResolveWait.
func WithWait(wait time.Duration) CallOption {
	return func(o *callOptions) { o.wait = wait }
}
