package driver

import (
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
)

// node is a host of the simulation: a core, and the process that it serves.
type node struct {
	*world
	name  string
	boots time.Duration // the host's clock at the moment since
	since int64
	rate  float64
	wall  int64 // its wall clock is off by so much

	core   *Core                          // nil: down
	life   int                            // of the daemon: what an earlier one began is not for this one
	paused int64                          // until then the daemon does nothing
	cut    int64                          // until then it does not reach the store
	waking time.Duration                  // when a Tick comes, by the host's clock; 0: none is on its way
	ids    int                            // that the core has got
	busy   map[placement.Key]placement.Op // under way

	resolved placement.Event         // the last of its kind
	told     map[placement.Key]int64 // token of the last Activated event

	conn     int                    // between daemon and process
	line     int64                  // when the last request on it arrives: they are in order
	assigned map[placement.Key]live // who was asked last to activate a key
	inbox    []func()
	frozen   int64 // until then the process does nothing
	live     map[placement.Key]live

	wants      []string // kinds that its processes are for
	registered []string // that the present one has registered for
	by         int      // connection that it has registered on
	silent     bool     // it does not answer
	hung       bool     // it is frozen for good
}

func (n *node) boot() time.Duration {
	return n.boots + time.Duration(float64(n.now-n.since)*n.rate*float64(time.Millisecond))
}

func (n *node) moment() placement.Moment {
	return placement.Moment{Boot: n.boot(), UnixMS: n.now + n.wall}
}

// clock has the host's clock run at another rate, and its wall clock jump.
func (n *node) clock(rate float64, wall int64) {
	n.boots, n.since, n.rate, n.wall = n.boot(), n.now, rate, wall
}

// on has the node's daemon do something, when it is not paused and still the same.
func (n *node) on(ms int64, do func()) {
	life := n.life
	var try func()
	try = func() {
		switch {
		case n.life != life || n.core == nil:
		case n.paused > n.now:
			n.after(n.paused-n.now+n.rng.Int64N(20), try) // in any order
		default:
			do()
		}
	}
	n.after(ms, try)
}

// within has the daemon give up waiting after simDeadline by the host's clock, and returns the
// function to call with the answer.
func (n *node) within(answer func(error)) func(error) {
	over, life, end := false, n.life, n.boot()+simDeadline*time.Millisecond
	finish := func(err error) {
		if !over && life == n.life {
			over = true
			answer(err)
		}
	}
	var look func()
	look = func() {
		if left := end - n.boot(); left > 0 {
			n.on(int64(left/time.Millisecond)+1, look)
			return
		}
		finish(errNoAnswer)
	}
	look()
	return finish
}

// call has the store do something for the node: after a delay, and the answer
// comes after another, or in time not at all, and it was done nevertheless or not.
func (n *node) call(do func(), answer func(error)) {
	finish := n.within(answer)
	n.after(n.delay(), func() {
		if n.down || n.cut > n.now || n.unlucky() {
			return
		}
		do()
		if !n.unlucky() {
			n.on(n.delay(), func() { finish(nil) })
		}
	})
}

// toProcess is a request on the connection, which is in order and loses nothing,
// but ends; and the process may be slow, or frozen.
func (n *node) toProcess(conn int, do func(), answer func(error)) {
	finish := n.within(func(err error) {
		if err != nil && conn == n.conn {
			n.answers(false)
		}
		answer(err)
	})
	n.line = max(n.line, n.now+n.delay())
	n.after(n.line-n.now, func() {
		n.inbox = append(n.inbox, func() {
			if n.conn == conn { // else it has no reader any more
				do()
				n.on(n.delay(), func() {
					if n.conn == conn { // it may come late
						n.answers(true)
					}
					finish(nil)
				})
			}
		})
		n.read()
	})
}

// read has the process carry out its requests, in order.
func (n *node) read() {
	if n.frozen > n.now {
		n.after(n.frozen-n.now, n.read)
		return
	}
	inbox := n.inbox
	n.inbox = nil
	for _, do := range inbox {
		do()
	}
}

func (n *node) start() {
	n.life++
	n.conn++
	n.busy, n.told, n.assigned, n.waking = map[placement.Key]placement.Op{}, map[placement.Key]int64{}, map[placement.Key]live{}, 0
	n.core = NewCore(Terms{
		Authority: n.name, TTL: simTTL * time.Millisecond, Interval: simPoll * time.Millisecond,
		NewID: func() string {
			n.ids++
			return fmt.Sprint(n.name, "#", n.ids)
		},
	})
	n.registered, n.silent = nil, false
	n.announce()
	n.run(n.core.Start(n.moment()))
	n.register()
}

// crash ends the daemon, and the connection with it.
func (n *node) crash() {
	n.life++
	n.conn++
	n.core = nil
}

// stop ends the daemon politely, unless that takes too long.
func (n *node) stop(patience int64) {
	if n.core == nil || n.core.Stopping() {
		return
	}
	self := placement.Member{Authority: n.name, Token: n.core.held.Token}
	n.run(n.core.Stop(n.moment()))
	end := n.until(n.now + patience)
	var look func()
	look = func() {
		if !n.core.over && n.now < end {
			n.on(10, look)
			return
		}
		if n.core.Idle() {
			n.stats.stopped++
			n.stats.given += n.cleared(self)
			n.after(2*simDeadline, func() { n.cleared(self) }) // when late messages have come
		}
		if n.generous {
			n.release("members/"+n.name, self.Token)
		}
		n.crash()
		n.after(n.until(n.now+n.rng.Int64N(simRestart))-n.now, n.start)
	}
	n.on(0, look)
}

