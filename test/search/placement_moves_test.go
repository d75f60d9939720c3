package search

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
)

var accidents = []int8{neverHears, processDies, processGoes, hostStops, hostCrashes, answerIsLost, comesLate}

func (w *places) do(m move) {
	if slices.Contains(accidents, m.kind) {
		w.accidents++
	}
	switch m.kind {
	case passes:
		w.now += placeTick
		return
	case lateComes:
		c := w.late[m.who]
		w.late = slices.Delete(w.late, int(m.who), int(m.who)+1)
		if c.op != placement.Ensure {
			_ = w.write(c)
		} else if h := w.hosts[c.host]; h.runs == 0 {
			h.runs, h.until = c.record.Token, 0
		}
		return
	}
	h := w.hosts[m.who]
	now := h.moment()
	switch m.kind {
	case resolves:
		w.asked = true
		_, fx, _ := h.core.Resolve(actor, now)
		h.run(fx)
	case looksDue:
		h.run(h.core.Tick(now))
	case isCarriedOut:
		h.finish(h.carryOut())
	case answerIsLost:
		_ = h.carryOut()
		h.finish(placement.Result{Err: errLost})
	case comesLate:
		w.late = append(w.late, lateCall{int(m.who), h.command.Op, h.command.Record, h.command.Keep})
		h.finish(placement.Result{Err: errLost, Unknown: true})
	case storeDecides:
		h.answers()
	case hearsOfIt:
		h.hears(*h.answer)
	case neverHears:
		h.hears(membership{err: errLost})
	case asksHowLong:
		h.rely()
	case patienceEnds:
		h.finish(placement.Result{Err: errLost})
	case processDies:
		token := h.runs
		h.runs, h.until = 0, 0
		h.run(h.core.Ended(actor, token, now))
	case processGoes, processComes:
		h.serves = m.kind == processComes
		h.register()
	case hostStops:
		h.run(h.core.Stop(now))
		if held := w.membershipOf(h); w.off == membershipKept && held != "" {
			_, _ = w.locks.Do(context.Background(), h.about("members/"+h.name, lock.Request{Op: lock.Release, LeaseID: held}))
		}
	case hostCrashes:
		h.start()
	}
}

// membershipOf is the lease of a host's membership.
func (w *places) membershipOf(h *placeHost) string {
	l, err := w.locks.Get(context.Background(), "default", "members/"+h.name)
	if err != nil || l.State != lock.Active {
		return ""
	}
	return l.LeaseID
}

func (h *placeHost) finish(r placement.Result) {
	c := *h.command
	h.command = nil
	h.run(h.core.Finished(c, r, h.moment()))
}

// carryOut carries the command out.
func (h *placeHost) carryOut() (r placement.Result) {
	c := h.command
	switch c.Op {
	case placement.Ensure:
		// The last look at the clock before the process is asked, as the driver has it.
		if ms(h.w.now) >= c.Until && h.w.off != begunInTime {
			r.Err = errors.New("too late")
			break
		}
		h.runs, h.until, r.PID = c.Record.Token, 0, "pid"
	case placement.Passivate:
		if h.runs == c.Record.Token {
			h.runs, h.until = 0, 0
		}
	default:
		r.Err = h.w.write(lateCall{op: c.Op, record: c.Record, keep: c.Keep})
	}
	return r
}

// answers has the store decide on the request about the membership.
func (h *placeHost) answers() {
	r := h.about("members/"+h.name, *h.asking)
	if r.Op != lock.Release {
		r.TTLMS = h.w.ttl * placeTick
	}
	l, err := h.w.locks.Do(context.Background(), r)
	h.answer = &membership{l, err}
}

func (h *placeHost) hears(a membership) {
	op := h.asking.Op
	if h.w.off == countedFromBefore {
		a.lease.RemainingMS += h.w.now - h.sent
	}
	h.asking, h.answer = nil, nil
	h.run(h.core.Answered(op, a.lease, a.err, h.moment()))
}

