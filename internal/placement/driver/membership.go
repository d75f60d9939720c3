package driver

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
)

// Run is the life of the driver. When ctx is done, the actors are passivated and the membership
// is given back, as far as both take no longer than stopTimeout.
func (d *Driver) Run(ctx context.Context) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	over := make(chan struct{})
	d.mu.Lock()
	d.life, d.over = life, over
	d.perform(d.core.Start(d.now()))
	d.mu.Unlock()
	d.work.Go(func() { d.hear(life) })
	<-ctx.Done()
	d.step(d.core.Stop)
	<-over
	d.mu.Lock()
	d.life = nil
	d.timer.Stop()
	d.mu.Unlock()
	end()
	d.work.Wait()
	d.feed.close()
}

// hear tells the core of changes that the store tells of.
func (d *Driver) hear(ctx context.Context) {
	for again := false; ; again = true {
		tokens, err := d.cfg.Locks.Changes(ctx, d.cfg.Tenant, membersPrefix)
		if errors.Is(err, errors.ErrUnsupported) {
			return
		}
		if err != nil && ctx.Err() == nil {
			d.failed("watch", err)
		}
		if err == nil && again {
			d.step(d.core.Changed) // missed changes
		}
		for open := err == nil; open; {
			_, open = <-tokens
			d.step(d.core.Changed) // also at the end: earlier events may not be told
		}
		// The look after each interval goes on meanwhile.
		select {
		case <-time.After(d.cfg.Interval):
		case <-ctx.Done():
			return
		}
	}
}

// look reads the members.
func (d *Driver) look(ctx context.Context) {
	members, err := d.members(ctx)
	if ctx.Err() == nil && err != nil {
		d.failed("members", err)
	}
	d.step(func(now placement.Moment) Effects { return d.core.Looked(members, err, now) })
}

// members reads the members, from the locks that they hold.
func (d *Driver) members(ctx context.Context) (members []placement.Host, err error) {
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
			members = append(members, hostOf(authority, l))
		}
		if len(page) < lock.MaxList {
			return members, nil
		}
		after = page[len(page)-1].Key
	}
}

// hostOf reads the announcement of a membership.
func hostOf(authority string, l lock.Lease) placement.Host {
	h := placement.Host{Member: placement.Member{Authority: authority, Token: l.Token}}
	if l.Note != "" {
		h.Kinds = strings.Split(l.Note, kindsSeparator)
	}
	return h
}

// askMembership carries out one request about the membership.
func (d *Driver) askMembership(ctx context.Context, r lock.Request) {
	patience := min(commandTimeout, d.cfg.TTL/renewPart)
	if r.Op == lock.Release {
		patience = releaseTime
	} else {
		r.TTLMS = d.cfg.TTL.Milliseconds()
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.Tenant, r.Owner, r.Key = d.cfg.Tenant, d.cfg.Owner, membersPrefix+d.cfg.Authority
	l, err := d.cfg.Locks.Do(within, r)
	if err != nil && ctx.Err() == nil {
		d.failed("membership", err)
	}
	d.step(func(now placement.Moment) Effects { return d.core.Answered(r.Op, l, err, now) })
}