// cleared judges what a polite end leaves behind.
func (w *world) cleared(m placement.Member) (others int) {
	for i := range int64(simKeys) {
		switch r := w.records[simKey(i)]; {
		case m.Token != 0 && r.Owner == m:
			w.broken("%v has stopped, and is on record as the owner of %v: %+v", m, simKey(i), r)
		case r.Version > 0:
			others++
		}
	}
	return others
}

// ask has the store of locks answer a request about the membership.
func (n *node) ask(r lock.Request) {
	var l lock.Lease
	var refusal error
	sent := n.boot()
	n.call(func() {
		name := "members/" + n.name
		held := n.locks[name]
		mine := held != nil && held.expires > n.now && held.lease == r.LeaseID
		switch {
		case r.Op == lock.Release:
			if mine {
				held.expires = n.now
			}
		case mine:
			if r.Op == lock.Renew {
				held.expires, held.note = n.now+simTTL, r.Note
			}
			l.Token = held.token
		case r.Op == lock.Renew:
			refusal = lock.ErrNotOwned
		default:
			if l.Token, _ = n.acquire(name, n.name); l.Token == 0 {
				refusal = &lock.HeldError{RemainingMS: held.expires - n.now}
				return
			}
			n.locks[name].lease, n.locks[name].note = r.LeaseID, r.Note
		}
		l.LeaseID, l.RemainingMS, l.Note = r.LeaseID, n.locks[name].expires-n.now, n.locks[name].note
	}, func(err error) {
		if err == nil {
			err = refusal
		}
		if n.optimistic {
			l.RemainingMS = (simTTL + (n.boot() - sent).Milliseconds()) * marginPart / (marginPart - 1)
		}
		n.run(n.core.Answered(r.Op, l, err, n.moment()))
	})
}

// see has the store of locks list the members.
func (n *node) see() {
	var members []placement.Host
	n.call(func() {
		for _, m := range n.nodes {
			if l := n.locks["members/"+m.name]; l != nil && l.expires > n.now {
				members = append(members, hostOf(m.name, lock.Lease{Token: l.token, Note: l.note}))
			}
		}
	}, func(err error) { n.run(n.core.Looked(members, err, n.moment())) })
}

// run does what the core wants.
func (n *node) run(fx Effects) {
	for _, d := range fx.Done {
		switch {
		case errors.Is(d.Err, placement.ErrOwned):
			n.stats.waited++
		case errors.Is(d.Err, placement.ErrLost):
			n.stats.lost++
		case d.Err != nil:
			n.stats.failed++
		}
	}
	for _, e := range fx.Events {
		n.heard(e)
	}
	for _, c := range fx.Begin {
		if before, busy := n.busy[c.Key]; busy {
			n.broken("%s is to %s %v while it is to %s it", n.name, c.Op, c.Key, before)
		}
		n.busy[c.Key] = c.Op
		n.carryOut(c)
	}
	if fx.Ask != nil {
		n.ask(*fx.Ask)
	}
	if fx.Look {
		n.see()
	}
	n.wakeAt(n.core.Due())
}

// wakeAt sets the core's timer, unless it fires before.
func (n *node) wakeAt(due time.Duration) {
	if n.waking != 0 && n.waking <= due {
		return
	}
	n.waking = due
	n.on(int64(max(due-n.boot(), 0)/time.Millisecond)+1, func() {
		if n.waking == due {
			n.waking = 0
			n.run(n.core.Tick(n.moment()))
		}
	})
}

func (n *node) carryOut(c placement.Command) {
	r := &placement.Result{}
	finish := func(err error) {
		if err != nil {
			r.Err, r.Unknown = err, true
		}
		delete(n.busy, c.Key)
		n.run(n.core.Finished(c, *r, n.moment()))
	}
	switch c.Op {
	case placement.TryAcquire:
		n.call(func() {
			token, err := n.acquire(c.Key.String(), n.name)
			r.Lease, r.Err = placement.Lease{ID: fmt.Sprint(token), Token: token}, err
		}, finish)
	case placement.Load:
		n.call(func() { r.Record, r.Found = n.records[c.Key], n.records[c.Key].Version > 0 }, finish)
	case placement.CheckOwner:
		n.call(func() {
			if r.Ended = n.ended(c.Record.Owner); r.Ended {
				n.stats.takenOver++
			}
		}, finish)
	case placement.Store:
		n.call(func() { r.Err = n.store(c.Key, c.Record) }, finish)
	case placement.Remove:
		n.call(func() { n.remove(c.Key, c.Record, c.Keep) }, finish)
	case placement.Release:
		n.call(func() { n.release(c.Key.String(), c.Lease.Token) }, finish)
	case placement.Ensure:
		if n.boot() >= c.Until && !n.late {
			r.Err = errors.New("too late")
			n.on(0, func() { finish(nil) })
			return
		}
		if !n.serves(c.Key.Kind) {
			r.Err = placement.ErrLost
			n.on(0, func() { finish(nil) })
			return
		}
		n.assigned[c.Key] = live{conn: n.by, token: c.Record.Token}
		n.toProcess(n.by, func() { r.PID = n.activate(c) }, finish)
	case placement.Passivate:
		n.toProcess(n.assigned[c.Key].conn, func() { r.Snapshot = n.passivate(c) }, finish)
	}
}
