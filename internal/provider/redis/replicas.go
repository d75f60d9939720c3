package redis

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// confirmWait is how long replicas have to confirm a grant, unless the caller's
// deadline leaves less: half of the rest is kept to give the grant back.
const confirmWait = time.Second

// confirmed waits until min_replicas have everything that was written on the
// connection so far, and returns how many have.
func (p *Provider) confirmed(ctx context.Context, conn *redis.Conn) (int64, error) {
	wait := cmp.Or(p.cfg.confirmWait, confirmWait)
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	// Milliseconds, and 0 would mean for ever.
	return conn.Do(ctx, "WAIT", p.cfg.MinReplicas, max(wait.Milliseconds(), 1)).Int64()
}

// confirmGrant makes sure that replicas know of the leases. Where too few do, a
// grant that was made just now is given back: nobody has seen it.
func (p *Provider) confirmGrant(ctx context.Context, conn *redis.Conn, terms provider.Terms, req provider.AcquireRequest, leases []lease.Lease, fresh bool) error {
	if p.cfg.MinReplicas == 0 {
		return nil
	}
	n, err := p.confirmed(ctx, conn)
	if err != nil {
		return err
	}
	if n >= int64(p.cfg.MinReplicas) {
		return nil
	}
	fate := "the leases were granted before, and stay as they are"
	if fresh {
		fate = "it was given back"
		if err := p.giveBack(ctx, conn, terms, req, leases); err != nil {
			fate = fmt.Sprintf("it could not be given back (%v), and takes its machine IDs until it ends", err)
		}
	}
	return fmt.Errorf("%w: %d of min_replicas=%d know of the grant; %s", ErrUnconfirmed, n, p.cfg.MinReplicas, fate)
}

// giveBack ends grants at their beginning.
func (p *Provider) giveBack(ctx context.Context, conn *redis.Conn, terms provider.Terms, req provider.AcquireRequest, leases []lease.Lease) error {
	var args arguments
	args.set("count", len(leases))
	args.set("bit_seq", terms.BitSeq)
	args.set("service", req.Service)
	args.set("request", req.RequestID)
	for i, l := range leases {
		args.set(fmt.Sprintf("id%d", i+1), l.ID)
		args.set(fmt.Sprintf("secret%d", i+1), l.Secret)
	}
	r, err := p.eval(ctx, conn, giveBackScript, terms.Pool, args)
	if err != nil {
		return err
	}
	if word := r.text(); word != "ok" {
		return p.refusal(word, r, terms)
	}
	if n := r.number(); n != int64(len(leases)) {
		return fmt.Errorf("the same request was answered twice")
	}
	return r.broken
}
