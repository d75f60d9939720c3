package proof

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/runner"
	"github.com/kazahana/kazahana/test/trace"
)

// extender is a client like `kazahana run`: it acquires one lease, extends it by the rules of
// internal/runner, and makes IDs under it, in one ascending stream for each lease. It draws from a
// source of its own, so that a world without one goes as it would if there were none at all.
type extender struct {
	provider.Provider // at the end of the wire
	w                 *world
	name              string
	rnd               *rand.Rand
	ahead             int64 // its clock minus the true time; jumps
	lives             int

	life    string // the trail's name of this life
	service string
	holding *runner.LeaseHolding // nil: none
	end     time.Duration        // by Boot, when the lease ends
	due     time.Duration        // by Boot, when it is to be extended
	ms, low int64                // of the last ID
}

// extendPart is the part of a term after which the runner extends a lease.
const extendPart = 3

// drawExtenders says by the seed how many there are. Without a free slot they would only wait.
func (w *world) drawExtenders() {
	rnd := newRand(w.seed ^ 0xE7E4)
	n := max(0, rnd.IntN(4)-1)
	switch {
	case w.focus == restoredExtendsNothing, w.leases != nil, w.leaseModel != nil: // stores are put back
		n = 2
	case w.tight:
		n = 0
	}
	for i := range n {
		w.extenders = append(w.extenders, &extender{Provider: w.provider, w: w, name: fmt.Sprint("extender", i), rnd: newRand(rnd.Uint64())})
	}
}

// Wall implements clock.Source.
func (x *extender) Wall() int64 { return (x.w.nowMS() + x.ahead) * int64(time.Millisecond) }

// Boot implements clock.Source.
func (x *extender) Boot() time.Duration { return time.Since(x.w.began) }

// act takes the due step.
func (x *extender) act() {
	switch x.rnd.IntN(40) {
	case 0, 1:
		x.ahead += x.w.pace * (x.rnd.Int64N(61) - 30)
	case 2, 3, 4:
		x.ahead = 0
	}
	switch {
	case x.holding == nil:
		if x.rnd.IntN(4) == 0 {
			x.begin()
		}
	case x.Boot() >= x.end || x.rnd.IntN(200) == 0:
		x.leave()
	case x.Boot() >= x.due:
		x.extend()
	}
}

// begin begins a life with a lease, if there is one.
func (x *extender) begin() {
	w := x.w
	x.lives++
	x.life = fmt.Sprint(x.name, " in life ", x.lives)
	x.service, x.ms, x.low = serviceNames[x.rnd.IntN(len(serviceNames))], 0, 0
	w.trail.note(trace.PoolStep{Do: "Start", Proc: x.life, Folder: x.life, Machine: x.name})
	req := provider.AcquireRequest{Service: x.service, RequestID: x.life, ThroughputPerMS: 1}
	w.trail.askers[req.RequestID] = &trailed{name: x.life}
	asked := x.Boot()
	leases, err := x.Acquire(context.Background(), req)
	w.streams((*stream).collect) // time may have passed
	if err != nil {
		x.over()
		return
	}
	l := leases[0]
	w.tells("%s is granted %v", x.life, l)
	x.holding = runner.HoldLease(l, x, x.service, x, func(string, ...any) {})
	x.end, x.due = asked+x.holding.Term, asked+x.holding.Term/extendPart
	w.trail.note(trace.PoolStep{Do: "Receive", Proc: x.life, Lease: w.trail.names[l.Secret], Request: req.RequestID})
}

