package trace

import (
	"cmp"
	"slices"
	"time"
)

// Locks is the trace of one lock. docs/model/Locks.tla must allow each of its steps after the
// steps before it.
//
// Two clocks measure it, which need not agree: the hosts', and the store's. The specification has
// one time, but no rule of it compares the two.
type Locks struct {
	Steps  []LockStep
	Relied []Reliance
	// Memory is how many answers the store remembers; 0: unknown.
	Memory int
}

// LockStep is a step. The specification's requests are hosts'; here a host is the use of one
// lease, so a client that takes the lock again is another one.
type LockStep struct {
	Do      string        // the action in Locks.tla
	At      time.Duration // by the clock of the hosts
	StoreMS int64         // by the store's, Unix ms; 0: unknown
	Host    string
	Op      string // acquire, renew or release
	Number  string // of the request
	// Sent is when the try was sent that is carried out, or answered.
	Sent time.Duration
	// Token is the token of the lease which the request names, the step leaves in the record, or
	// the store shows.
	Token  int64
	TermMS int64 // Commit: of the lease from then on
	LeftMS int64 // Repeat: what the answer says is left
	// Active and the rest are what the store shows in a Look, a Delete or a Forget.
	Active                bool
	EndMS, Floor, FenceMS int64 // EndMS: of an active lease
}

// Reliance is a time in which a holder relied on the lease of a host.
type Reliance struct {
	Host        string
	Token       int64
	From, Until time.Duration
}

// leaseRecord is rec of Locks.tla.
type leaseRecord struct {
	token        int64
	host, number string
	endMS        int64
	active       bool
	life         int
}

// asked is a request, with the answers to its tries.
type asked struct {
	LockStep
	tries   map[time.Duration]bool
	answers map[time.Duration]lockAnswer // by when the try was sent
	open    bool                         // the host takes an answer
}

type lockAnswer struct{ token, leftMS int64 }

// lockBelief is what a host may rely on: until the second of each pair from the first on.
type lockBelief struct {
	host    string
	extents [][2]time.Duration
	cutOff  time.Duration // it sent a release; 0: it did not
}

// locks is the state of Locks.tla.
type locks struct {
	*Locks
	now         time.Duration
	storeMS     int64
	rec         leaseRecord
	floor       int64
	fenceMS     int64
	life        int
	earlier     []leaseRecord
	latest      []string // the numbers of acquires and renewals that were carried out last
	asked       map[string]*asked
	belief      map[int64]*lockBelief // by token
	greatest    int64
	greatestEnd int64
	forgotten   int64 // greatest when the store last forgot something
	carriedOut  int
	breaks      func(format string, args ...any)
}

// lockActions are the actions of Locks.tla. Tick and Save need no step: time passes between
// steps, and the store may fall back to each state.
var lockActions = map[string]func(*locks, LockStep){
	"Tick": (*locks).Tick, "Ask": (*locks).Ask, "Again": (*locks).Again, "GiveUp": (*locks).GiveUp, "Discard": (*locks).Discard,
	"Receive": (*locks).Receive, "Commit": (*locks).Commit, "Repeat": (*locks).Repeat, "Look": (*locks).Look, "Delete": (*locks).Delete,
	"Save": (*locks).Save, "Forget": (*locks).Forget,
}

// Check follows the trace. Grants counts the requests that were carried out.
func (t Locks) Check() (r Result) {
	l := &locks{Locks: &t, asked: map[string]*asked{}, belief: map[int64]*lockBelief{}, breaks: r.breaks}
	for _, s := range t.Steps {
		l.Tick(s)
		act, known := lockActions[s.Do]
		if !known {
			l.breaks("%s is no action of Locks.tla", s.Do)
			break
		}
		act(l, s)
		l.Save(s)
	}
	l.relied()
	r.Grants = l.carriedOut
	return r
}

