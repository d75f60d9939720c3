package proof

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/test/trace"
)

// actors is the placement of a host: the product's driver, and the process that it
// serves. That outlives the daemon, and relies on what Check has promised.
type actors struct {
	*host
	driver *driver.Driver
	stop   context.CancelFunc
	ended  chan struct{} // closed when the driver has stopped

	mu    sync.Mutex
	inbox []func()                // what the process was asked for, in order
	live  map[placement.Key]int64 // tokens of activations
}

const (
	membershipTTL = 400 * time.Millisecond
	// patience of a caller ends between two of the driver's tries.
	patience  = 311 * time.Millisecond
	actorKind = "cart"
)

var actorKeys = []placement.Key{{Kind: actorKind, Identity: "1"}, {Kind: actorKind, Identity: "2"}, {Kind: actorKind, Identity: "3"}}

var _ driver.Executor = (*actors)(nil)

func (h *host) place() {
	a := &actors{host: h, ended: make(chan struct{}), live: map[placement.Key]int64{}}
	a.driver = driver.New(driver.Config{
		Tenant: "t", Authority: h.d.name + ":1", Owner: h.d.name, TTL: membershipTTL, Interval: 50 * time.Millisecond,
		Locks: locks{lock.OnRecords(h.records)}, Records: placedRecords{storage.OnRecords(h.records), h}, Executor: a, Clock: h, NowMS: h.d.clock,
	})
	a.driver.SetKinds([]string{actorKind})
	var ctx context.Context
	ctx, a.stop = context.WithCancel(context.Background())
	go func() {
		a.driver.Run(ctx)
		close(a.ended)
	}()
	h.actors = a
}

// Activate implements driver.Executor.
func (a *actors) Activate(k placement.Key, r placement.Record, _ time.Duration, done func(string, error)) {
	a.d.w.placeTrail.notes(a.host, k, trace.PlaceStep{Do: "Activate", Token: r.Token})
	a.ask(func() {
		a.live[k] = r.Token
		a.d.w.count("actors activated")
		done(fmt.Sprint("pid ", r.Token), nil)
	}, func() { done("", driver.ErrUnknown) })
}

// Passivate implements driver.Executor.
func (a *actors) Passivate(k placement.Key, r placement.Record, _ time.Duration, done func([]byte, error)) {
	a.d.w.placeTrail.notes(a.host, k, trace.PlaceStep{Do: "Passivate", Token: r.Token})
	a.ask(func() {
		if a.live[k] == r.Token {
			a.d.w.placeTrail.notes(a.host, k, trace.PlaceStep{Do: "Stop", Token: r.Token})
			delete(a.live, k)
			a.d.w.ended(a.belief(k, r.Token), time.Since(a.d.w.began))
			a.d.w.count("actors passivated")
		}
		done(nil, nil)
	}, func() { done(nil, driver.ErrUnknown) })
}

// ask sends the process a request, on a connection that is in order and loses nothing, but ends
// with the daemon.
func (a *actors) ask(do, gone func()) {
	if a.link.gone.Load() {
		gone()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inbox = append(a.inbox, do)
}

// read has the process carry out its oldest request.
func (a *actors) read() bool {
	a.mu.Lock()
	if len(a.inbox) == 0 || a.link.gone.Load() {
		a.mu.Unlock()
		return false
	}
	do := a.inbox[0]
	a.inbox = a.inbox[1:]
	a.mu.Unlock()
	do()
	return true
}

func (a *actors) belief(k placement.Key, token int64) *belief {
	return &belief{
		who: a.d.name, from: time.Since(a.d.w.began), lost: a.d.w.never(),
		lease: lock.Lease{Key: k.String(), Token: token, LeaseID: fmt.Sprint(k, token)},
	}
}

// useActors has a caller look for an actor, or a process act for one of its own.
func (a *actors) useActors() {
	w := a.d.w
	k := pick(w, actorKeys)
	if own := a.own(); len(own) > 0 && w.rnd.IntN(3) > 0 {
		k = pick(w, own)
		token := a.live[k]
		b := a.belief(k, token)
		if valid, ok := a.driver.Check(k, token); ok {
			b.until = b.from + valid
			w.placeTrail.notes(a.host, k, trace.PlaceStep{Do: "Check", Token: token, Until: b.until})
			if w.without(promiseEnds) {
				b.until += membershipTTL
			}
			w.count("actors relied on")
			// A membership that the store kept and an activation that it forgot may lead to two:
			// docs/placement.md says so.
			if w.records.life == 0 {
				w.believe(b)
			}
		}
		return
	}
	var r placement.Resolution
	var err error
	w.send(a.host, time.Second, func(ctx context.Context) { r, err = a.driver.Resolve(ctx, k, patience) }, func(time.Duration) {
		w.tells("%s: %v is at %s with token %d: %v", a.d.name, k, r.Authority, r.Token, a.host.saw(err))
		if err == nil {
			w.count("actors found")
		}
	})
}

// hasActors reports whether a process of the daemon has an activation.
func (d *daemon) hasActors() bool {
	return d.life != nil && d.life.host != nil && len(d.life.host.actors.own()) > 0
}

// own are the keys that the process has, in order.
func (a *actors) own() (own []placement.Key) {
	for _, k := range actorKeys {
		if _, ok := a.live[k]; ok {
			own = append(own, k)
		}
	}
	return own
}
