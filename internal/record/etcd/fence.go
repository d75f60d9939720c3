package etcd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/record"
)

const (
	// lifeChars is how long the name of a life is, which each sequence has.
	lifeChars = 10
	// aheadMS is how far the floor of a new life is above the operator's clock: more than the
	// clock is behind the one that began a life before, which may be forgotten.
	aheadMS = 60_000
	// hiddenTokens is the least distance of a floor from the floor of the life before.
	hiddenTokens = 100_000
	// momentMS is how long a fence lasts that etcd has not ended.
	momentMS = 1000
	// maxRestates bounds how often others may change the area's record first.
	maxRestates = 10
)

// reason takes the area's name.
const reason = "an operator said that the data was put back (kazahanad AREA fence); what was granted since may be missing. " +
	"Where nothing is missing, say so with: kazahanad AREA init"

// facts is the area's record of its life since an operator has fenced it. There is none before.
type facts struct {
	Life   string `json:"life"`  // drawn for each fence
	Floor  int64  `json:"floor"` // of the life
	Doubt  bool   `json:"doubt"` // until Init; without it there are no times
	FromMS int64  `json:"from_ms"`
	// UntilMS is when all has ended that may be missing, by the clocks of hosts.
	UntilMS int64  `json:"until_ms"`
	Reason  string `json:"reason"`
	// LongestMS is the longest grant that is known.
	LongestMS int64 `json:"longest_ms"`
}

// life is the area's present life, in the present cluster.
type life struct {
	name string // "": nothing was seen
	text string // of the facts, as they are stored; "": there are none
	facts
	runs bool // by etcd, the time of the fence is not over
}

func (s *Store) fencePath() string { return s.prefix + "fence" }

// runsPath hangs on an etcd lease that lasts as long as a fence.
func (s *Store) runsPath() string { return s.prefix + "fence/runs" }

// getLife reads all that lifeOf needs.
func (s *Store) getLife() clientv3.Op { return clientv3.OpGet(s.fencePath(), clientv3.WithPrefix()) }

// lifeOf reads the answer to getLife.
func (s *Store) lifeOf(header *etcdserverpb.ResponseHeader, found []*mvccpb.KeyValue) (life, error) {
	l := life{name: strconv.FormatUint(header.ClusterId, 16)}
	for _, kv := range found {
		switch string(kv.Key) {
		case s.runsPath():
			l.runs = true
		case s.fencePath():
			l.text = string(kv.Value)
			err := json.Unmarshal(kv.Value, &l.facts)
			if err == nil && l.Life == "" {
				err = errors.New("it names no life")
			}
			if err != nil {
				return life{}, s.damaged(kv.Key, err)
			}
			l.name += "." + l.Life
		}
	}
	return l, nil
}

// sameLife compares with the area's record. A process that has not seen a fence, or its end, can
// change nothing.
func (s *Store) sameLife(l life) clientv3.Cmp {
	if l.text == "" {
		return clientv3.Compare(clientv3.ModRevision(s.fencePath()), "=", 0)
	}
	return clientv3.Compare(clientv3.Value(s.fencePath()), "=", l.text)
}

// show completes a view. While etcd says that the time of the fence is not over, no clock of
// a host says that it is: the fence lasts for a moment more.
func (l life) show(v *record.View) {
	v.Life, v.Floor = l.name, max(v.Floor, l.Floor)
	if !l.Doubt {
		return
	}
	v.Fence = record.Fence{Doubt: true, FromMS: l.FromMS, UntilMS: l.UntilMS, Reason: l.Reason}
	if l.runs {
		v.Fence.UntilMS = max(l.UntilMS, v.NowMS+momentMS)
	}
}

// short reports whether this process grants for longer than the fence lasts. Its own grants may
// be among the missing ones.
func (s *Store) short(l life) bool { return l.Doubt && l.LongestMS < s.area.Longest() }

// lengthen has the fence last as long as this process grants.
func (s *Store) lengthen(ctx context.Context) error {
	return s.restate(ctx, func(f facts) facts {
		if s.short(life{facts: f}) {
			f.LongestMS = s.area.Longest()
			f.UntilMS = max(f.UntilMS, f.FromMS+f.LongestMS)
		}
		return f
	})
}

