package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/provider"
)

const (
	// longestCall bounds an operation whose caller sets no deadline.
	longestCall = 30 * time.Second
	// lastWord is how long a caller whose time is up still listens for the
	// reason.
	lastWord = 20 * time.Millisecond
)

// Whether an operation does nothing more when it is carried out twice.
const (
	once       = false
	repeatable = true
)

// run has op use one connection, and returns its result, or an error as soon as
// ctx ends or the provider is closed. op may then still be running or finish
// later: its effect is unknown.
//
// A connection may have gone stale since it was last used. Those that were
// closed are found out before anything is sent; where one breaks while in use,
// or leads to a server that is the primary no more, op runs once again, unless
// that could do something twice.
func run[T any](ctx context.Context, p *Provider, again bool, op func(context.Context, *redis.Conn) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if !p.begin() {
		return none, ErrClosed
	}
	done := make(chan result, 1)
	go func() {
		defer p.calls.Done()
		opCtx, cancel := context.WithTimeout(ctx, longestCall)
		defer cancel()
		value, err := onConn(opCtx, p, op)
		if err != nil && ctx.Err() == nil && (isReadOnly(err) || isRefusedDial(err) && isSentinel(p.cfg.Scheme) || isBroken(err) && again) {
			value, err = onConn(opCtx, p, op)
		}
		done <- result{value, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-p.closing:
		return none, ErrClosed
	case <-ctx.Done():
		// The client library knows better what it waited for: give it a moment
		// to say so.
		moment := time.NewTimer(lastWord)
		defer moment.Stop()
		select {
		case r = <-done:
		case <-moment.C:
			r.err = errors.New("the server does not answer")
		}
	}
	if r.err == nil {
		return r.value, nil
	}
	if isAnswer(r.err) {
		return none, r.err
	}
	if ctx.Err() != nil && !errors.Is(r.err, ctx.Err()) {
		return none, fmt.Errorf("%w: %w", ctx.Err(), p.cfg.explain(r.err))
	}
	return none, p.cfg.explain(r.err)
}

// begin counts an operation, unless the provider is closed.
func (p *Provider) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closing:
		return false
	default:
		p.calls.Add(1)
		return true
	}
}

// onConn has op use a connection of its own: WAIT asks for what was written on
// the connection that it is sent on.
func onConn[T any](ctx context.Context, p *Provider, op func(context.Context, *redis.Conn) (T, error)) (T, error) {
	conn := p.client.Conn()
	defer conn.Close() // back to the pool; fails only if the provider is closed
	return op(ctx, conn)
}

// isRefusedDial reports whether there was no connection to send anything on.
func isRefusedDial(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial"
}

// isAnswer reports whether the error is an answer to the caller as package
// provider has them, and not a failure of the server.
func isAnswer(err error) bool {
	var full *provider.FullError
	var fenced *provider.FencedError
	return errors.As(err, &full) || errors.As(err, &fenced) ||
		errors.Is(err, provider.ErrConflict) || errors.Is(err, provider.ErrNotFound) ||
		errors.Is(err, provider.ErrBadSignature) || errors.Is(err, provider.ErrTimestampSkew) || errors.Is(err, provider.ErrInvalid)
}