// rely is the process's question how long it may rely on the actor. At best it is answered
// at once.
func (h *placeHost) rely() {
	w := h.w
	valid, ok := h.core.Check(actor, h.runs, h.moment())
	left := reflect.ValueOf(h.core).Elem().FieldByName("until").Int() - int64(ms(w.now))
	switch there := h.has(h.runs); {
	case w.off == promiseShort && ok:
		valid = ms(left / 1e6)
	case w.off == promiseBounded && ok, w.off == begunInTime && there:
		valid, ok = placement.MaxPromise, true
	}
	if !ok || valid <= 0 {
		return
	}
	h.until = max(h.until, w.now+valid.Milliseconds())
	if h.runs < w.relied {
		w.fault = fmt.Sprintf("%s relies on token %d after token %d", h.name, h.runs, w.relied)
	}
	w.relied = max(w.relied, h.runs)
}

// has reports whether the host has the activation of the token, and does not end it.
func (h *placeHost) has(token int64) bool {
	for _, a := range h.core.Single(actor, h.moment()).Activations {
		return a.Record.Token == token && a.Doing != "passivating"
	}
	return false
}

func (w *places) relies(h *placeHost) bool { return h.runs != 0 && w.now < h.until }

func (w *places) broken() string {
	if a, b := w.hosts[0], w.hosts[1]; w.fault == "" && w.relies(a) && w.relies(b) {
		return fmt.Sprintf("both processes rely on the actor, with the tokens %d and %d", a.runs, b.runs)
	}
	return w.fault
}

var placesUnimportant = fieldSet(`
	search.places.placesSetting search.places.records search.places.locks search.places.storage search.places.ids
	search.placeHost.w search.placeHost.name driver.Core.terms driver.Core.fx
	lock.Lease.AcquiredMS lock.Lease.ExpiresMS lock.Lease.RemainingMS lock.Lease.LeaseID lock.Lease.Repeated
	lock.Request.LeaseID lock.Request.RequestID lock.HeldError.RequestID placement.Lease.ID
	placement.Core.strategy placement.Core.pids placement.Core.pending placement.Core.last placement.Core.serial placement.Core.ignored
	placement.Core.events placement.Core.spare placement.Core.commands placement.Core.done placement.Topology.choose
	placement.entry.request placement.entry.serial placement.entry.failure placement.entry.why placement.entry.used placement.entry.asked
	placement.Command.ID placement.Record.ObservedMS`)

// fingerprint takes what the stores answer instead of what they keep: IDs are drawn anew
// each time, and receipts answer what is asked again.
func (w *places) fingerprint() fingerprint {
	ctx := context.Background()
	s := sum{skip: placesUnimportant}
	r, err := w.storage.Load(ctx, "default", actor)
	s.add(*w, w.fault != "", r, err)
	l, err := w.locks.Get(ctx, "default", "activation/"+actor.String())
	s.add(l, left(l), err != nil)
	for _, h := range w.hosts {
		l, err := w.locks.Get(ctx, "default", "members/"+h.name)
		held := reflect.ValueOf(h.core).Elem().FieldByName("held").FieldByName("LeaseID").String()
		s.add(l, left(l), err != nil, l.LeaseID == held, h.asking != nil && h.asking.LeaseID == l.LeaseID)
		next := reflect.ValueOf(h.core).Elem().FieldByName("request").FieldByName("LeaseID").String()
		s.add(l.LeaseID == next)
		if h.answer != nil {
			s.add(h.answer.lease.RemainingMS, h.answer.lease.LeaseID == held, h.answer.lease.LeaseID == l.LeaseID)
		}
	}
	return s.done()
}

// left is when a lease that lives ends.
func left(l lock.Lease) int64 {
	if l.State != lock.Active {
		return 0
	}
	return l.ExpiresMS
}
