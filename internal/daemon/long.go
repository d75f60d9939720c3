package daemon

import (
	"context"
	"time"

	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/wire"
)

// asideLong is asideWithin for an answer that may be long. It is made when those before it
// on the connection have been written, so that a peer that does not read has one at most.
// While one waits for that, no further request of the connection is read.
func (d *responder) asideLong(timeout time.Duration, work slowWork) error {
	c, id := d.conn, d.req.ID
	if c != nil {
		c.slow.isLong = true
		if c.slow.turn == nil {
			c.slow.turn = make(chan struct{}, 1)
		}
	}
	return d.aside(func(ctx context.Context) (any, error) {
		if err := enter(ctx, c.slow.turn); err != nil {
			return nil, err
		}
		encoded, err := c.makeLong(ctx, timeout, id, work)
		if err != nil {
			<-c.slow.turn
			return nil, err
		}
		return longAnswer(encoded), nil
	})
}

// longAnswer is an answer that the account counts until it has been written.
type longAnswer []byte

// makeLong makes the answer when one of the workers is free. Their number bounds its memory until
// its size is known.
func (c *conn) makeLong(ctx context.Context, timeout time.Duration, id uint32, work slowWork) ([]byte, error) {
	if ctx.Err() != nil { // the peer has gone
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s := c.server
	if err := enter(ctx, s.making); err != nil {
		return nil, s.bounds.refuse(refusals.LongAnswers, "%d long answers are made for others, and the time was over: ask again", longWorkers)
	}
	defer func() { <-s.making }()
	answer, err := work(ctx)
	if err != nil {
		return nil, err
	}
	out := wire.NewOutbox(nil)
	if err := out.ReplyAny(id, answer); err != nil {
		return nil, err
	}
	encoded := out.Unsent()
	c.account.takeMade(cap(encoded))
	return encoded, nil
}

// writeLong writes a long answer in pieces: a peer that reads them moves. mu is held.
func (c *conn) writeLong(answer longAnswer) {
	for rest := answer; len(rest) > 0; {
		n := min(len(rest), wire.HighWater)
		c.wire.ReplyEncoded(rest[:n])
		c.account.Progress()
		rest = rest[n:]
	}
	c.account.Give(cap(answer))
	<-c.slow.turn
}

// enter waits for room, until ctx is done. It takes room that there is even then.
func enter(ctx context.Context, room chan struct{}) error {
	select {
	case room <- struct{}{}:
		return nil
	default:
	}
	select {
	case room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
