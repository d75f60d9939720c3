package keeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// travelTime is how long a message takes to the provider or back. It keeps what
// follows from a grant off the whole seconds at which a keeper wakes anyway.
const travelTime = 15 * time.Millisecond

var (
	errDown = errors.New("connection refused")

	unreachable = providertest.Fail(errDown)
	hanging     = providertest.Hang() // takes the connection and never answers
	answerLost  = providertest.Fault{Lose: errors.New("the answer was lost")}
)

// call is one call of the provider, as the keeper made it.
type call struct {
	op     providertest.Op
	at     time.Duration // since the test began
	ask    provider.AcquireRequest
	back   provider.ReleaseRequest
	leases []lease.Lease
	err    error
}

func (c call) String() string {
	if c.op == providertest.OpRelease {
		return fmt.Sprintf("\n%v: release %d stamped %d: %v", c.at, c.back.ID, c.back.TimestampMS, c.err)
	}
	return fmt.Sprintf("\n%v: %s %d, request %s: %v %v", c.at, c.op, c.ask.ThroughputPerMS, c.ask.RequestID, c.leases, c.err)
}

// line is the way to a provider and back.
type line struct {
	provider.Provider
	granted func([]lease.Lease)
}

// travel takes its time on the way there, and again on the way back.
func (l line) travel(ctx context.Context, call func() error) error {
	if err := wait(ctx, travelTime); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	return wait(ctx, travelTime)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l line) Acquire(ctx context.Context, req provider.AcquireRequest) (leases []lease.Lease, err error) {
	err = l.travel(ctx, func() (err error) {
		leases, err = l.Provider.Acquire(ctx, req)
		l.granted(leases)
		return err
	})
	return leases, err
}

func (l line) Release(ctx context.Context, req provider.ReleaseRequest) error {
	return l.travel(ctx, func() error { return l.Provider.Release(ctx, req) })
}

func (l line) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	err = l.travel(ctx, func() (err error) {
		lost, err = l.Provider.Verify(ctx, service, claims)
		return err
	})
	return lost, err
}

// remote is a provider, in memory unless the setup has another, at the end of
// a line that tests can cut. It records every call, and holds the keeper to what must be true of one.
type remote struct {
	provider.Lacking
	rig    *rig
	inner  provider.Provider
	faulty *providertest.Faulty
	wrong  atomic.Int64 // the provider's clock minus the true time, ms

	mu       sync.Mutex
	calls    []*call
	granted  []lease.Lease        // by the real provider, heard of or not
	received []lease.Lease        // well-formed ones, as the keeper got them
	left     map[lease.Key]string // released or lost: why
}

func newRemote(r *rig) *remote {
	p := &remote{rig: r, left: map[lease.Key]string{}}
	open := r.setup.open
	if open == nil {
		open = func(terms provider.Terms, nowMS func() int64) (provider.Provider, error) {
			return providertest.OverMemory(memory.New(nowMS), provider.Services{Default: terms})
		}
	}
	var err error
	if p.inner, err = open(r.setup.terms, p.nowMS); err != nil {
		r.t.Fatal(err)
	}
	p.faulty = providertest.NewFaulty(line{p.inner, func(leases []lease.Lease) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.granted = append(p.granted, leases...)
	}})
	for _, l := range both(r.setup.saved.Held, r.setup.saved.Cached) {
		p.granted, p.received = append(p.granted, l), append(p.received, l)
	}
	return p
}

// plain is a provider that cannot verify.
type plain struct{ provider.Provider }

func (p plain) Verify(context.Context, string, []provider.Claim) ([]int, error) {
	return nil, errors.ErrUnsupported
}

// face is what the keeper is given.
func (p *remote) face() provider.Provider {
	if p.rig.setup.plain {
		return plain{p}
	}
	return p
}

// nowMS is the provider's clock.
func (p *remote) nowMS() int64 {
	if p.rig.setup.hostClock {
		return p.rig.host.ms()
	}
	return startMS + p.rig.elapsed().Milliseconds() + p.wrong.Load()
}

func (p *remote) jump(d time.Duration) { p.wrong.Add(d.Milliseconds()) }

// fail has the operations suffer the fault from now on, or all of them when
// none is named.
func (p *remote) fail(f providertest.Fault, ops ...providertest.Op) {
	if len(ops) == 0 {
		ops = []providertest.Op{providertest.OpAcquire, providertest.OpRelease, providertest.OpVerify}
	}
	for _, op := range ops {
		p.faulty.Always(op, f)
	}
}

// answer has every acquire return what edit makes of the real answer.
func (p *remote) answer(edit func([]lease.Lease) []lease.Lease) {
	p.fail(providertest.Fault{Change: edit}, providertest.OpAcquire)
}

// heal makes everything work again.
func (p *remote) heal() { p.faulty.Heal() }

func (p *remote) Info() provider.Info { return p.inner.Info() }

func (p *remote) Close() error { return nil }