// Tick is the time that passes before a step.
func (l *locks) Tick(s LockStep) {
	if s.At < l.now {
		l.breaks("Tick: %s comes at %v, after %v", s.Do, s.At, l.now)
	}
	if s.StoreMS != 0 && s.StoreMS < l.storeMS {
		l.breaks("Tick: %s comes at %d by the store's clock, after %d", s.Do, s.StoreMS, l.storeMS)
	}
	l.now, l.storeMS = s.At, max(l.storeMS, s.StoreMS)
}

// Ask is a host's request, sent for the first time.
func (l *locks) Ask(s LockStep) {
	b := l.belief[s.Token]
	switch {
	case s.Op == "acquire":
		for token, b := range l.belief {
			if b.host == s.Host {
				l.breaks("Ask: %s asks for the lock, and has token %d already", s.Host, token)
			}
		}
	case b == nil || b.host != s.Host:
		l.breaks("Ask: %s is to %s token %d, which it does not have", s.Host, s.Op, s.Token)
	case s.Op == "release" && b.cutOff == 0:
		b.cutOff = max(s.At, 1)
	}
	l.sends(s)
}

func (l *locks) sends(s LockStep) {
	if l.asked[s.Number] != nil {
		l.breaks("Ask: %s asks anew with the number %s of another request", s.Host, s.Number)
	}
	l.asked[s.Number] = &asked{LockStep: s, tries: map[time.Duration]bool{s.At: true}, answers: map[time.Duration]lockAnswer{}, open: true}
}

// Again is the same request once more. Clients may repeat an answered request: the
// specification has that as a try that arrives late.
func (l *locks) Again(s LockStep) {
	q := l.asked[s.Number]
	if q == nil || q.Op != s.Op {
		l.breaks("Again: the %s with number %s was not made before", s.Op, s.Number)
		return
	}
	q.tries[s.At], q.open = true, true
}

// GiveUp: the host takes no answer any more.
func (l *locks) GiveUp(s LockStep) {
	if q := l.asked[s.Number]; q == nil || !q.open {
		l.breaks("GiveUp: %s waits for no answer to request %s", s.Host, s.Number)
	} else {
		q.open = false
	}
}

// Discard is a release of what an acquire, of which the host knows no answer, may have been
// granted. The acquire's number is the host's name.
func (l *locks) Discard(s LockStep) {
	if q := l.asked[s.Host]; q == nil || q.Op != "acquire" {
		l.breaks("Discard: %s has not asked for the lock", s.Host)
	} else {
		q.open = false
	}
	s.Op, s.Token = "release", 0
	l.sends(s)
}

// Receive is the answer to a try.
func (l *locks) Receive(s LockStep) {
	q := l.asked[s.Number]
	if q == nil || !q.open {
		l.breaks("Receive: %s waits for no answer to request %s", s.Host, s.Number)
		return
	}
	a, given := q.answers[s.Sent]
	if !given {
		l.breaks("Receive: %s has an answer to request %s, sent at %v, which the store did not give", s.Host, s.Number, s.Sent)
		return
	}
	// A later try may find that an earlier one was carried out: then that one's answer has arrived.
	until := time.Duration(0)
	for sent, other := range q.answers {
		if other.token == a.token {
			until = max(until, sent+time.Duration(other.leftMS)*time.Millisecond)
		}
	}
	b := l.belief[a.token]
	if b == nil {
		b = &lockBelief{host: s.Host}
		l.belief[a.token] = b
	}
	if q.Op != "release" {
		b.extents = append(b.extents, [2]time.Duration{s.At, until})
	}
}

func (l *locks) active(atMS int64) bool {
	return l.rec.active && (atMS == 0 || atMS < l.rec.endMS)
}

// token is Token of Locks.tla.
func (l *locks) token() int64 {
	if l.rec.token > 0 && l.rec.life == l.life {
		return l.rec.token
	}
	return max(l.rec.token, l.floor)
}

