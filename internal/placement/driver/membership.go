package driver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
)

const (
	// renewPart: a membership is renewed after this part of its term.
	renewPart = 3
	// marginPart of what is left of it is not relied on: clocks run at different
	// speeds, and processes have to be told.
	marginPart = 10
	// idlePart of IdleTTL is between looks for what is idle.
	idlePart = 10
	// stopTimeout bounds how long the end waits for processes and stores.
	stopTimeout = 8 * time.Second
	releaseTime = time.Second // of it, to give the membership back
)

// Run is the life of the driver. When ctx is done, what is activated is passivated
// and the membership given back, as far as that takes no longer than stopTimeout.
func (d *Driver) Run(ctx context.Context) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	going, stop := context.WithCancel(life) // the loops: until nothing is activated any more
	defer stop()
	d.mu.Lock()
	d.life = life
	d.core.Start()
	d.mu.Unlock()

	var loops sync.WaitGroup
	look := make(chan struct{}, 1)
	loops.Go(func() { d.watch(going, look) })
	loops.Go(func() { d.tick(going) })
	loops.Go(func() { d.hear(going, look) })
	var member lock.Lease
	if d.cfg.Authority != "" {
		loops.Go(func() { member = d.keepMembership(going, look) })
	}
	<-ctx.Done()
	d.drain()
	stop()
	loops.Wait()
	d.leaveMembers(life, member)
	d.mu.Lock()
	d.life = nil
	d.mu.Unlock()
	end()
	d.work.Wait()
	d.feed.close()
}

// drain passivates everything, and waits for it.
func (d *Driver) drain() {
	idle := make(chan struct{})
	d.mu.Lock()
	d.idle, d.stopping = idle, true
	d.follow(d.core.Stop(d.now()))
	d.mu.Unlock()
	timer := time.NewTimer(stopTimeout - releaseTime)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		d.mu.Lock()
		d.idle = nil
		d.mu.Unlock()
	}
}

