package etcd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/turns"
)

// slack is the part of a term that its lease lasts longer.
const slack = 5

// change is one call of Change.
type change struct {
	*Store
	ask    record.Ask
	rule   record.Rule
	nonce  string // the version of its writes
	seen   sight
	sure   bool             // seen was the present during the call
	leases map[string]lease // that the call made or kept alive, by key
	made   bool             // a record that was absent
	open   bool             // whether a commit was carried out is not known
}

// Change implements record.Store.
func (s *Store) Change(ctx context.Context, ask record.Ask, rule record.Rule) (atMS int64, err error) {
	if err := ask.Validate(); err != nil {
		return 0, err
	}
	c := s.newChange(ask, s.area.Checked(ask, rule))
	if atMS, err = c.carryOut(ctx); c.made {
		s.made()
	}
	return atMS, err
}

func (s *Store) newChange(ask record.Ask, rule record.Rule) *change {
	return &change{Store: s, ask: ask, rule: rule, nonce: rand.Text(), leases: map[string]lease{}}
}

func (c *change) carryOut(ctx context.Context) (atMS int64, err error) {
	held, err := c.turns.Take(ctx, c.ask.Keys)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.conn.Config().Place(), err)
	}
	defer held.Give()
	c.seen.life, c.seen.floor = c.hints()
	for _, key := range c.ask.Keys {
		k := held.Known(key)
		if k.rev == 0 || k.life != c.seen.life.name {
			k = known{key: key, life: c.seen.life.name}
		}
		c.seen.records = append(c.seen.records, k)
	}
	atMS, err = turns.Run(ctx, held, c, c.conn.Config().Place(), c.ask, c.rule)
	c.spareUnused()
	// It may be old, above all after an unknown outcome; the next commit compares it.
	for _, k := range c.seen.records {
		if k.mostMS = 0; k.rev != 0 {
			held.Remember(k.key, k)
		} else {
			held.Forget(k.key)
		}
	}
	return atMS, err
}

// View implements turns.Change. No rule runs before the fence lasts as long as this process grants.
func (c *change) View() (v record.View, ok bool) {
	if c.seen.life.name == "" || c.short(c.seen.life) {
		return record.View{}, false
	}
	return c.seen.view(c.nowMS()), true
}

// Settled implements turns.Change. A repeated answer also tells how much is left of a
// term.
func (c *change) Settled(refused bool) bool { return c.sure && (refused || c.seen.timed) }

// Commit implements turns.Change.
func (c *change) Commit(ctx context.Context, writes []record.Write) (atMS int64, o turns.Outcome, err error) {
	wasSure, atMS := c.sure, c.nowMS()
	done, err := c.commit(ctx, writes, atMS)
	switch {
	case done:
		return atMS, turns.Done, err
	case wasSure:
		c.sure = false // by the next try, after a pause
		return 0, turns.Raced, err
	}
	return 0, turns.Old, err
}

// Confirm implements turns.Change.
func (c *change) Confirm(ctx context.Context) error {
	if !c.sure || c.short(c.seen.life) {
		return c.look(ctx)
	}
	err := c.time(ctx, &c.seen, false)
	if errors.Is(err, errEnded) {
		if err = c.look(ctx); err == nil {
			err = c.time(ctx, &c.seen, true)
		}
	}
	return err
}

// look reads the present.
func (c *change) look(ctx context.Context) error {
	seen, err := c.see(ctx, c.ask)
	if err != nil {
		return err
	}
	c.now(seen)
	return nil
}

// now takes the sight for the present.
func (c *change) now(seen sight) {
	for i := range seen.records {
		k := &seen.records[i]
		if before := c.seen.records[i]; before.lease == k.lease {
			k.aliveAt = max(k.aliveAt, before.aliveAt)
		}
		if kept := c.leases[k.key]; kept.id == k.lease {
			k.aliveAt = max(k.aliveAt, kept.aliveAt)
		}
	}
	c.seen, c.sure = seen, true
}

// commit carries the writes out if everything is as it was seen. Where it is not, the
// present is the next sight, and done is false.
func (c *change) commit(ctx context.Context, writes []record.Write, atMS int64) (done bool, err error) {
	after, ops, raised, err := c.prepare(ctx, writes, atMS)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false, c.look(ctx) // a term has ended in the meantime
	}
	if err != nil {
		return false, err
	}
	compares, gets := c.same(c.seen, raised != 0), c.gets(c.ask)
	var resp *clientv3.TxnResponse
	tries := 0 // all but the last have unknown outcomes
	err = c.conn.Call(ctx, func(ctx context.Context) (err error) {
		tries++
		resp, err = c.conn.KV.Txn(ctx).If(compares...).Then(ops...).Else(gets...).Commit()
		return err
	})
	c.open = c.open || err != nil || tries > 1
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		clear(c.leases)
		err = c.look(ctx)
	case err != nil:
		return false, err
	case resp.Succeeded:
		c.committed(after, raised, resp.Header.Revision)
		return true, nil
	default:
		var seen sight
		if seen, err = c.understand(c.ask, resp.Header, resp.Responses); err == nil {
			c.now(seen)
		}
	}
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(c.seen.records, func(k known) bool { return k.Writer == c.nonce }) {
		return true, nil // an earlier try was carried out, and its answer lost
	}
	if tries > 1 {
		return false, fmt.Errorf("%s: record %q: %w", c.conn.Config().Place(), c.ask.Keys, record.ErrOutrun)
	}
	return false, nil
}

