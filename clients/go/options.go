package kazahana

import (
	"cmp"
	"context"
	"net"
	"time"
)

const (
	// DefaultTimeout is the default time limit of a call.
	DefaultTimeout = 10 * time.Second
	// DefaultMaxAge is the default maximal age of a prefetched ID.
	DefaultMaxAge = 50 * time.Millisecond
	// MaxBatch is the maximum of IDs or values of one call.
	MaxBatch = 65_536
	// MaxTimeout is the longest timeout, longer than any wait for a lock.
	MaxTimeout = 48 * time.Hour

	maxMaxAge = time.Hour
)

// An Option is an option of New.
type Option func(*settings)

type settings struct {
	dial     dialer
	service  string
	timeout  time.Duration
	single   bool
	prefetch int
	maxAge   time.Duration
	err      error // the first one
}

func (s *settings) require(right bool, format string, args ...any) {
	if !right && s.err == nil {
		s.err = invalid(ErrInvalidParams, format, args...)
	}
}

// WithSocket names the daemon's socket, as PATH, unix:PATH or unix:///PATH. Default:
// KAZAHANA_SOCKET, else the first of these that exists at each connect:
// $XDG_RUNTIME_DIR/kazahana/kazahanad.sock, /run/kazahana/kazahanad.sock,
// /tmp/kazahana-UID/kazahanad.sock.
func WithSocket(path string) Option {
	return func(s *settings) {
		parsed, err := parseSocket(path)
		s.require(err == nil, "the socket %v", err)
		s.dial = dialSocket(func() (string, error) { return parsed, nil })
	}
}

// WithDialer connects with the function instead of a socket's path: to a daemon behind a
// tunnel, or to the fake of package kazahanatest. The connections must have deadlines, and
// closing one must end its blocked reads and writes.
func WithDialer(dial func(context.Context) (net.Conn, error)) Option {
	return func(s *settings) {
		s.dial = func(ctx context.Context) (net.Conn, error) {
			conn, err := dial(ctx)
			if err != nil {
				return nil, &DaemonUnavailableError{Err: err}
			}
			return conn, nil
		}
	}
}

// WithService names the service of calls that name none. Default: the daemon's own default.
func WithService(name string) Option {
	return func(s *settings) { s.service = name }
}

// WithTimeout limits the time of a call over all its attempts, 1 ms to MaxTimeout. A context
// may end it sooner. Default: DefaultTimeout.
func WithTimeout(timeout time.Duration) Option {
	return func(s *settings) {
		s.require(timeout >= time.Millisecond && timeout <= MaxTimeout, "a timeout of %v: must be 1ms to %v", timeout, MaxTimeout)
		s.timeout = timeout
	}
}

// WithSingleAttempt limits a call to one attempt. It fails at once, instead of waiting and
// repeating, if there is no daemon, if the daemon is stopping, or if the connection is lost.
// That suits probes, and callers with retries of their own.
func WithSingleAttempt() Option {
	return func(s *settings) { s.single = true }
}

// WithPrefetch makes NextID take IDs from memory. A call that finds none fetches a batch of at
// least n IDs, and a larger one if the last was used up within a millisecond. An ID that was requested
// longer than maxAge ago, and before the call, is thrown away, since it would sort wrongly;
// 0 means DefaultMaxAge.
// n is 0 (no prefetch, the default) to MaxBatch.
//
// The age does not count time while the machine is suspended. After a suspend, up to 15
// older IDs may be returned before the suspend is noticed.
func WithPrefetch(n int, maxAge time.Duration) Option {
	return func(s *settings) {
		s.prefetch, s.maxAge = n, cmp.Or(maxAge, DefaultMaxAge)
		s.require(n >= 0 && n <= MaxBatch, "a prefetch of %d IDs: must be 0 to %d", n, MaxBatch)
		s.require(s.maxAge >= time.Millisecond && s.maxAge <= maxMaxAge, "an age of %v: must be 1ms to %v", maxAge, maxMaxAge)
	}
}

// A CallOption is an option of a single call. The daemon refuses options that the method does not
// have, with ErrInvalidParams. Sequences take WithRequestID, and ignore the others.
type CallOption func(callOptions)

// callOptions are sent by these names.
type callOptions map[string]any

// ForService names the daemon's service.
func ForService(name string) CallOption {
	return func(o callOptions) { o["service"] = name }
}

// RegularOnly makes a call fail instead of returning a fallback ID, which the daemon makes
// while it has no lease.
func RegularOnly() CallOption {
	return func(o callOptions) { o["regular_only"] = true }
}

// NotAfter makes ToInternal refuse IDs with a later time, and so almost every forged one.
func NotAfter(latest time.Time) CallOption {
	return func(o callOptions) { o["latest_ms"] = latest.UnixMilli() }
}

// WithRequestID makes a sequence give the same values to the same request ID: up to 128
// visible ASCII characters. Without it each call has a request ID of its own, which its
// repetitions share.
func WithRequestID(id string) CallOption {
	return func(o callOptions) { o["request_id"] = id }
}