// do records one call.
func (p *remote) do(ctx context.Context, c *call, do func() error) error {
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > p.rig.setup.CallTimeout {
		p.rig.t.Errorf("at %v: %s has no deadline within %v", p.rig.elapsed(), c.op, p.rig.setup.CallTimeout)
	}
	c.at = p.rig.elapsed()
	p.mu.Lock()
	p.calls = append(p.calls, c)
	p.mu.Unlock()
	err := do()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.err = err
	return err
}

func (p *remote) Acquire(ctx context.Context, req provider.AcquireRequest) (leases []lease.Lease, err error) {
	c := &call{op: providertest.OpAcquire, ask: req}
	err = p.do(ctx, c, func() (err error) {
		leases, err = p.faulty.Acquire(ctx, req)
		return err
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	c.leases = leases
	for _, l := range leases {
		if l.Validate() == nil {
			p.received = append(p.received, l)
		}
	}
	return leases, err
}

// Release also checks, before anything else happens, all that a keeper must
// have done before it lets go of a lease.
func (p *remote) Release(ctx context.Context, req provider.ReleaseRequest) error {
	t, at := p.rig.t, p.rig.elapsed()
	l, ok := p.signed(req.ID, req.BitSeq, req.Signed)
	if !ok {
		t.Errorf("at %v: the release of machine ID %d is not signed with the secret of a lease", at, req.ID)
	}
	if has(p.rig.gen.published(), l) {
		t.Errorf("at %v: release sent while the generator may still use the lease: %v", at, l)
	}
	if has(p.rig.store.leases(), l) {
		t.Errorf("at %v: release sent while the durable state still holds the lease: %v", at, l)
	}
	if last := p.rig.lastMS(); p.rig.gen.everUsed(l) && req.TimestampMS < last {
		t.Errorf("at %v: release stamped %d, and an ID embeds %d: %v", at, req.TimestampMS, last, l)
	}
	if req.Service != service {
		t.Errorf("at %v: release of service %q", at, req.Service)
	}
	p.leave(l, "released")
	err := p.do(ctx, &call{op: providertest.OpRelease, back: req}, func() error { return p.faulty.Release(ctx, req) })
	if provablyNotReleased(err) {
		p.mu.Lock()
		delete(p.left, l.Key())
		p.mu.Unlock()
	}
	return err
}

func (p *remote) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	err = p.do(ctx, &call{op: providertest.OpVerify}, func() (err error) {
		lost, err = p.faulty.Verify(ctx, service, claims)
		return err
	})
	for _, i := range lost {
		if l, ok := p.signed(claims[i].ID, claims[i].BitSeq, claims[i].Signed); ok {
			p.leave(l, "lost")
		}
	}
	return lost, err
}

// provablyNotReleased is what the interface of providers says of an error. It is
// not the keeper's own reading of it.
func provablyNotReleased(err error) bool {
	switch err.(type) {
	case *provider.FencedError, *provider.BusyError:
		return true
	}
	return errors.Is(err, provider.ErrNotSent) || errors.Is(err, provider.ErrTimestampSkew) || errors.Is(err, provider.ErrInvalid)
}

// signed finds the lease with the secret that signed a request about it.
func (p *remote) signed(machineID int64, bitSeq int, with func(secret string) bool) (lease.Lease, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range append(p.granted[:len(p.granted):len(p.granted)], p.received...) {
		if l.ID == machineID && l.BitSeq == bitSeq && with(l.Secret) {
			return l, true
		}
	}
	return lease.Lease{}, false
}

func (p *remote) leave(l lease.Lease, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left[l.Key()] = why
}

// gone says why the lease must not be used any more, "" if it may.
func (p *remote) gone(l lease.Lease) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left[l.Key()]
}

// allows reports whether a lease that the keeper got allows a regular ID.
func (p *remote) allows(unixMS, low int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.received {
		if s := l.Slot(); s.Start <= low && low < s.End && l.Allows(unixMS) {
			return true
		}
	}
	return false
}

func (p *remote) secrets() (secrets []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range append(p.granted[:len(p.granted):len(p.granted)], p.received...) {
		if l.Secret != "" {
			secrets = append(secrets, l.Secret)
		}
	}
	return secrets
}

// of is the calls of one operation so far.
func (p *remote) of(op providertest.Op) (calls []call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if c.op == op {
			calls = append(calls, *c)
		}
	}
	return calls
}

// records is what the provider remembers, by machine ID.
func (p *remote) records() map[int64]provider.Record {
	list, err := p.inner.List(context.Background(), service)
	must.Succeed(p.rig.t, err)
	records := map[int64]provider.Record{}
	for _, record := range list {
		records[record.Lease.ID] = record
	}
	return records
}

// taken is how many slots no client could be granted now.
func (p *remote) taken() (n int) {
	for _, record := range p.records() {
		if record.End > p.nowMS() {
			n++
		}
	}
	return n
}

// takeAway gives the lease back behind the keeper's back, as happens when a
// store forgets it or an operator frees its slot.
func (p *remote) takeAway(l lease.Lease) {
	now := p.nowMS()
	err := p.inner.Release(context.Background(), provider.ReleaseRequest{
		Service: service, ID: l.ID, BitSeq: l.BitSeq, TimestampMS: now, Signature: lease.Sign(l.Secret, l.ID, now),
	})
	must.Succeed(p.rig.t, err)
}
