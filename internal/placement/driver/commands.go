package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/record"
)

// What placement calls its locks.
const (
	membersPrefix    = "members/"
	kindsSeparator   = "/" // in the note of a membership; no kind has one
	activationPrefix = "activation/"
)

// callProcess begins a command that is up to a process.
func (d *Driver) callProcess(c placement.Command) {
	if c.Op == placement.Passivate {
		if d.cfg.Payer != nil {
			payer := d.cfg.Payer(c.Key, c.Record.Token)
			d.mu.Lock()
			d.payers[c.Key] = payer
			d.mu.Unlock()
		}
		d.cfg.Executor.Passivate(c.Key, c.Record, commandTimeout, func(snapshot []byte, err error) {
			d.finish(c, placement.Result{Snapshot: snapshot, Err: err})
		})
		return
	}
	// The last look at the clock before the process is asked.
	if d.cfg.Clock.Elapsed() >= c.Until {
		d.finish(c, placement.Result{Err: errors.New("this host's membership ended before the process was asked")})
		return
	}
	d.cfg.Executor.Activate(c.Key, c.Record, commandTimeout, func(pid string, err error) {
		d.finish(c, placement.Result{PID: pid, Err: err, Unknown: errors.Is(err, ErrUnknown)})
	})
}

// callStore carries out a command that is up to a store.
func (d *Driver) callStore(life context.Context, c placement.Command) {
	d.mu.Lock()
	payer := d.payers[c.Key]
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(lock.WithValues(life, payer), commandTimeout)
	defer cancel()
	r := d.askStore(ctx, c)
	if r.Err != nil {
		r.Err = fmt.Errorf("%s: %w", c.Op, r.Err)
	}
	d.finish(c, r)
}

// finish tells the core what became of a command.
func (d *Driver) finish(c placement.Command, r placement.Result) {
	if r.Err != nil {
		d.failed(string(c.Op), fmt.Errorf("%s: %w", c.Key, r.Err))
	}
	d.step(func(now placement.Moment) Effects {
		if c.Op == placement.Remove && (r.Err == nil || placement.IsRefusal(r.Err)) {
			delete(d.payers, c.Key) // the next caller pays, also for the rest of this one
		}
		return d.core.Finished(c, r, now)
	})
}

// askStore is one call of a store.
func (d *Driver) askStore(ctx context.Context, c placement.Command) (r placement.Result) {
	switch c.Op {
	case placement.TryAcquire:
		var l lock.Lease
		l, r.Err = d.ask(ctx, lock.Request{Op: lock.Acquire, Key: activationPrefix + c.Key.String(), TTLMS: d.cfg.TTL.Milliseconds()})
		r.Lease = placement.Lease{ID: l.LeaseID, Token: l.Token}
		_, r.Denied = errors.AsType[*lock.HeldError](r.Err)
	case placement.Release:
		_, r.Err = d.ask(ctx, lock.Request{Op: lock.Release, Key: activationPrefix + c.Key.String(), LeaseID: c.Lease.ID})
	case placement.CheckOwner:
		r.Ended, r.Err = d.ended(ctx, c.Record.Owner)
	case placement.Load:
		r.Record, r.Err = d.cfg.Records.Load(ctx, d.cfg.Tenant, c.Key)
		r.Found = r.Record.Version > 0
	case placement.Store:
		r.Err = d.cfg.Records.Store(ctx, d.cfg.Tenant, c.Key, c.Record)
	case placement.Remove:
		r.Err = d.cfg.Records.Remove(ctx, d.cfg.Tenant, c.Key, c.Record, c.Keep)
		if errors.Is(r.Err, placement.ErrNoRoom) {
			d.failed("snapshot", fmt.Errorf("%s: what its process left behind is lost: %w", c.Key, r.Err))
			r.Err = d.cfg.Records.Remove(ctx, d.cfg.Tenant, c.Key, c.Record, true)
		}
	default:
		panic("placement asks for what no driver knows: " + string(c.Op))
	}
	return r
}

// ask sends a request to the store of locks, which carries it out once. While its outcome is
// unknown, the same request is sent again, unless it went astray.
func (d *Driver) ask(ctx context.Context, r lock.Request) (lock.Lease, error) {
	r.Tenant, r.Owner, r.RequestID = d.cfg.Tenant, d.cfg.Owner, lock.NewLeaseID()
	if r.Op == lock.Acquire {
		r.LeaseID = r.RequestID // a record has both in the room of one
	}
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		l, err := d.cfg.Locks.Do(ctx, r)
		if lock.IsAnswer(err) || errors.As(err, new(*record.StrayError)) {
			return l, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return lock.Lease{}, err
		}
	}
}

// ended reports whether a membership has ended, by the store and as of now. It
// never comes back then: a host that does is a member under another token.
func (d *Driver) ended(ctx context.Context, m placement.Member) (bool, error) {
	l, err := d.cfg.Locks.Get(ctx, d.cfg.Tenant, membersPrefix+m.Authority)
	if errors.Is(err, lock.ErrNotFound) {
		return true, nil
	}
	return err == nil && (l.State != lock.Active || l.Token != m.Token), err
}

// failed reports a failure of the store or of a process. A lock that another owner holds
// is no failure.
func (d *Driver) failed(what string, err error) {
	var held *lock.HeldError
	if d.cfg.Failed != nil && !errors.As(err, &held) && !errors.Is(err, context.Canceled) {
		d.cfg.Failed(what, err)
	}
}