// Fence implements record.Store.
func (s *Store) Fence(ctx context.Context) error {
	fromMS, longestMS := s.nowMS(), s.area.Longest()
	if s.area.FollowsClock {
		// The times in the values count there. As far as is known, a grant that is missing began at
		// the latest time that the records have had, or before. One record holds grants of many
		// hosts, so the last writer's clock does not tell.
		atMS, grantMS, err := s.latest(ctx)
		if err != nil {
			return err
		}
		fromMS, longestMS = max(fromMS, atMS), max(longestMS, grantMS)
	}
	name := rand.Text()[:lifeChars]
	return s.restate(ctx, func(before facts) facts {
		if before.Life == name {
			return before // an earlier try was carried out
		}
		f := facts{
			Life: name, Doubt: true, FromMS: fromMS, LongestMS: max(longestMS, before.LongestMS),
			Floor: max(before.Floor+hiddenTokens, (fromMS+aheadMS)*1000), Reason: strings.ReplaceAll(reason, "AREA", s.area.Name),
		}
		f.UntilMS = max(before.UntilMS, fromMS+f.LongestMS)
		return f
	})
}

// latest returns the latest time that the records have had, by the clock of the host that wrote it,
// and the longest grant.
func (s *Store) latest(ctx context.Context) (atMS, grantMS int64, err error) {
	for from, read := "", record.MaxPage; read == record.MaxPage; {
		all, err := s.page(ctx, from, "", record.MaxPage)
		if err != nil {
			return 0, 0, err
		}
		read = 0
		for k, err := range all {
			if err == nil { // a damaged one is for people
				atMS, grantMS = max(atMS, k.latest()), max(grantMS, k.Grant)
			}
			from = k.key + "\x00"
			read++
		}
	}
	return atMS, grantMS, nil
}

// Init implements record.Store. The life goes on.
func (s *Store) Init(ctx context.Context) error {
	return s.restate(ctx, func(f facts) facts {
		if !f.Doubt {
			return f
		}
		return facts{Life: f.Life, Floor: f.Floor, LongestMS: f.LongestMS}
	})
}

// restate replaces the area's record by what change makes of it, until that is the same. An answer
// that was lost is found so, too.
func (s *Store) restate(ctx context.Context, change func(facts) facts) error {
	for range maxRestates {
		resp, err := s.get(ctx, s.getLife())
		if err != nil {
			return err
		}
		before, err := s.lifeOf(resp.Header, resp.Responses[0].GetResponseRange().Kvs)
		if err != nil {
			return err
		}
		after := change(before.facts)
		if after == before.facts {
			return nil
		}
		ops, err := s.putLife(ctx, before, after)
		if err != nil {
			return err
		}
		if err := s.conn.Call(ctx, func(ctx context.Context) error {
			_, err := s.conn.KV.Txn(ctx).If(s.sameLife(before)).Then(ops...).Commit()
			return err
		}); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: %s: %w", s.conn.Config().Place(), s.fencePath(), record.ErrBusy)
}

// putLife writes the facts. A fence that begins, or becomes longer, lasts from now on by etcd's own
// measure. One that is over by then stays over: a process that grants for longer may come long after
// it, and its grants count by the clocks of hosts.
func (s *Store) putLife(ctx context.Context, before life, f facts) ([]clientv3.Op, error) {
	text, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	ops := []clientv3.Op{clientv3.OpPut(s.fencePath(), string(text))}
	if !f.Doubt {
		return append(ops, clientv3.OpDelete(s.runsPath())), nil
	}
	if s.area.FollowsClock && f.Life == before.Life && !before.runs && s.nowMS() >= f.UntilMS {
		return ops, nil
	}
	var lease *clientv3.LeaseGrantResponse
	if err := s.conn.Call(ctx, func(ctx context.Context) (err error) {
		lease, err = s.conn.KV.Grant(ctx, f.LongestMS/1000+1)
		return err
	}); err != nil {
		return nil, err
	}
	return append(ops, clientv3.OpPut(s.runsPath(), "", clientv3.WithLease(lease.ID))), nil
}
