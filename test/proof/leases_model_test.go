package proof

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/record"
)

// leaseModel is hosts that lease from one model of a store, by the product's pool. Each knows its
// own last look, and on etcd each goes by its own clock. A call is made by any of them. On the
// others, the clock is the server's.
type leaseModel struct {
	provider.Provider // the first host, for all unchanged methods
	w                 *world
	records           *records
	all               []*pool.Provider
	greatest          int64 // that the clock has shown
	done              int   // changes before the present call
}

// direct is a way on which nothing happens.
type direct struct{ *records }

func (direct) turn(context.Context, string) error { return nil }

func (d direct) send(_ context.Context, _ string, do func(record.Store) error) error {
	return do(d.records)
}

// leaseWay is the way of a host to the model: the world loses the calls before. On it, the clock of
// Redis steps, and the server forgets: between what a change has seen and its commit too.
type leaseWay struct {
	direct
	m *leaseModel
}

func (l leaseWay) send(ctx context.Context, what string, do func(record.Store) error) error {
	m := l.m
	if m.records.kind == onRedis {
		if m.w.rnd.IntN(40) == 0 {
			m.w.count("clock of Redis stepped during a call")
			m.w.skew += m.w.rnd.Int64N(21) - 10
		}
		// The trail knows of a grant when its call is over.
		if m.w.rnd.IntN(200) == 0 && len(m.records.done) == m.done {
			m.fallBack()
		}
	}
	return l.direct.send(ctx, what, do)
}

// openPool has the world lease from records in a model.
func (w *world) openPool(services provider.Services, nowMS func() int64) provider.Provider {
	m := &leaseModel{w: w}
	m.records = &records{w: w, kind: w.kind, area: pool.AreaOf(services), clock: func() int64 {
		now := nowMS()
		m.greatest = max(m.greatest, now)
		return now
	}}
	m.records.drawReplicas()
	m.records.begin()
	if m.records.first != nil {
		m.records.first = m.records.first.granting(services.LongestMS())
		m.records.lives = m.records.first
	}
	var sessions []*session
	m.records.users = func() []*session { return sessions }
	for range 3 {
		cfg := pool.Config{Services: services, Info: provider.Info{Name: "records", Scope: provider.ScopeShared}, Random: w.rnd.Int64N}
		var clock func() int64
		if w.kind == onEtcd {
			clock = func() int64 { return nowMS() + w.rnd.Int64N(61) - 30 }
		}
		cfg.Records = m.records.client(leaseWay{direct{m.records}, m}, m.records, clock)
		if of, is := cfg.Records.(*session); is {
			sessions = append(sessions, of)
		}
		p, err := pool.New(cfg)
		must(err, nil)
		m.all = append(m.all, p)
	}
	m.Provider, w.leaseModel = m.all[0], m
	return m
}

// host is the host that makes the next call, at random.
func (m *leaseModel) host() *pool.Provider {
	if m.records.kind == onEtcd && m.w.rnd.IntN(50) == 0 {
		m.fallBack()
	}
	m.done = len(m.records.done)
	return m.all[m.w.rnd.IntN(len(m.all))]
}

// fallBack has the server forget. Of two servers, the clocks differ by less than any quarantine:
// the second's is not behind. Where nothing is lost that anyone relies on, it may be.
func (m *leaseModel) fallBack() {
	w := m.w
	switch {
	case m.records.lives == nil:
		m.records.fallBack(0)
		return
	case m.records.trusting:
		w.skew += w.rnd.Int64N(61) - 30
	default:
		w.skew += max(0, m.greatest-m.records.now())
	}
	before := m.grants()
	m.records.fallBack(w.rnd.IntN(30))
	w.skew, m.records.ahead = w.skew+m.records.ahead, 0
	m.records.view() // the fence begins by the clock of the second server, before that steps
	if m.grants() != before && !m.records.trusting {
		w.trail.befalls("Restore")
		w.count("stores restored")
	}
}

// grants is what the model has of them.
func (m *leaseModel) grants() string {
	heads, err := m.records.Store.List(context.Background(), "block/", "", record.MaxPage)
	must(err, nil)
	var all []string
	for _, one := range heads { // a list cuts values off
		v, err := m.records.Store.Read(context.Background(), record.Ask{Keys: []string{one.Key}})
		must(err, nil)
		all = append(all, fmt.Sprintf("%s %x", one.Key, v.Records[one.Key].Value))
	}
	return strings.Join(all, "\n")
}

// leaseTime is longer than any call: nothing answers late between a host and this store.
const leaseTime = time.Minute

// Acquire implements provider.Provider.
func (m *leaseModel) Acquire(_ context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	defer m.w.streams((*stream).collect) // time may have passed
	ctx, cancel := context.WithTimeout(context.Background(), leaseTime)
	defer cancel()
	m.w.count("leases asked for in a model of " + m.records.kind.String())
	return m.host().Acquire(ctx, req)
}

// Release implements provider.Provider.
func (m *leaseModel) Release(ctx context.Context, req provider.ReleaseRequest) error {
	defer m.w.streams((*stream).collect)
	return m.host().Release(ctx, req)
}

// Verify implements provider.Provider.
func (m *leaseModel) Verify(ctx context.Context, service string, claims []provider.Claim) ([]int, error) {
	defer m.w.streams((*stream).collect)
	return m.host().Verify(ctx, service, claims)
}

// Extend implements provider.Provider.
func (m *leaseModel) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	defer m.w.streams((*stream).collect)
	return m.host().Extend(ctx, req)
}
