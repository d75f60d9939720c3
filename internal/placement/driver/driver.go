package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
)

// The defaults of a driver, and bounds.
const (
	DefaultTTL      = 10 * time.Second // of a membership, and of the lock of an activation
	DefaultInterval = time.Second      // between looks at the members

	// commandTimeout is for one command. It is longer than placement.MaxPromise.
	commandTimeout = 5 * time.Second
	// retryFirst and retryMost are between the tries of a Resolve that waits for
	// another host to let go.
	retryFirst = 20 * time.Millisecond
	retryMost  = 500 * time.Millisecond
	// MaxWaiting is how many callers may wait for activations at once, and how many
	// activations for their turn.
	MaxWaiting = 10_000
	// unservedPause is how long one event tells that no host serves a kind, and maxUnserved for
	// how many kinds there may be one meanwhile.
	unservedPause = time.Second
	maxUnserved   = 64
)

// OverloadedError: as many ask for something as may.
type OverloadedError struct {
	Limit   int
	Watches bool // the events of placement; else activations
}

func (e *OverloadedError) Error() string {
	if e.Watches {
		return fmt.Sprintf("placement is overloaded: %d watch its events, and no more may", e.Limit)
	}
	return fmt.Sprintf("placement is overloaded: %d activations are waited for, and no more may be", e.Limit)
}

// Executor is the processes of this host. Its methods return at once, and call
// done once, from any goroutine: within the time after the process was asked.
type Executor interface {
	// Activate has a process activate the key under the record's version and token,
	// with its snapshot; pid is how the process calls it.
	//
	// Errors: any; an error that wraps ErrUnknown leaves open whether it is activated.
	Activate(key placement.Key, r placement.Record, within time.Duration, done func(pid string, err error))

	// Passivate has a process end the activation. The process may return a snapshot; with nil the
	// present snapshot stays.
	Passivate(key placement.Key, r placement.Record, within time.Duration, done func(snapshot []byte, err error))
}

// ErrUnknown: a process may have activated the key all the same.
var ErrUnknown = errors.New("nobody knows whether it was carried out")

// Config is the configuration of a driver.
type Config struct {
	Tenant    string
	Authority string // this host's name among the members; "" for a host that only resolves
	Owner     string // as whom locks are taken
	TTL       time.Duration
	Interval  time.Duration
	IdleTTL   time.Duration      // an actor not resolved for so long is passivated; 0: never
	Strategy  placement.Strategy // nil: placement.Rendezvous
	Locks     lock.Store         // where it tells of changes, members are looked at at once, not only after Interval
	Records   storage.Storage
	Executor  Executor
	Clock     lock.Clock   // counts suspend
	NowMS     func() int64 // wall clock, for events
	Failed    func(what string, err error)
	// Payer returns the values of a context for the snapshot that the process of an activation
	// leaves behind. Optional.
	Payer func(key placement.Key, token int64) context.Context
	// Observe is told of every event, in their order. It returns at once, and asks
	// the driver nothing.
	Observe func(placement.Event)
}

// Driver is the placement of one host: a Core behind a lock, and goroutines that
// carry out its effects. Run has it work.
type Driver struct {
	cfg Config

	mu      sync.Mutex // guards all below
	core    *Core
	waiting map[placement.Key][]chan placement.Done
	callers int                               // that wait
	payers  map[placement.Key]context.Context // the payer of a key's writes, as values
	life    context.Context                   // of the commands; nil before Run and after it
	over    chan struct{}                     // closed when the stop is complete
	timer   *time.Timer
	work    sync.WaitGroup // running commands; added to under mu, while life is not nil
	feed    feed

	unserved      map[string]struct{} // kinds of which an event has told
	unservedUntil time.Duration       // they need no other until then
}

// New makes a driver.
func New(cfg Config) *Driver {
	cfg.TTL, cfg.Interval = cmp.Or(cfg.TTL, DefaultTTL), cmp.Or(cfg.Interval, DefaultInterval)
	terms := Terms{Authority: cfg.Authority, TTL: cfg.TTL, Interval: cfg.Interval, IdleTTL: cfg.IdleTTL, Strategy: cfg.Strategy, NewID: lock.NewLeaseID}
	return &Driver{cfg: cfg, core: NewCore(terms), waiting: map[placement.Key][]chan placement.Done{}, payers: map[placement.Key]context.Context{}}
}

func (d *Driver) now() placement.Moment {
	return placement.Moment{Boot: d.cfg.Clock.Elapsed(), UnixMS: d.cfg.NowMS()}
}

// step tells the core of something, and does what follows.
func (d *Driver) step(f func(now placement.Moment) Effects) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.perform(f(d.now()))
}

// publish tells of the events. mu is held.
func (d *Driver) publish(events []placement.Event) {
	d.feed.publish(events)
	if d.cfg.Observe != nil {
		for _, e := range events {
			d.cfg.Observe(e)
		}
	}
}