// committed takes the writes at that revision for known.
func (c *change) committed(after []known, raised, rev int64) {
	if raised != 0 {
		c.floor.Store(&floor{raised, rev})
	}
	for _, k := range after {
		i := slices.Index(c.ask.Keys, k.key)
		before := c.seen.records[i]
		c.made = c.made || before.rev == 0
		if before.lease != k.lease {
			c.spare(lease{before.lease, before.TermMS, before.aliveAt, true})
		}
		if k.rev = rev; k.value == nil {
			k = known{key: k.key}
		}
		if k.marked() {
			k.markerRev = rev
		}
		k.life = c.seen.life.name
		c.seen.records[i] = k
	}
}

// prepare makes the operations of the writes, with the leases that they need. raised is the new
// floor, 0 where they do not raise it.
func (c *change) prepare(ctx context.Context, writes []record.Write, atMS int64) (after []known, ops []clientv3.Op, raised int64, err error) {
	for _, w := range writes {
		before := c.seen.records[slices.Index(c.ask.Keys, w.Key)]
		k := known{key: w.Key, value: bytes.Clone(w.Value)}
		if w.Value != nil {
			if k.header, k.line, err = encode(w, c.nonce, atMS, before); err == nil {
				k.lease, k.aliveAt, err = c.leaseFor(ctx, before, w)
			}
			if err != nil {
				return nil, nil, 0, err
			}
		} else if mark := max(w.Mark, before.Mark); before.rev != 0 && mark > c.seen.floor.value {
			raised = max(raised, mark)
		}
		after = append(after, k)
		ops = append(ops, c.puts(before, k)...)
	}
	if raised != 0 {
		ops = append(ops, clientv3.OpPut(c.floorPath(), strconv.FormatInt(raised, 10)))
	}
	return after, ops, raised, nil
}

// puts turns one record into another one, either of which may be none.
func (c *change) puts(before, after known) (ops []clientv3.Op) {
	var hangsOn clientv3.LeaseID
	if after.vanishes() {
		hangsOn = after.lease
	}
	switch {
	case after.line != nil:
		ops = append(ops, clientv3.OpPut(c.recordPath(after.key), string(after.line)+"\n"+string(after.value), clientv3.WithLease(hangsOn)))
	case before.rev != 0:
		ops = append(ops, clientv3.OpDelete(c.recordPath(after.key)))
	}
	switch {
	case after.marked():
		ops = append(ops, clientv3.OpPut(c.markerPath(after.key), "", clientv3.WithLease(after.lease)))
	case before.markerRev != 0:
		ops = append(ops, clientv3.OpDelete(c.markerPath(after.key)))
	}
	return ops
}

// leaseFor returns a lease that lasts for the write's term from now on, and when it was
// last kept alive; none where there is no term. It uses the record's own lease, the lease
// of an earlier try of the call, or a spare one, before it makes one.
func (c *change) leaseFor(ctx context.Context, before known, w record.Write) (id clientv3.LeaseID, aliveAt time.Duration, err error) {
	if w.TermMS == 0 {
		return 0, 0, nil
	}
	l := lease{before.lease, before.TermMS, before.aliveAt, false}
	if l.id == 0 || l.termMS != w.TermMS {
		// Of the record that a try saw before, the lease may be ended by now.
		if l = c.leases[w.Key]; !l.own || l.termMS != w.TermMS {
			l = c.takeSpare(w.TermMS)
		}
	}
	if !c.lasts(l) {
		aliveAt = c.elapsed()
		err = c.conn.Call(ctx, func(ctx context.Context) error {
			if l.id != 0 {
				_, err := c.conn.KV.KeepAliveOnce(ctx, l.id)
				return err
			}
			term := time.Duration(w.TermMS) * time.Millisecond
			resp, err := c.conn.KV.Grant(ctx, int64((term+term/slack)/time.Second)+1)
			if err == nil {
				l = lease{id: resp.ID, termMS: w.TermMS, own: true}
			}
			return err
		})
		if err != nil {
			delete(c.leases, w.Key)
			return 0, 0, fmt.Errorf("%w: %w", record.ErrTerm, err)
		}
		l.aliveAt = aliveAt
	}
	c.leases[w.Key] = l
	return l.id, l.aliveAt, nil
}
