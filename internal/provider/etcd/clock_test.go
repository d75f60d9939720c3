package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestJudge(t *testing.T) {
	const now, ttl, bound = 1_000_000_000, 600_000, 30_000
	votes := func(offsets ...int64) (all []clockRecord) {
		for _, off := range offsets {
			all = append(all, clockRecord{Host: "h", NowMS: now + off, TTLMS: ttl})
		}
		return all
	}
	const ahead, behind = 3_600_000, -3_600_000
	for _, test := range []struct {
		votes []clockRecord
		ok    bool
	}{
		{nil, true},
		{votes(ahead), true}, // one against one
		{votes(behind), true},
		{votes(ahead, ahead), false}, // two against one
		{votes(behind, behind), false},
		{votes(ahead, behind), false},
		{votes(ahead, ahead, 0), true}, // two against two
		{votes(ahead, ahead, ahead, 0), false},
		{votes(bound, bound), true},
		{votes(bound+1, bound+1), false},
		{votes(-2*ttl-bound, -2*ttl-bound), true},
		{votes(-2*ttl-bound-1, -2*ttl-bound-1), false},
	} {
		err := judge(now, test.votes)
		if (err == nil) != test.ok {
			t.Errorf("%+v: %v", test.votes, err)
		}
		var busy *provider.BusyError
		if err != nil && (!errors.As(err, &busy) || !strings.Contains(err.Error(), snowflake.FormatMS(now)) || !strings.Contains(err.Error(), "NTP")) {
			t.Errorf("the error is %v", err)
		}
	}
}

// host is a provider on the store whose clock is off by so much.
type host struct {
	*Provider
	off atomic.Int64
}

func hosts(t *testing.T, cfg Config, now *atomic.Int64, offsets ...time.Duration) (all []*host) {
	for i, off := range offsets {
		h := &host{}
		h.off.Store(off.Milliseconds())
		cfg.Host = fmt.Sprint("host", i)
		cfg.NowMS = func() int64 { return now.Load() + h.off.Load() }
		h.Provider = mustOpen(t, cfg)
		all = append(all, h)
	}
	return all
}

func (h *host) acquire(t *testing.T) error {
	t.Helper()
	_, err := h.Acquire(testContext(t), provider.AcquireRequest{})
	var busy *provider.BusyError
	if err != nil && !errors.As(err, &busy) {
		t.Fatal(err)
	}
	return err
}

// TestWrongClocksAreRefused: twenty hosts that renew all the time, and one that
// is an hour ahead and one that is an hour behind.
func TestWrongClocksAreRefused(t *testing.T) {
	var now atomic.Int64
	now.Store(snowflake.DefaultEpochMS + 1e9)
	offsets := make([]time.Duration, 22)
	offsets[20], offsets[21] = time.Hour, -time.Hour
	all := hosts(t, config(t, defaultServices(), nil), &now, offsets...)
	for range 3 {
		for i, h := range all {
			if err := h.acquire(t); (err != nil) != (i >= 20) {
				t.Fatalf("host %d, off by %v: %v", i, offsets[i], err)
			}
			now.Add(1000)
		}
	}
	// And back as soon as it is right.
	all[20].off.Store(0)
	if err := all[20].acquire(t); err != nil {
		t.Errorf("the clock is right again: %v", err)
	}
}

// TestFirstHostsAreWrong: the right ones get in, at the latest when they are as
// many.
func TestFirstHostsAreWrong(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		var now atomic.Int64
		now.Store(snowflake.DefaultEpochMS + 1e9)
		all := hosts(t, config(t, defaultServices(), nil), &now, off, 0, 0)
		for i, h := range all {
			if err := h.acquire(t); err != nil {
				t.Errorf("one wrong host, host %d: %v", i, err)
			}
		}
		if err := all[0].acquire(t); err == nil {
			t.Error("the wrong one is not refused when the others are more")
		}

		all = hosts(t, config(t, defaultServices(), nil), &now, off, off, off, 0, 0, 0)
		for range 2 {
			for _, h := range all[:3] {
				must.Succeed(t, h.acquire(t))
			}
		}
		for _, h := range all[3:] {
			_ = h.acquire(t) // whatever comes of it, they have voted
		}
		for i, h := range all[3:] {
			if err := h.acquire(t); err != nil {
				t.Errorf("three wrong hosts, right host %d: %v", i, err)
			}
		}
	}
}

// A vote that nobody renews is gone when its time is over, by etcd's timer, so
// that a pool that was idle for long believes the first that comes.
func TestVotesEnd(t *testing.T) {
	var now atomic.Int64
	now.Store(snowflake.DefaultEpochMS + 1e9)
	cfg := config(t, defaultServices(), nil)
	all := hosts(t, cfg, &now, 0, 0, 0, 0)
	for _, h := range all[:3] {
		must.Succeed(t, h.acquire(t))
	}
	for _, h := range all[:3] {
		p := h.pool(provider.DefaultTerms())
		resp, err := h.conn.KV.TimeToLive(testContext(t), p.voice.id, clientv3.WithAttachedKeys())
		if err != nil || resp.GrantedTTL != 600 || len(resp.Keys) != 1 || !strings.Contains(string(resp.Keys[0]), "/clock/") {
			t.Errorf("the vote's lease is %+v (%v), want 600 s and nothing but the vote on it", resp, err)
		}
		if _, err := h.conn.KV.Revoke(context.Background(), p.voice.id); err != nil {
			t.Fatal(err)
		}
	}
	now.Add((48 * time.Hour).Milliseconds())
	if err := all[3].acquire(t); err != nil {
		t.Error(err)
	}
}