// perform carries out the core's wishes. mu is held, so slow work runs in a goroutine.
func (d *Driver) perform(fx Effects) {
	d.publish(fx.Events)
	for _, done := range fx.Done {
		for _, c := range d.waiting[done.Key] {
			c <- done // has room
		}
		delete(d.waiting, done.Key)
		delete(d.payers, done.Key)
	}
	life := d.life
	if life == nil { // before Run there is nothing to do, and after it that is too late
		return
	}
	d.begin(life, fx.Begin)
	if fx.Ask != nil {
		d.work.Go(func() { d.askMembership(life, *fx.Ask) })
	}
	if fx.Look {
		d.work.Go(func() { d.look(life) })
	}
	if fx.Over && d.over != nil {
		close(d.over)
		d.over = nil
	}
	d.wakeAt(d.core.Due())
}

// begin carries commands out: each call of a store in a goroutine, calls of processes one after
// the other, as they are only begun.
func (d *Driver) begin(life context.Context, commands []placement.Command) {
	var processes []placement.Command
	for _, c := range commands {
		if forProcess(c.Op) {
			processes = append(processes, c)
		} else {
			d.work.Go(func() { d.callStore(life, c) })
		}
	}
	if len(processes) > 0 {
		d.work.Go(func() {
			for _, c := range processes {
				d.callProcess(c)
			}
		})
	}
}

// wakeAt sets the timer.
func (d *Driver) wakeAt(due time.Duration) {
	nap := max(due-d.cfg.Clock.Elapsed(), 0)
	if d.timer == nil {
		d.timer = time.AfterFunc(nap, func() { d.step(d.core.Tick) })
		return
	}
	d.timer.Reset(nap)
}

// Resolve tells where the key lives, activating it if that is here, and waits for
// that, and for this host to be ready, up to wait, or until ctx is done.
//
// Errors: placement.ErrInvalid; ErrNotReady, ErrUnserved and ErrPending when the
// wait is over; *OverloadedError; *lock.HeldError and others, why the activation
// failed.
func (d *Driver) Resolve(ctx context.Context, key placement.Key, wait time.Duration) (placement.Resolution, error) {
	r, err := d.resolve(ctx, key, wait)
	if errors.Is(err, placement.ErrUnserved) {
		d.failed("resolve", err)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.tellUnserved(key.Kind) {
			d.publish([]placement.Event{{Kind: placement.Unserved, Key: key, Reason: err.Error(), Err: err, ObservedMS: d.cfg.NowMS()}})
		}
	}
	return r, err
}

// tellUnserved reports whether there is to be an event about the kind: callers that ask on
// and on must not drown the others. mu is held.
func (d *Driver) tellUnserved(kind string) bool {
	if now := d.cfg.Clock.Elapsed(); d.unserved == nil || now >= d.unservedUntil {
		d.unserved, d.unservedUntil = map[string]struct{}{}, now+unservedPause
	}
	if _, told := d.unserved[kind]; told || len(d.unserved) >= maxUnserved {
		return false
	}
	d.unserved[kind] = struct{}{}
	return true
}

func (d *Driver) resolve(ctx context.Context, key placement.Key, wait time.Duration) (placement.Resolution, error) {
	var over <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		over = timer.C
	}
	var last error
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		r, err := d.attempt(ctx, key, over)
		if over == nil || !d.passes(err) {
			if errors.Is(err, placement.ErrPending) {
				err = pending(last)
			}
			return r, err
		}
		last = err
		again := time.NewTimer(pause)
		select {
		case <-again.C:
			continue
		case <-over:
			err = pending(last)
		case <-ctx.Done():
			err = ctx.Err()
		}
		again.Stop()
		return placement.Resolution{}, err
	}
}

// attempt resolves once, and waits for what that begins, until over tells the end
// of the time; nil does not wait.
func (d *Driver) attempt(ctx context.Context, key placement.Key, over <-chan time.Time) (placement.Resolution, error) {
	r, done, err := d.try(ctx, key, over != nil)
	if done == nil {
		return r, err
	}
	defer d.leave(key, done)
	select {
	case result := <-done:
		return result.Resolution, result.Err
	case <-over:
		return r, placement.ErrPending
	case <-ctx.Done():
		return r, ctx.Err()
	}
}

