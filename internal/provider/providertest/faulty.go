package providertest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Op is an operation of a provider that can be made to fail.
type Op string

// The operations.
const (
	OpAcquire Op = "acquire"
	OpRelease Op = "release"
	OpVerify  Op = "verify"
)

// Fault is what goes wrong in one call. The zero value is no fault. The parts happen in
// the order of the fields.
type Fault struct {
	Delay  time.Duration // pass before anything else, or the context ends the call
	Hang   bool          // until the context ends, then its error; nothing is done
	Err    error         // return it; nothing is done
	Lose   error         // do the work, then return this instead of the answer
	Change func([]lease.Lease) []lease.Lease
}

// Fail makes a call return err without doing anything.
func Fail(err error) Fault { return Fault{Err: err} }

// Hang makes a call wait until its context ends.
func Hang() Fault { return Fault{Hang: true} }

// Change makes an acquire return every lease as edit leaves it.
func Change(edit func(*lease.Lease)) Fault {
	return Fault{Change: func(all []lease.Lease) []lease.Lease {
		for i := range all {
			edit(&all[i])
		}
		return all
	}}
}

// Faulty passes calls on to a provider, with faults. It starts no goroutine and waits on
// timers and contexts only, never while it holds its lock, so that it works in a synctest
// bubble. It is safe for concurrent use.
type Faulty struct {
	provider.Provider // the inner one

	mu     sync.Mutex
	next   map[Op][]Fault
	always map[Op]Fault
	calls  map[Op]int
}

// NewFaulty returns a wrapper without faults.
func NewFaulty(inner provider.Provider) *Faulty {
	return &Faulty{Provider: inner, next: map[Op][]Fault{}, always: map[Op]Fault{}, calls: map[Op]int{}}
}

// Next adds faults for the next calls of op, one each, after the faults that were added before.
// Fault{} lets one pass.
func (f *Faulty) Next(op Op, faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next[op] = append(f.next[op], faults...)
}

// Always sets the fault of every call of op for which Next has none.
func (f *Faulty) Always(op Op, fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.always[op] = fault
}

// Heal forgets all faults. Calls under way keep theirs.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.next)
	clear(f.always)
}

// Calls is how many calls of op there were, failed ones included.
func (f *Faulty) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// call makes a call with its fault.
func (f *Faulty) call(ctx context.Context, op Op, do func() error) (Fault, error) {
	f.mu.Lock()
	f.calls[op]++
	fault := f.always[op]
	if queue := f.next[op]; len(queue) > 0 {
		fault, f.next[op] = queue[0], queue[1:]
	}
	f.mu.Unlock()
	if fault.Delay > 0 {
		select {
		case <-time.After(fault.Delay):
		case <-ctx.Done():
			return fault, ctx.Err()
		}
	}
	if fault.Hang {
		<-ctx.Done()
		return fault, ctx.Err()
	}
	if fault.Err != nil {
		return fault, fault.Err
	}
	if err := do(); err != nil {
		return fault, err
	}
	return fault, fault.Lose
}

// Acquire implements provider.Provider.
func (f *Faulty) Acquire(ctx context.Context, req provider.AcquireRequest) (leases []lease.Lease, err error) {
	fault, err := f.call(ctx, OpAcquire, func() (err error) {
		leases, err = f.Provider.Acquire(ctx, req)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case fault.Change != nil:
		return fault.Change(slices.Clone(leases)), nil
	}
	return leases, nil
}

// Release implements provider.Provider.
func (f *Faulty) Release(ctx context.Context, req provider.ReleaseRequest) error {
	_, err := f.call(ctx, OpRelease, func() error { return f.Provider.Release(ctx, req) })
	return err
}

// Verify implements provider.Provider.
func (f *Faulty) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	_, err = f.call(ctx, OpVerify, func() (err error) {
		lost, err = f.Provider.Verify(ctx, service, claims)
		return err
	})
	if err != nil {
		return nil, err
	}
	return lost, nil
}
