package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// etcd has no clock that tells the time, and grants carry the time of whoever
// asks. No two leases ever collide by that; but a host whose clock is far off
// takes slots for hours that nobody uses, or makes leases that end at once.
// So every host that asks leaves a vote: what its clock showed. etcd removes a
// vote when its time to live is over, by a timer that no clock can mislead, so
// that what is there was written lately.
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

// judge reports, as an error, that more hosts contradict this clock than share
// it, this host included. So one host alone is always believed, and a first
// one with a wrong clock does not lock out the second; and whoever was refused
// has voted too, so that the right ones win as soon as they are more.
//
// A vote from the future contradicts. One from the past does when it is older
// than any vote can be: its time to live, which starts anew once when etcd's
// members elect another leader.
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

// voteTTL is how long a vote lives.
func voteTTL(term time.Duration) time.Duration { return min(max(term, minVoteTTL), maxVoteTTL) }

// voice is the etcd lease that this process's votes in a pool are attached to.
// Only votes are: they must vanish, and no slot's record ever may.
type voice struct {
	id    clientv3.LeaseID // 0 for none
	ttl   time.Duration
	fresh time.Time // until then it has at least half of its time left
}

// voiceFor returns the lease, and has etcd make one where there is none or it
// is getting old. An old one is left to end by itself.
func (a *acquisition) voiceFor(ctx context.Context) (clientv3.LeaseID, error) {
	ttl := voteTTL(a.terms.Term)
	a.pool.mu.Lock()
	v := a.pool.voice
	a.pool.mu.Unlock()
	if v.id != 0 && v.ttl == ttl && time.Now().Before(v.fresh) {
		return v.id, nil
	}
	asked := time.Now()
	var resp *clientv3.LeaseGrantResponse
	err := a.p.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = a.p.conn.KV.Grant(ctx, int64(ttl/time.Second))
		return err
	})
	if err != nil {
		return 0, err
	}
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.pool.voice = voice{id: resp.ID, ttl: ttl, fresh: asked.Add(ttl / 2)}
	return resp.ID, nil
}

// loseVoice is called when etcd does not know the lease: this host was
// suspended, or somebody revoked it.
func (a *acquisition) loseVoice(id clientv3.LeaseID) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if a.pool.voice.id == id {
		a.pool.voice = voice{}
	}
}

// vote is the operation that leaves this host's vote.
func (a *acquisition) vote(id clientv3.LeaseID) clientv3.Op {
	record := clockRecord{Host: a.p.cfg.Host, NowMS: a.now, TTLMS: voteTTL(a.terms.Term).Milliseconds()}
	return clientv3.OpPut(a.pool.keys.clock(a.p.cfg.Host), encode(record), clientv3.WithLease(id))
}

// voteOnly leaves the vote of a host that is granted nothing.
func (a *acquisition) voteOnly(ctx context.Context) error {
	return a.withVoice(ctx, func(id clientv3.LeaseID) error {
		return a.p.conn.Call(ctx, func(ctx context.Context) error {
			_, err := a.p.conn.KV.Do(ctx, a.vote(id))
			return err
		})
	})
}

// withVoice calls f with the lease for a vote, and once more with a new one
// when etcd no longer knew it.
func (a *acquisition) withVoice(ctx context.Context, f func(clientv3.LeaseID) error) error {
	for again := false; ; again = true {
		id, err := a.voiceFor(ctx)
		if err != nil {
			return err
		}
		if err = f(id); again || !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
		a.loseVoice(id)
	}
}