// ResolvePID is Resolve, and completes the resolution of a remote actor: with its pid,
// version and token as its record said them no longer than the interval ago. Without a pid
// the actor is not active there, or the store did not answer.
func (d *Driver) ResolvePID(ctx context.Context, key placement.Key, wait time.Duration) (placement.Resolution, error) {
	r, err := d.Resolve(ctx, key, wait)
	if err != nil {
		return r, err
	}
	r, ok := d.pid(r)
	if ok {
		return r, nil
	}
	until := d.cfg.Clock.Elapsed() + d.cfg.Interval // counted from before the record was read
	within, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	read, err := d.cfg.Records.Load(within, d.cfg.Tenant, key)
	if err != nil {
		if ctx.Err() == nil { // else the caller has gone
			d.failed("load", err)
		}
		return r, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r = d.core.RememberPID(r, read, until, d.now())
	d.publish(d.core.DrainEvents())
	return r, nil
}

// pid returns the memory of a resolution's actor.
func (d *Driver) pid(r placement.Resolution) (_ placement.Resolution, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok = d.core.PID(r, d.now())
	d.publish(d.core.DrainEvents())
	return r, ok
}

// Known is Resolve for what needs no wait for anything, be it a lock in memory. ok
// reports whether it is: otherwise nothing has happened.
func (d *Driver) Known(key placement.Key) (r placement.Resolution, ok bool) {
	if !d.mu.TryLock() {
		return r, false
	}
	defer d.mu.Unlock()
	if r, ok = d.core.Known(key, d.now()); ok {
		d.publish(d.core.DrainEvents())
	}
	return r, ok
}

// Check tells for how long a process may rely on the activation of a token,
// counted from before the call, and whether it may at all.
func (d *Driver) Check(key placement.Key, token int64) (valid time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.Check(key, token, d.now())
}

// Evict passivates the activation of a token. gone tells when nothing of it is left
// but its snapshot; nil: it is not there.
func (d *Driver) Evict(key placement.Key, token int64) (gone <-chan placement.Done) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fx, there := d.core.Evict(key, token, d.now())
	if there {
		done := make(chan placement.Done, 1)
		d.waiting[key] = append(d.waiting[key], done)
		gone = done
	}
	d.perform(fx)
	return gone
}

// leave ends a wait.
func (d *Driver) leave(key placement.Key, done chan placement.Done) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.callers--
	rest := slices.DeleteFunc(d.waiting[key], func(c chan placement.Done) bool { return c == done })
	if len(rest) == 0 {
		delete(d.waiting, key)
		return
	}
	d.waiting[key] = rest
}

// passes reports whether what stood in the way of an activation will go: another
// host lets go of it, this one has just done so, the fence of a store ends, this
// host becomes a member, or a process registers.
func (d *Driver) passes(err error) bool {
	var held *lock.HeldError
	var fenced *lock.FencedError
	if errors.Is(err, placement.ErrNotReady) || errors.Is(err, placement.ErrUnserved) {
		d.mu.Lock()
		defer d.mu.Unlock()
		return !d.core.Stopping()
	}
	return errors.Is(err, placement.ErrOwned) || errors.Is(err, placement.ErrLost) || errors.Is(err, placement.ErrStale) || errors.As(err, &held) || errors.As(err, &fenced)
}

// pending returns the error of a caller that has waited in vain; last is the reason, nil for
// nothing in particular.
func pending(last error) error {
	switch {
	case last == nil:
		return placement.ErrPending
	case errors.Is(last, placement.ErrNotReady), errors.Is(last, placement.ErrUnserved):
		return last
	}
	return fmt.Errorf("%w: %w", placement.ErrPending, last)
}

// try resolves once, and joins the waiting callers where there is something to wait for.
func (d *Driver) try(ctx context.Context, key placement.Key, wait bool) (placement.Resolution, chan placement.Done, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, fx, err := d.core.Resolve(key, d.now())
	if _, ok := d.payers[key]; !ok && errors.Is(err, placement.ErrPending) {
		d.payers[key] = ctx
	}
	d.perform(fx)
	if !wait || !errors.Is(err, placement.ErrPending) {
		return r, nil, err
	}
	if d.callers >= MaxWaiting {
		return r, nil, &OverloadedError{Limit: MaxWaiting}
	}
	d.callers++
	done := make(chan placement.Done, 1)
	d.waiting[key] = append(d.waiting[key], done)
	return r, done, nil
}

// SetKinds says for which kinds there is a process on this host.
func (d *Driver) SetKinds(kinds []string) {
	d.step(func(now placement.Moment) Effects { return d.core.SetKinds(kinds, now) })
}

// Ended says that a process has lost activations: its connection is gone.
func (d *Driver) Ended(key placement.Key, token int64) {
	d.step(func(now placement.Moment) Effects { return d.core.Ended(key, token, now) })
}

// State is what Resolve can do at the moment.
func (d *Driver) State() placement.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.State(d.now())
}

// Overview is a Snapshot without activations.
func (d *Driver) Overview() placement.Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.Overview(d.now())
}

// Page is an Overview with the activations that come next after a key.
func (d *Driver) Page(after placement.Key, limit int) placement.Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.Page(after, limit, d.now())
}

// Single is an Overview with the activation of one key, if there is one.
func (d *Driver) Single(key placement.Key) placement.Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.Single(key, d.now())
}
