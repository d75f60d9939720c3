package redis

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// confirmGrant makes sure that replicas know of the leases. Where too few do, a
// grant that was made just now is given back: nobody has seen it.
func (p *Provider) confirmGrant(ctx context.Context, conn *redis.Conn, terms provider.Terms, req provider.AcquireRequest, leases []lease.Lease, fresh bool) error {
	err := p.client.Confirm(ctx, conn)
	if !errors.Is(err, redisconn.ErrUnconfirmed) {
		return err
	}
	fate := "the leases were granted before, and stay as they are"
	if fresh {
		fate = "it was given back"
		if err := p.giveBack(ctx, conn, terms, req, leases); err != nil {
			fate = fmt.Sprintf("it could not be given back (%v), and takes its machine IDs until it ends", err)
		}
	}
	return fmt.Errorf("%w: %s", err, fate)
}

// giveBack ends grants at their beginning.
func (p *Provider) giveBack(ctx context.Context, conn *redis.Conn, terms provider.Terms, req provider.AcquireRequest, leases []lease.Lease) error {
	var args arguments
	args.Set("count", len(leases))
	args.Set("bit_seq", terms.BitSeq)
	args.Set("service", req.Service)
	args.Set("request", req.RequestID)
	for i, l := range leases {
		args.Set(fmt.Sprintf("id%d", i+1), l.ID)
		args.Set(fmt.Sprintf("secret%d", i+1), l.Secret)
	}
	r, err := p.eval(ctx, conn, giveBackScript, terms, args)
	if err != nil {
		return err
	}
	if n := r.Number(); n != int64(len(leases)) {
		return errors.New("the same request was answered twice")
	}
	return r.Err()
}
