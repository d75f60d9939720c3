package search

import (
	"context"
	"fmt"
	"slices"

	"github.com/kazahana/kazahana/internal/lock"
)

// The rules of locks that a world can break, in the words of docs/model.
const (
	versionCompared rule = "a commit compares the version on which the decision rests"
	floorCompared   rule = "a commit that relies on absence compares the floor"
	floorAtDeletion rule = "the floor rises when a record is deleted"
	lifeCompared    rule = "a commit compares the life of the store"
	fenceKept       rule = "a store that has forgotten grants nothing until all has ended that may be missing"
	floorOfLife     rule = "the tokens of a life begin above those of all lives before"
	countedFromSent rule = "a host counts the end of a lease from before it sent the request"
	leftShown       rule = "a repeated answer shows what is left of the lease"
	cutOff          rule = "a holder stops relying on the lock before its release is sent"
	leaseNamed      rule = "a release names the lease"
	carriedOutOnce  rule = "a request is carried out once"
)

// locks is a world of hosts that ask for one lock: the product's rule over records. A request
// may arrive at any time, and again; so may an answer. Each host has a process's view of the
// store, and decides on it.
type locks struct {
	locksSetting
	now      int64 // ms since the beginning
	lapsed   int64 // of it
	store    *shared
	hosts    []*locker
	wire     []try
	answers  []reply
	asked    int
	forgot   int
	applied  [8]int
	greatest int64
	fault    string
}

// locksSetting is the bounds of a world.
type locksSetting struct {
	ticks    int64 // the time runs for so many
	leaps    bool  // a whole term passes at once
	requests int   // are made at most
	forgets  bool
	lapses   bool   // an hour may pass, after which an idle record is deleted
	without  []int8 // moves that are left out
	off      rule
}

const (
	tickMS    = 100
	lockTerm  = 2 * tickMS
	lockLapse = int64(3600_000 + lockTerm)
	lockKey   = "orders/42"
)

// locker is a host.
type locker struct {
	process *process
	records *lock.Records
	open    *lock.Request // waits for an answer
	sent    int64         // when it was sent last
	relies  *lock.Lease
	until   int64
}

// try is a request on its way, reply the answer.
type (
	try struct {
		host, number int
		request      lock.Request
		sent         int64
	}
	reply struct {
		try
		lease lock.Lease
	}
)

func newLocks(s locksSetting) func() world {
	return func() world {
		w := &locks{locksSetting: s}
		w.store = newShared(func() int64 { return beganMS + w.now }, s.off)
		for range 2 {
			p := &process{w.store, map[string]seen{}}
			w.hosts = append(w.hosts, &locker{process: p, records: lock.OnRecords(p)})
		}
		return w
	}
}

// The moves of a world of locks.
const (
	passes int8 = iota
	lapses
	acquires
	renews
	releases
	asksAgain
	givesUp
	arrives  // who: the try
	receives // who: the answer
	looksUp
	saves
	forgets
)

var lockMoves = [...]string{
	passes: "time passes", lapses: "an hour passes, and the store deletes what is idle", acquires: "host %d asks for the lock", renews: "host %d asks to renew it", releases: "host %d releases it",
	asksAgain: "host %d asks again", givesUp: "host %d gives up waiting", arrives: "the store carries out the %s", receives: "the answer to the %s reaches the host",
	looksUp: "host %d looks at the record", saves: "a replica has the present state", forgets: "the replica takes over",
}

func (w *locks) moves(all []move) []move {
	if w.fault != "" {
		return all
	}
	add := func(kind int8, who int) {
		if !slices.Contains(w.without, kind) {
			all = append(all, move{kind, int8(who), noClock})
		}
	}
	if w.now-w.lapsed < w.ticks*tickMS {
		add(passes, 0)
	}
	if w.lapses && w.lapsed == 0 && w.greatest > 0 {
		add(lapses, 0)
	}
	for i, h := range w.hosts {
		switch {
		case h.open != nil:
			if w.now > h.sent {
				add(asksAgain, i)
			}
			add(givesUp, i)
		case w.asked == w.requests || w.asked < i: // the first to ask is host 0: they are equal
		case w.believes(h):
			add(renews, i)
			add(releases, i)
		default:
			add(acquires, i)
		}
		add(looksUp, i)
	}
	for i := range w.wire {
		add(arrives, i)
	}
	for i, a := range w.answers {
		if open := w.hosts[a.host].open; open != nil && open.RequestID == a.request.RequestID {
			add(receives, i)
		}
	}
	if w.forgets && w.forgot == 0 {
		if w.store.saved == nil {
			add(saves, 0)
		} else {
			add(forgets, 0)
		}
	}
	return all
}

func (w *locks) believes(h *locker) bool { return h.relies != nil && w.now < h.until }

