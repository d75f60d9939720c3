package etcd

import (
	"context"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// etcd has no clock that tells the time, and a grant carries the time of the host that
// asks. No two leases ever collide by that; but a host whose clock is far off takes slots
// for hours that it does not use, or makes leases that end at once. So every host that
// asks leaves a vote from time to time, and as soon as its clock was set: what the clock
// showed. etcd removes a vote when its time to live is over, by a timer that no clock can
// mislead, so all votes are recent.
const (
	// clockBound is how far two clocks may be apart, as for releases.
	clockBound = provider.ReleaseWindow
	// A vote lives for a term, within these bounds: long enough that hosts which
	// renew in turn see each other's.
	minVoteTTL = time.Minute
	maxVoteTTL = 10 * time.Minute
	// clockRetry is when a host that was refused may ask again.
	clockRetry = 10 * time.Second
)

// judge reports, as an error, that more hosts contradict this clock than share it, this
// host included. So one host alone is always believed, and a first one with a wrong clock
// does not lock out the second. A refused host has voted too, so the right ones win as
// soon as they are more.
//
// A vote from the future contradicts. One from the past does when it is older than any
// vote can be: its time to live, which starts anew when etcd's members elect a leader.
func judge(nowMS int64, votes []clockRecord) error {
	bound := clockBound.Milliseconds()
	var shown []int64 // by those who contradict
	for _, v := range votes {
		if nowMS < v.NowMS-bound || nowMS > v.NowMS+2*v.TTLMS+bound {
			shown = append(shown, v.NowMS)
		}
	}
	if agreeing := len(votes) - len(shown); len(shown) <= agreeing+1 {
		return nil
	}
	slices.Sort(shown)
	return &provider.BusyError{RetryAfter: clockRetry, Reason: fmt.Sprintf(
		"this host's clock shows %s, and %d of the %d other hosts that were here lately contradict it (one showed %s); "+
			"nothing is granted until the clock is right (is NTP running?) or most hosts agree with it",
		snowflake.FormatMS(nowMS), len(shown), len(votes), snowflake.FormatMS(shown[len(shown)/2]))}
}

// voice is the etcd lease that this process's votes in a pool are attached to.
// Only votes are: they must vanish, and no slot's record ever may.
type voice struct {
	id    clientv3.LeaseID // 0 for none
	ttl   time.Duration
	fresh time.Time // until then it has at least half of its time left
	said  bool      // a vote hangs on it
	shown int64     // the clock by the last vote, as of start
}

// start is a moment of the clock that is never set.
var start = time.Now()

// vote returns the operation that leaves this host's vote, and what is known once it was
// carried out. There is none while a fresh vote shows the same clock. An old etcd lease is
// left to end by itself.
func (a *acquisition) vote(ctx context.Context) (op []clientv3.Op, said voice, err error) {
	ttl := min(max(a.terms.Term, minVoteTTL), maxVoteTTL)
	asked := time.Now()
	shows := a.now - asked.Sub(start).Milliseconds()
	a.pool.mu.Lock()
	v := a.pool.voice
	a.pool.mu.Unlock()
	if v.id == 0 || v.ttl != ttl || asked.After(v.fresh) {
		v = voice{ttl: ttl, fresh: asked.Add(ttl / 2)}
		err := a.p.conn.Call(ctx, func(ctx context.Context) error {
			resp, err := a.p.conn.KV.Grant(ctx, int64(ttl/time.Second))
			if err == nil {
				v.id = resp.ID
			}
			return err
		})
		if err != nil {
			return nil, v, err
		}
		a.speak(v)
	}
	if v.said && max(v.shown-shows, shows-v.shown) < time.Second.Milliseconds() {
		return nil, v, nil
	}
	v.said, v.shown = true, shows
	record := clockRecord{Host: a.p.cfg.Host, NowMS: a.now, TTLMS: ttl.Milliseconds()}
	return []clientv3.Op{clientv3.OpPut(a.pool.keys.clock(a.p.cfg.Host), encode(record), clientv3.WithLease(v.id))}, v, nil
}

// speak notes how this process votes. The zero value has the next acquire vote anew.
func (a *acquisition) speak(v voice) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.pool.voice = v
}

// voteOnly leaves the vote of a host that is granted nothing.
func (a *acquisition) voteOnly(ctx context.Context) {
	op, said, err := a.vote(ctx)
	if err == nil && len(op) > 0 {
		_, err = a.p.conn.Commit(ctx, etcdconn.Txn{Then: op})
	}
	if err != nil {
		said = voice{}
	}
	a.speak(said)
}