func (d *Driver) tick(ctx context.Context) {
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	looked := d.cfg.Clock.Elapsed()
	for {
		select {
		case <-ticker.C:
			d.tell((*placement.Core).Tick)
			// All activations are looked at, so not too often.
			if now := d.cfg.Clock.Elapsed(); d.cfg.IdleTTL > 0 && now-looked >= d.cfg.IdleTTL/idlePart {
				looked = now
				d.passivateIdle(d.cfg.IdleTTL)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (d *Driver) passivateIdle(ttl time.Duration) {
	d.tell(func(c *placement.Core, now placement.Moment) placement.Outcome { return c.PassivateIdle(ttl, now) })
}

// watch looks at the members again and again, and at once when look says so.
func (d *Driver) watch(ctx context.Context, look <-chan struct{}) {
	seen := d.cfg.Clock.Elapsed()
	ticker := time.NewTicker(d.cfg.Interval)
	defer ticker.Stop()
	for {
		from := d.cfg.Clock.Elapsed()
		members, err := d.members(ctx)
		switch {
		case err == nil:
			seen = from
		case ctx.Err() != nil:
			return
		default:
			d.failed("members", err)
			if d.cfg.Clock.Elapsed()-seen < d.cfg.TTL {
				members = nil
				break
			}
			// What was seen a term ago says nothing of who is there now.
			err = nil
		}
		if err == nil {
			d.tell(func(c *placement.Core, now placement.Moment) placement.Outcome { return c.UpdateTopology(members, now) })
		}
		select {
		case <-ticker.C:
		case <-look:
		case <-ctx.Done():
			return
		}
	}
}

// hear has the members looked at when the store tells of a change.
func (d *Driver) hear(ctx context.Context, look chan<- struct{}) {
	for {
		tokens, err := d.cfg.Locks.Changes(ctx, d.cfg.Tenant, membersPrefix)
		if errors.Is(err, errors.ErrUnsupported) {
			return
		}
		if err != nil && ctx.Err() == nil {
			d.failed("watch", err)
		}
		for open := err == nil; open; {
			if _, open = <-tokens; open {
				nudge(look)
			}
		}
		// The look after each interval goes on meanwhile.
		select {
		case <-time.After(d.cfg.Interval):
			nudge(look) // what was missed
		case <-ctx.Done():
			return
		}
	}
}

// members reads who is a member, from the locks that they hold.
func (d *Driver) members(ctx context.Context) (members []placement.Member, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	for after := membersPrefix; ; {
		page, err := d.cfg.Locks.List(ctx, d.cfg.Tenant, after, lock.MaxList)
		if err != nil {
			return nil, err
		}
		for _, l := range page {
			authority, ok := strings.CutPrefix(l.Key, membersPrefix)
			if !ok {
				return members, nil
			}
			members = append(members, placement.Member{Authority: authority, Token: l.Token})
		}
		if len(page) < lock.MaxList {
			return members, nil
		}
		after = page[len(page)-1].Key
	}
}

// keepMembership gets the membership and keeps it, until ctx is done. It returns
// what is to be given back.
func (d *Driver) keepMembership(ctx context.Context, look chan<- struct{}) (held lock.Lease) {
	request := d.newMembership()
	var until time.Duration // when what is held ends by this host's reckoning
	for {
		sent := d.cfg.Clock.Elapsed()
		l, err := d.onceMore(ctx, request)
		pause := d.cfg.TTL / renewPart
		var other *lock.HeldError
		switch {
		case err == nil:
			fresh := l.Token != held.Token
			held = l
			left := time.Duration(l.RemainingMS) * time.Millisecond
			until = sent + left - left/marginPart
			d.became(l.Token, until)
			if fresh {
				nudge(look)
			}
			request = lock.Request{Op: lock.Renew, LeaseID: l.LeaseID, RequestID: lock.NewLeaseID()}
		case errors.As(err, &other):
			// Of this host's life before, as a rule: it lasts until its end.
			d.failed("membership", err)
			pause = min(pause, time.Duration(other.RemainingMS)*time.Millisecond+retryFirst)
			request.RequestID = lock.NewLeaseID()
		case lock.IsAnswer(err):
			d.failed("membership", err)
			held = lock.Lease{}
			d.became(0, 0)
			request, pause = d.newMembership(), retryMost
		default:
			// The same request again: nobody knows what became of it. One that is too
			// old to be of use is given up; Tick ends the membership by the clock.
			d.failed("membership", err)
			pause = retryMost
			if d.cfg.Clock.Elapsed() >= until && held.Token != 0 {
				held, request = lock.Lease{}, d.newMembership()
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return held
		}
	}
}

func (d *Driver) newMembership() lock.Request {
	return lock.Request{Op: lock.Acquire, LeaseID: lock.NewLeaseID(), RequestID: lock.NewLeaseID(), Announce: true}
}

func (d *Driver) onceMore(ctx context.Context, r lock.Request) (lock.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, min(commandTimeout, d.cfg.TTL/renewPart))
	defer cancel()
	r.Tenant, r.Owner, r.Key, r.TTLMS = d.cfg.Tenant, d.cfg.Owner, membersPrefix+d.cfg.Authority, d.cfg.TTL.Milliseconds()
	return d.cfg.Locks.Do(ctx, r)
}

// became tells of the membership.
func (d *Driver) became(token int64, until time.Duration) {
	d.tell(func(c *placement.Core, now placement.Moment) placement.Outcome {
		return c.SetMembership(token, until, now)
	})
}

// leaveMembers gives the membership back, so that others need not wait for its
// end. They have to, where a process may still run what it has not let go of.
func (d *Driver) leaveMembers(ctx context.Context, held lock.Lease) {
	d.mu.Lock()
	idle := d.core.Idle()
	d.mu.Unlock()
	if held.Token == 0 || !idle {
		return
	}
	d.became(0, 0)
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	r := lock.Request{Op: lock.Release, Tenant: d.cfg.Tenant, Owner: d.cfg.Owner, Key: membersPrefix + d.cfg.Authority, LeaseID: held.LeaseID, RequestID: lock.NewLeaseID()}
	if _, err := d.cfg.Locks.Do(ctx, r); err != nil {
		d.failed("membership", err)
	}
}

func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