func (w *locks) do(m move) {
	switch m.kind {
	case passes:
		w.now += tickMS
		if w.leaps {
			w.now += lockTerm - tickMS
		}
	case lapses:
		w.now, w.lapsed = w.now+lockLapse, lockLapse
		w.store.sweep()
	case acquires, renews, releases:
		w.ask(int(m.who), lock.Op(m.kind-acquires)+lock.Acquire)
	case asksAgain:
		w.send(int(m.who))
	case givesUp:
		w.hosts[m.who].open = nil
	case arrives:
		w.arrive(w.wire[m.who])
	case receives:
		w.receive(w.answers[m.who])
	case looksUp:
		_, _ = w.hosts[m.who].records.Get(context.Background(), "default", lockKey)
	case saves:
		w.store.save()
	case forgets:
		w.store.forget()
		w.forgot++
		clear(w.applied[:]) // the receipts are forgotten too
	}
}

func (w *locks) text(m move) string {
	switch m.kind {
	case passes, lapses, saves, forgets:
		return lockMoves[m.kind]
	case arrives:
		return fmt.Sprintf(lockMoves[m.kind], w.wire[m.who])
	case receives:
		return fmt.Sprintf(lockMoves[m.kind], w.answers[m.who].try)
	}
	return fmt.Sprintf(lockMoves[m.kind], m.who)
}

func (t try) String() string { return fmt.Sprintf("%v %d of host %d", t.request.Op, t.number, t.host) }

func (w *locks) ask(host int, op lock.Op) {
	h := w.hosts[host]
	w.asked++
	r := lock.Request{Op: op, Tenant: "default", Key: lockKey, Owner: fmt.Sprint("host-", host), RequestID: requestID(beganMS+w.now, w.asked)}
	switch {
	case op == lock.Acquire:
		r.LeaseID = fmt.Sprintf("%032x", w.asked)
	case w.off != leaseNamed:
		r.LeaseID = h.relies.LeaseID
	}
	if op != lock.Release {
		r.TTLMS = lockTerm
	} else if w.off != cutOff {
		h.relies = nil
	}
	h.open = &r
	w.send(host)
}

// requestID is a UUID of version 7.
func requestID(ms int64, n int) string { return fmt.Sprintf("%012x7%03x8%015x", ms, n, n) }

// send puts the open request on the wire. Once there, it may arrive any number of times.
func (w *locks) send(host int) {
	r := *w.hosts[host].open
	w.hosts[host].sent = w.now
	t := try{host: host, request: r, sent: w.now}
	if _, err := fmt.Sscanf(r.RequestID[13:16], "%x", &t.number); err != nil {
		panic(err)
	}
	if !slices.Contains(w.wire, t) {
		w.wire = append(w.wire, t)
	}
}

func (w *locks) arrive(t try) {
	r := t.request
	if w.off == carriedOutOnce {
		r.RequestID = ""
	}
	l, err := w.hosts[t.host].records.Do(context.Background(), r)
	if err != nil {
		return
	}
	if !l.Repeated {
		if w.applied[t.number]++; w.applied[t.number] > 1 {
			w.fault = fmt.Sprintf("the %v is carried out twice", t)
		}
	}
	if !l.Repeated && r.Op == lock.Acquire {
		if l.Token <= w.greatest {
			w.fault = fmt.Sprintf("token %d is granted after token %d", l.Token, w.greatest)
		}
		w.greatest = max(w.greatest, l.Token)
	}
	if l.Repeated && w.off == leftShown {
		l.RemainingMS = lockTerm
	}
	a := reply{t, lock.Lease{LeaseID: l.LeaseID, Token: l.Token, RemainingMS: l.RemainingMS}}
	if !slices.Contains(w.answers, a) {
		w.answers = append(w.answers, a)
	}
}

func (w *locks) receive(a reply) {
	h := w.hosts[a.host]
	until := a.sent + a.lease.RemainingMS
	if w.off == countedFromSent {
		until = w.now + a.lease.RemainingMS
	}
	switch h.open = nil; {
	case a.request.Op == lock.Acquire:
		h.relies, h.until = &a.lease, until
	case a.request.Op == lock.Renew && h.relies != nil:
		h.until = max(h.until, until)
	default:
		h.relies = nil
	}
}

func (w *locks) broken() string {
	if w.fault == "" && w.believes(w.hosts[0]) && w.believes(w.hosts[1]) {
		return fmt.Sprintf("both hosts rely on the lock, with the tokens %d and %d", w.hosts[0].relies.Token, w.hosts[1].relies.Token)
	}
	return w.fault
}

var locksUnimportant = fieldSet(sharedUnimportant, "search.locker.records search.locks.locksSetting search.locks.fault")

func (w *locks) fingerprint() fingerprint {
	s := sum{skip: locksUnimportant}
	s.add(*w, w.fault != "")
	return s.done()
}
