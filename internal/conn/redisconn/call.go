package redisconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// longestCall bounds an operation without a deadline.
const longestCall = 30 * time.Second

// Client is connected to one Redis, or to the primary that sentinels name. Its
// methods may be called by many goroutines.
type Client struct {
	cfg   Config
	redis *redis.Client

	closeOnce sync.Once
	closing   chan struct{}  // closed by Close
	calls     sync.WaitGroup // operations under way
	exchanges sync.WaitGroup // of several of them
	flights   flights
	mu        sync.Mutex // held to add to calls, or to close closing
	closeErr  error
}

// Open prepares the connections. It does not connect yet.
func Open(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	client, err := cfg.connect()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Place(), err)
	}
	return &Client{cfg: cfg, redis: client, closing: make(chan struct{})}, nil
}

// Config returns the client's configuration.
func (c *Client) Config() Config { return c.cfg }

// Close ends the connections. Operations under way fail.
func (c *Client) Close() error {
	c.closeOnce.Do(func() {
		c.mu.Lock()
		close(c.closing)
		c.mu.Unlock()
		c.closeErr = c.redis.Close()
		c.calls.Wait()
		c.exchanges.Wait()
	})
	return c.closeErr
}

// Times is how often an operation may be carried out.
type Times int

const (
	// Once: not repeated if it may have been sent.
	Once Times = iota
	// Repeatable: carried out twice, it does nothing more than once.
	Repeatable
)

// Run calls op with a connection of its own: WAIT is about the writes on its own connection. See
// RunAnywhere.
func Run[T any](ctx context.Context, c *Client, times Times, op func(context.Context, *redis.Conn) (T, error)) (T, error) {
	return RunAnywhere(ctx, c, times, func(ctx context.Context, _ redis.Cmdable) (T, error) {
		conn := c.redis.Conn()
		defer conn.Close() // back to the pool; fails only if the client is closed
		return op(ctx, conn)
	})
}

// RunAnywhere calls op, whose commands need not use the same connection, and returns its result. It
// ends with the answer, at the deadline of ctx, or when the client is closed; where ctx is cancelled
// before its deadline, a command that is under way may take answerTimeout to end. After an error, the
// effect of op is unknown, unless the error wraps connurl.ErrNotSent.
//
// A connection may have gone stale since its last use. Closed ones are noticed before anything is
// sent. If one breaks during the operation, or leads to a server that is no longer the primary, op
// runs once more, unless that could change something twice.
func RunAnywhere[T any](ctx context.Context, c *Client, times Times, op func(context.Context, redis.Cmdable) (T, error)) (T, error) {
	var none T
	if err := c.begin(ctx); err != nil {
		return none, err
	}
	defer c.calls.Done()
	value, err := try(ctx, c, times, op)
	if err == nil {
		return value, nil
	}
	select {
	case <-c.closing:
		return none, ErrClosed
	default:
		return none, c.told(ctx, err)
	}
}

// try calls op, and once more where that can be done.
func try[T any](ctx context.Context, c *Client, times Times, op func(context.Context, redis.Cmdable) (T, error)) (T, error) {
	opCtx := bounded(ctx)
	value, err := op(opCtx, c.redis)
	neverBegan := noConnection(err)
	if err != nil && ctx.Err() == nil && c.again(err, times) {
		lost := isBroken(err)
		value, err = op(opCtx, c.redis)
		neverBegan = neverBegan && noConnection(err)
		if few := new(tooFewReplicas); lost && errors.As(err, &few) {
			few.unknown = true
		}
	}
	if neverBegan {
		err = connurl.NotSent(err)
	}
	return value, err
}

// told is the error of an operation as its caller is told of it.
func (c *Client) told(ctx context.Context, err error) error {
	explained := c.cfg.explain(err)
	if end := ended(ctx); end != nil && !errors.Is(err, end) {
		explained = fmt.Errorf("%w: %w", end, explained)
	}
	return explained
}

// ended is why ctx has ended, or nil. Its timer may be later than a connection's, which has the
// same deadline.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return cmp.Or(ctx.Err(), context.DeadlineExceeded)
	}
	return ctx.Err()
}

// bounded is the context that an operation is carried out with.
func bounded(ctx context.Context) context.Context {
	longest := time.Now().Add(longestCall)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(longest) {
		return ctx
	}
	return until{ctx, longest}
}

// until is a context with a deadline and without a timer: the client library sets the deadline
// of a connection to it, and bounds all else that it waits for.
type until struct {
	context.Context
	deadline time.Time
}

// Deadline implements context.Context.
func (u until) Deadline() (time.Time, bool) { return u.deadline, true }

// again reports whether an operation that failed may be tried once more.
func (c *Client) again(err error, times Times) bool {
	return isRefusedDial(err) && isSentinel(c.cfg.Scheme) || times == Repeatable && (isReadOnly(err) || isBroken(err))
}

// begin counts an operation, unless ctx has ended or the client is closed.
func (c *Client) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return connurl.NotSent(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closing:
		return connurl.NotSent(ErrClosed)
	default:
		c.calls.Add(1)
		return nil
	}
}

// noConnection reports whether there was no connection at all.
func noConnection(err error) bool {
	return isRefusedDial(err) || errors.Is(err, redis.ErrPoolTimeout)
}

func isRefusedDial(err error) bool {
	if err == nil { // without room for an answer
		return false
	}
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial"
}

// confirmWait is how long replicas may take to confirm a write, unless the caller's
// deadline leaves less: half of the remaining time is kept to undo the write.
const confirmWait = time.Second

// Confirm waits until MinReplicas have all writes of the connection so far. Where too few
// have them, the error wraps ErrUnconfirmed.
func (c *Client) Confirm(ctx context.Context, conn *redis.Conn) error {
	if c.cfg.MinReplicas == 0 {
		return nil
	}
	wait := cmp.Or(c.cfg.ConfirmWait, confirmWait)
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	// In milliseconds; 0 would mean for ever.
	n, err := conn.Do(ctx, "WAIT", c.cfg.MinReplicas, max(wait.Milliseconds(), 1)).Int()
	if err == nil && n < c.cfg.MinReplicas {
		err = fmt.Errorf("%w: %d of min_replicas=%d know of it", ErrUnconfirmed, n, c.cfg.MinReplicas)
	}
	return err
}

// Subscription returns a connection of its own for channels, none at first. The first use
// opens it; the caller closes it.
func (c *Client) Subscription(ctx context.Context) *redis.PubSub { return c.redis.Subscribe(ctx) }
