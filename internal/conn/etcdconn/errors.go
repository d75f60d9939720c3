package etcdconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"
)

// ErrClosed says that the client was closed.
var ErrClosed = errors.New("the connection to etcd is closed")

// A call is tried several times within its deadline. The client sends each try to the
// next member: a member that hangs must not use up all the time.
const (
	patientTries = 3
	// maxTries is how often a call is tried if it fails at once. The waits double from
	// firstWait on: about a second in all, in which a cluster elects a new leader.
	maxTries  = 6
	firstWait = 30 * time.Millisecond
	// longestTry bounds one try of a call with a late deadline.
	longestTry = 5 * time.Second
)

// Call runs f, one idempotent exchange with etcd.
func (c *Client) Call(ctx context.Context, f func(context.Context) error) error {
	var last, reason error // reason is the last error other than a timeout
	token := c.login.present()
	for try := 1; ; try++ {
		if err := c.Usable(ctx); err != nil {
			return c.unavailable(err, reason)
		}
		patience := longestTry
		if deadline, ok := ctx.Deadline(); ok {
			patience = min(patience, time.Until(deadline)/time.Duration(max(patientTries-try+1, 1)))
		}
		tryCtx, cancel := context.WithTimeout(ctx, patience)
		err := c.login.renew(tryCtx, c.KV, token, last)
		token = c.login.present()
		if err == nil {
			err = f(clientv3.WithRequireLeader(tryCtx))
		}
		cancel()
		if err == nil {
			return nil
		}
		last = err
		if reason == nil || !isTimeout(err) {
			reason = err
		}
		if err := c.Usable(ctx); err != nil {
			return c.unavailable(err, reason)
		}
		if try == maxTries || !isTransient(err) {
			return c.Explain(reason)
		}
		wait := time.NewTimer(firstWait << (try - 1))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
}

// Usable returns an error if no call can be made: ctx has ended, or the client is closed.
func (c *Client) Usable(ctx context.Context) error {
	if c.lifetime.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}

func isTimeout(err error) bool {
	code := codeOf(err)
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || code == codes.DeadlineExceeded ||
		// A member without the others answers this way.
		code == codes.Unknown && strings.HasSuffix(err.Error(), context.DeadlineExceeded.Error())
}

// isTransient reports whether the call may succeed at another member, or a moment later.
func isTransient(err error) bool {
	if isTimeout(err) {
		return true
	}
	return refusesToken(err) || errors.Is(err, rpctypes.ErrNotCapable) || codeOf(err) == codes.Unavailable
}

func codeOf(err error) codes.Code {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code()
	}
	return status.Code(err)
}

// unavailable is the error of a call that ran out of time: err is why it ended, reason an
// earlier error of etcd or the network.
func (c *Client) unavailable(err, reason error) error {
	if reason == nil || isTimeout(reason) && errors.Is(err, context.DeadlineExceeded) {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%s: it does not answer in time (is a majority of its members up, and reachable from here?): %w", c.cfg.Place(), err)
		}
		return fmt.Errorf("%s: %w", c.cfg.Place(), err)
	}
	return fmt.Errorf("%w (%w)", c.Explain(reason), err)
}

// Explain adds the place of etcd and a hint to its error.
func (c *Client) Explain(err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	for _, known := range hints {
		if errors.Is(err, known.err) {
			hint = known.hint + ": "
			break
		}
	}
	if hint == "" {
		switch code := codeOf(err); {
		case code == codes.Unavailable:
			hint = "no member can be reached, or a majority of them is down: "
		case code == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max"):
			hint = "a request or an answer is larger than gRPC allows: "
		case isTimeout(err):
			hint = "it does not answer in time (is a majority of its members up, and reachable from here?): "
		}
	}
	return fmt.Errorf("%s: %s%w", c.cfg.Place(), hint, err)
}

var hints = []struct {
	err  error
	hint string
}{
	{rpctypes.ErrNoSpace, "its database is full (alarm NOSPACE), and nothing can be written; compact, defragment, disarm the alarm (docs/providers/etcd.md)"},
	{rpctypes.ErrCorrupt, "it found its database corrupt (alarm CORRUPT), and nothing can be written"},
	{rpctypes.ErrRequestTooLarge, "the request is larger than --max-request-bytes allows; make what is stored shorter, or raise the limit"},
	{rpctypes.ErrTooManyOps, fmt.Sprintf("its --max-txn-ops is below %d, which is its default and what is needed", maxTxnOps)},
	{rpctypes.ErrPermissionDenied, "this user may not read and write the keys below the prefix; grant its role readwrite on the prefix"},
	{rpctypes.ErrAuthFailed, "it refuses the user name or the password; check username and password_file"},
	{rpctypes.ErrUserEmpty, "it asks for a user; give username and password_file"},
	{rpctypes.ErrAuthNotEnabled, "it has authentication switched off"},
	{rpctypes.ErrInvalidAuthToken, "it refuses this client's token, again after a new one was fetched"},
	{rpctypes.ErrNoLeader, "its members have no leader: a majority of them is down or cannot be reached"},
	{rpctypes.ErrTimeout, "a majority of its members is down, or too slow"},
}

// Quiet keeps gRPC's own log, which is one for the whole process and writes to
// stderr, from saying what the errors of this package say already.
var Quiet = sync.OnceFunc(func() {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
})