// extend asks for a longer lease, and goes on with what the runner makes of the answer.
func (x *extender) extend() {
	w, before, sent := x.w, x.holding.Lease, x.Boot()
	end, err := x.holding.Extend(context.Background(), sent, x.end)
	w.streams((*stream).collect)
	w.tells("%s extends its lease to %v: %v", x.life, x.holding.Lease, err)
	if lost := new(runner.LostError); errors.As(err, &lost) {
		x.over()
		return
	}
	x.end, x.due = end, x.Boot()+x.holding.Term/20
	if err != nil {
		return
	}
	w.count("leases extended")
	x.due = sent + x.holding.Term/extendPart
	if l := x.holding.Lease; l.Expired > before.Expired {
		w.trail.note(trace.PoolStep{Do: "Extended", Proc: x.life, Lease: w.trail.names[l.Secret], Expired: l.Expired, Until: l.ReservedUntil})
	}
}

// leave ends the life: by a kill -9, or with a release that is sent once.
func (x *extender) leave() {
	if x.rnd.IntN(2) == 0 {
		x.over()
		return
	}
	w, l := x.w, x.holding.Lease
	at := max(x.Wall()/int64(time.Millisecond), x.ms)
	step := trace.PoolStep{Proc: x.life, Lease: w.trail.names[l.Secret], MS: at}
	does := func(do string) {
		step.Do = do
		w.trail.note(step)
	}
	does("Seal")
	does("Forget")
	does("Send")
	held := x.holding
	x.holding = nil
	if _, err := held.Release(context.Background(), callDeadline, at); err == nil {
		does("Released")
	} else {
		does("Unanswered")
	}
	w.streams((*stream).collect)
	x.over()
}

// over ends the life.
func (x *extender) over() {
	x.holding = nil
	x.w.trail.note(trace.PoolStep{Do: "Kill", Proc: x.life})
}

// make makes some IDs by the emit rule.
func (x *extender) make() {
	if x.holding == nil || x.w.fault != "" {
		return
	}
	w, l := x.w, x.holding.Lease
	at := max(x.Wall()/int64(time.Millisecond), x.ms)
	for range 1 + x.rnd.IntN(4) {
		if at > x.ms {
			x.ms, x.low = at, l.Slot().Start
		}
		if !l.Allows(at) || x.low >= l.Slot().End || x.Boot() >= x.end {
			return
		}
		id := w.timeline.ID(at, x.low)
		w.regular++
		w.trail.note(trace.PoolStep{Do: "Emit", Proc: x.life, MS: at, ID: int64(id), Low: x.low, From: len(w.trail.Steps)})
		w.judge(id, origin{by: x.name, kind: generator.Regular})
		x.low++
	}
}

// wire has requests and answers get lost, or a request arrive late or twice. send says whether it
// was carried out.
func (x *extender) wire(send func() error) error {
	w := x.w
	if w.nowMS() < w.downUntil {
		return errLost
	}
	switch x.rnd.IntN(20) {
	case 0:
		return errLost
	case 1:
		_ = send()
		return errLost
	case 2:
		life := x.life
		w.later(func() {
			if x.holding != nil && x.life == life {
				_ = send()
			}
		})
		return errLost
	case 3:
		_ = send()
	}
	return send()
}

// Acquire implements provider.Provider. A lease granted without an answer runs out.
func (x *extender) Acquire(ctx context.Context, req provider.AcquireRequest) (leases []lease.Lease, err error) {
	if x.rnd.IntN(20) == 0 || x.w.nowMS() < x.w.downUntil {
		return nil, errLost
	}
	x.w.trail.carried = req.RequestID
	leases, err = x.Provider.Acquire(ctx, req)
	if x.rnd.IntN(20) == 0 {
		return nil, errLost
	}
	return leases, err
}

// Extend implements provider.Provider.
func (x *extender) Extend(ctx context.Context, req provider.ExtendRequest) (longer lease.Lease, err error) {
	err = x.wire(func() (err error) {
		longer, err = x.Provider.Extend(ctx, req)
		return err
	})
	return longer, err
}

// Release implements provider.Provider.
func (x *extender) Release(ctx context.Context, req provider.ReleaseRequest) error {
	return x.wire(func() error { return x.Provider.Release(ctx, req) })
}
