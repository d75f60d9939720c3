package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/longwork"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/wire"
)

// errLongAnswers: the time was over before it was the request's turn.
var errLongAnswers = errors.New("others ask for long answers")

// madeFor is how many long answers are being made for the user.
func madeFor(u *user) int64 { return int64(len(u.making)) }

// longAnswer is an answer that the account counts until it has been written.
type longAnswer struct {
	encoded []byte
	done    func()
}

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
		return &longAnswer{encoded, func() {
			c.account.Give(cap(encoded))
			<-c.slow.turn
		}}, nil
	})
}

// list is encoded item by item, and others have their turns in between.
type list[T any] []T

// EncodeMsgpack implements msgpack.CustomEncoder.
func (l list[T]) EncodeMsgpack(enc *msgpack.Encoder) error {
	err := enc.EncodeArrayLen(len(l))
	work := longwork.Work{}
	for i := 0; i < len(l) && err == nil; i++ {
		err = enc.Encode(&l[i])
		work.Part()
	}
	return err
}

// makeLong makes the answer when it is the connection's turn. What it takes until its size
// is known is bounded by how many are made at a time.
func (c *conn) makeLong(ctx context.Context, timeout time.Duration, id uint32, work slowWork) ([]byte, error) {
	u := c.user
	defer u.asking.Add(-1)
	if u.asking.Add(1) > maxUserAsking {
		return nil, c.server.budget.exceeds(quota.FixedAnswers, u, maxUserAsking, "requests for long answers", "wait for answers")
	}
	if ctx.Err() != nil { // the peer has gone
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, making := range [...]chan struct{}{u.making, c.server.budget.making} {
		if err := enter(ctx, making); err != nil {
			r := quota.Refusal{Quota: quota.FixedAnswers, Limit: int64(cap(making)), Whose: u.String()}
			if making != u.making {
				r.Whose = c.server.budget.most(madeFor)
			}
			return nil, overloaded(c.server.cfg.Quotas, r, "%v", errLongAnswers)
		}
		defer func() { <-making }()
	}
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
