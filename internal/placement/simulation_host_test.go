package placement

import (
	"errors"
	"fmt"
	"time"
)

// node is a host of the simulation: a coordinator with its driver, and the process
// that it serves.
type node struct {
	*world
	name  string
	boots time.Duration // the host's clock at the moment since
	since int64
	rate  float64
	wall  int64 // its wall clock is off by so much

	core      *Core         // nil: down
	life      int           // of the daemon: what an earlier one began is not for this one
	paused    int64         // until then the daemon does nothing
	cut       int64         // until then it does not reach the store
	member    int64         // token
	memberEnd time.Duration // as the daemon counts it
	busy      map[Key]Op    // under way

	resolved Event         // the last of its kind
	told     map[Key]int64 // token of the last Activated event

	conn     int         // between daemon and process
	line     int64       // when the last request on it arrives: they are in order
	assigned map[Key]int // connection that a key is activated on
	inbox    []func()
	frozen   int64 // until then the process does nothing
	live     map[Key]live
}

func (n *node) boot() time.Duration {
	return n.boots + time.Duration(float64(n.now-n.since)*n.rate*float64(time.Millisecond))
}

func (n *node) moment() Moment { return Moment{n.boot(), n.now + n.wall} }

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

// within has the daemon give up waiting after simDeadline by the host's clock, and
// returns what is to be called with the answer.
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
	finish := n.within(answer)
	n.line = max(n.line, n.now+n.delay())
	n.after(n.line-n.now, func() {
		n.inbox = append(n.inbox, func() {
			if n.conn == conn { // or nobody reads it any more
				do()
				n.on(n.delay(), func() { finish(nil) })
			}
		})
		n.read()
	})
}

// read has the process do what it was asked for, in order.
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
	n.core, n.member, n.busy, n.told, n.assigned = NewCore(n.name), 0, map[Key]Op{}, map[Key]int64{}, map[Key]int{}
	n.core.SetKinds([]string{"room"})
	n.core.Start()
	n.renew()
	n.poll()
	n.tick()
}

// crash ends the daemon, and the connection with it.
func (n *node) crash() {
	n.life++
	n.conn++
	n.core = nil
}

// stop ends the daemon politely, unless that takes too long.
func (n *node) stop(patience int64) {
	if n.core == nil {
		return
	}
	n.run(n.core.Stop(n.moment()))
	end := n.until(n.now + patience)
	var look func()
	look = func() {
		if !n.core.Idle() && n.now < end {
			n.on(10, look)
			return
		}
		self := Member{n.name, n.member}
		if n.core.Idle() {
			n.stats.stopped++
			n.stats.given += n.cleared(self)
			n.after(2*simDeadline, func() { n.cleared(self) }) // when late messages have come
		}
		if n.core.Idle() || n.generous {
			n.release("members/"+n.name, n.member)
		}
		n.crash()
		n.after(n.until(n.now+n.rng.Int64N(simRestart))-n.now, n.start)
	}
	n.on(0, look)
}

// cleared judges what a polite end leaves behind.
func (w *world) cleared(m Member) (others int) {
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

// renew gets or keeps the membership.
func (n *node) renew() {
	from, token, pause := n.boot(), int64(0), int64(simRenew)
	n.call(func() {
		name := "members/" + n.name
		l := n.locks[name]
		switch {
		case n.member != 0 && l != nil && l.token == n.member && l.expires > n.now:
			l.expires, token = n.now+simTTL, n.member
		case n.member == 0:
			if token, _ = n.acquire(name, n.name); token == 0 {
				pause = min(pause, l.expires-n.now+20)
			}
		}
	}, func(err error) {
		switch {
		case err == nil && token != 0:
			n.member, n.memberEnd = token, from+(simTTL-simMargin)*time.Millisecond
			if n.optimistic {
				n.memberEnd = n.boot() + simTTL*time.Millisecond
			}
			n.run(n.core.SetMembership(token, n.memberEnd, n.moment()))
		case err == nil:
			n.member = 0
			n.run(n.core.SetMembership(0, 0, n.moment()))
		}
		n.on(pause, n.renew)
	})
}

func (n *node) poll() {
	var members []Member
	n.call(func() {
		for _, m := range n.nodes {
			if l := n.locks["members/"+m.name]; l != nil && l.expires > n.now {
				members = append(members, Member{m.name, l.token})
			}
		}
	}, func(err error) {
		if err == nil {
			n.run(n.core.UpdateTopology(members, n.moment()))
		}
		n.on(simPoll, n.poll)
	})
}

func (n *node) tick() {
	n.run(n.core.Tick(n.moment()))
	n.on(simTick, n.tick)
}

func (n *node) run(o Outcome) {
	for _, d := range o.Done {
		switch {
		case errors.Is(d.Err, ErrOwned):
			n.stats.waited++
		case errors.Is(d.Err, ErrLost):
			n.stats.lost++
		case d.Err != nil:
			n.stats.failed++
		}
	}
	for _, e := range n.core.DrainEvents() {
		n.heard(e)
	}
	for _, c := range o.Commands {
		if before, busy := n.busy[c.Key]; busy {
			n.broken("%s is to %s %v while it is to %s it", n.name, c.Op, c.Key, before)
		}
		n.busy[c.Key] = c.Op
		n.carryOut(c)
	}
}

func (n *node) carryOut(c Command) {
	r := &Result{ID: c.ID}
	finish := func(err error) {
		if err != nil {
			r.Err, r.Unknown = err, true
		}
		delete(n.busy, c.Key)
		n.run(n.core.HandleResult(*r, n.moment()))
	}
	switch c.Op {
	case TryAcquire:
		n.call(func() {
			token, err := n.acquire(c.Key.String(), n.name)
			r.Lease, r.Err = Lease{fmt.Sprint(token), token}, err
		}, finish)
	case Load:
		n.call(func() { r.Record, r.Found = n.records[c.Key], n.records[c.Key].Version > 0 }, finish)
	case CheckOwner:
		n.call(func() {
			if r.Ended = n.ended(c.Record.Owner); r.Ended {
				n.stats.takenOver++
			}
		}, finish)
	case Store:
		n.call(func() { r.Err = n.store(c.Key, c.Record) }, finish)
	case Remove:
		n.call(func() { n.remove(c.Key, c.Record, c.Keep) }, finish)
	case Release:
		n.call(func() { n.release(c.Key.String(), c.Lease.Token) }, finish)
	case Ensure:
		if n.boot() >= c.Until && !n.late {
			r.Err = errors.New("too late")
			n.on(0, func() { finish(nil) })
			return
		}
		n.assigned[c.Key] = n.conn
		n.toProcess(n.conn, func() { r.PID = n.activate(c) }, finish)
	case Passivate:
		n.toProcess(n.assigned[c.Key], func() { r.Snapshot = n.passivate(c) }, finish)
	}
}