// Commit: the store carries the request out.
func (l *locks) Commit(s LockStep) {
	l.carriedOut++
	q := l.asked[s.Number]
	if q == nil || q.Op != s.Op || !q.tries[s.Sent] {
		l.breaks("Commit: nobody has sent the %s with number %s at %v", s.Op, s.Number, s.Sent)
		return
	}
	if s.Op != "release" {
		if slices.Contains(l.latest, s.Number) {
			l.breaks("Once: the %s with number %s is carried out again, with fewer than %d others in between", s.Op, s.Number, l.Memory)
		}
		l.latest = append(l.latest, s.Number)
		l.latest = l.latest[max(0, len(l.latest)-l.Memory):]
	}
	active := l.active(s.StoreMS)
	switch {
	case s.Op == "acquire":
		l.granted(q, s, active)
		return
	case !active:
		l.breaks("Decided: the store takes a %s of token %d, whose lease is over", s.Op, s.Token)
	case l.rec.host != q.Host || q.Token != 0 && l.rec.token != q.Token || s.Token != l.rec.token:
		l.breaks("Meant: the store takes a %s of token %d, and the record has token %d of %s", s.Op, s.Token, l.rec.token, l.rec.host)
	}
	if l.rec.active = s.Op == "renew"; l.rec.active && s.StoreMS != 0 {
		l.rec.endMS = s.StoreMS + s.TermMS
		l.greatestEnd = max(l.greatestEnd, l.rec.endMS)
	}
	q.answers[s.Sent] = lockAnswer{s.Token, s.TermMS}
}

func (l *locks) granted(q *asked, s LockStep, active bool) {
	next := l.token() + 1
	switch {
	case active:
		l.breaks("Decided: token %d is granted while token %d has %d ms left", s.Token, l.rec.token, l.rec.endMS-s.StoreMS)
	case l.rec.number == s.Number:
		l.breaks("Decided: the acquire with number %s is granted twice", s.Number)
	case s.StoreMS < l.fenceMS && s.StoreMS != 0:
		l.breaks("Decided: token %d is granted %d ms before the fence ends", s.Token, l.fenceMS-s.StoreMS)
	case s.Token != next:
		l.breaks("Token: token %d is granted, and the next one is %d", s.Token, next)
	case s.Token <= l.greatest:
		l.breaks("TokensRise: token %d is granted after token %d", s.Token, l.greatest)
	}
	l.rec = leaseRecord{token: s.Token, host: q.Host, number: s.Number, endMS: s.StoreMS + s.TermMS, active: true, life: l.life}
	l.greatest, l.greatestEnd = max(l.greatest, s.Token), max(l.greatestEnd, l.rec.endMS)
	q.answers[s.Sent] = lockAnswer{s.Token, s.TermMS}
}

// Repeat: the store answers again, with the rest of the lease.
func (l *locks) Repeat(s LockStep) {
	q := l.asked[s.Number]
	switch {
	case q == nil || !q.tries[s.Sent]:
		l.breaks("Repeat: nobody has sent request %s at %v", s.Number, s.Sent)
		return
	case !l.active(s.StoreMS):
		l.breaks("Repeat: the store shows token %d as held, whose lease is over", s.Token)
	case l.rec.token != s.Token || l.rec.host != q.Host:
		l.breaks("Repeat: the store shows token %d to %s, and the record has token %d of %s", s.Token, q.Host, l.rec.token, l.rec.host)
	case s.StoreMS != 0 && s.LeftMS > l.rec.endMS-s.StoreMS:
		l.breaks("Repeat: the store says that %d ms are left of token %d, which has %d", s.LeftMS, s.Token, l.rec.endMS-s.StoreMS)
	}
	q.answers[s.Sent] = lockAnswer{s.Token, s.LeftMS}
}

// Look is what the store shows.
func (l *locks) Look(s LockStep) {
	switch {
	case s.Token != l.rec.token:
		l.breaks("Look: the store shows token %d, and the record has %d", s.Token, l.rec.token)
	case s.Token > 0 && s.Active != l.active(s.StoreMS), s.Active && s.EndMS != l.rec.endMS:
		l.breaks("Look: the store shows token %d as active: %v, until %d, and the record ends at %d", s.Token, s.Active, s.EndMS, l.rec.endMS)
	case s.Floor < l.floor:
		l.breaks("Look: the floor is %d, after %d", s.Floor, l.floor)
	}
	l.risesAgain(s)
	l.floor = max(l.floor, s.Floor)
}

// Delete: the store deletes an idle record.
func (l *locks) Delete(s LockStep) {
	switch {
	case l.rec.token == 0 || l.active(s.StoreMS):
		l.breaks("Delete: the record of token %d is deleted, and its lease is not over", l.rec.token)
	case s.Floor < l.rec.token:
		l.breaks("Delete: the record of token %d is deleted, and the floor is %d", l.rec.token, s.Floor)
	}
	l.rec, l.floor, l.latest = leaseRecord{}, max(l.floor, s.Floor), nil
}

// Save: the store may fall back to this state.
func (l *locks) Save(LockStep) {
	if !slices.Contains(l.earlier, l.rec) {
		l.earlier = append(l.earlier, l.rec)
	}
}

// Forget: the store falls back to an earlier state, and begins another life.
func (l *locks) Forget(s LockStep) {
	at := slices.IndexFunc(l.earlier, func(r leaseRecord) bool {
		return r.token == s.Token && (r.active && s.StoreMS < r.endMS) == s.Active && (!s.Active || r.endMS == s.EndMS)
	})
	switch {
	case at < 0 && s.Token != 0:
		l.breaks("Forget: the store falls back to token %d, active: %v, which it never had", s.Token, s.Active)
	case s.FenceMS < l.greatestEnd:
		l.breaks("Forget: the fence ends at %d, and a lease that may be missing at %d", s.FenceMS, l.greatestEnd)
	}
	if l.rec = (leaseRecord{}); at >= 0 {
		l.rec = l.earlier[at]
	}
	l.life++
	l.floor, l.fenceMS, l.latest = s.Floor, s.FenceMS, nil // its memory is as old
	l.forgotten = l.greatest
	l.risesAgain(s)
}

// risesAgain judges the floor that the store shows once the fence is over. Until then the floor of
// some stores is the time, and a token from the millisecond of the loss is above it.
func (l *locks) risesAgain(s LockStep) {
	if s.StoreMS >= l.fenceMS && s.Floor < l.forgotten {
		l.breaks("%s: tokens go on above %d, and %d was granted before the store forgot", s.Do, s.Floor, l.forgotten)
	}
}

// relied judges who relied on what: on no lease but what the host had been told by then, and
// until when (rules "sending" and "cut off"), and never two hosts at once (OneHolder).
func (l *locks) relied() {
	for _, r := range l.Relied {
		b := l.belief[r.Token]
		if b == nil || b.host != r.Host || len(b.extents) == 0 {
			l.breaks("Believes: %s relies on token %d, which it never had", r.Host, r.Token)
			continue
		}
		until := time.Duration(0)
		for _, e := range b.extents {
			if e[0] <= r.Until {
				until = max(until, e[1])
			}
		}
		switch {
		case r.From < b.extents[0][0]:
			l.breaks("Receive: %s relies on token %d from %v on, before the answer of %v", r.Host, r.Token, r.From, b.extents[0][0])
		case r.Until > until:
			l.breaks("Until: %s relies on token %d until %v, and may until %v", r.Host, r.Token, r.Until, until)
		case b.cutOff != 0 && r.Until > b.cutOff:
			l.breaks("Ask: %s relies on token %d until %v, and sent the release at %v", r.Host, r.Token, r.Until, b.cutOff)
		}
	}
	all := slices.SortedFunc(slices.Values(l.Relied), func(a, b Reliance) int { return cmp.Compare(a.From, b.From) })
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.Token != b.Token && b.From < a.Until && b.From < b.Until {
				l.breaks("OneHolder: tokens %d and %d are relied on at %v", a.Token, b.Token, b.From)
			}
		}
	}
}
