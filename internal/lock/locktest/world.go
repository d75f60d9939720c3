package locktest

import (
	"errors"
	"slices"

	"github.com/kazahana/kazahana/internal/lock"
)

var errUnknown = errors.New("no answer")

// guess is a number that a request set. Without an answer to that request only a lower
// bound is known.
type guess struct {
	n     int64
	loose bool // n or more
}

// see compares with the number in an answer, which is then known.
func (g guess) see(n int64) (guess, bool) {
	return guess{n: n}, n == g.n || g.loose && n >= g.n
}

// world is the possible knowledge of one key.
type world struct {
	jumps   bool
	noClock bool
	token   guess // of the latest lease
	lease   string
	owner   string
	status  lock.Status // "" before the first lease
	expires guess
	now     int64 // the store's clock shows this or more
	// The deeds under a request ID, as far as they are remembered: the acquire of the latest
	// lease, the latest earlier acquires and renewals, and the latest releases.
	acquired          deed
	answers, releases []deed
}

type deed struct {
	request string
	op      lock.Op
	owner   string
	ttl     int64
	lease   string
}

// step returns every world that the call can leave behind with its outcome. None means
// that this outcome is impossible here.
func (w world) step(c call) []world {
	switch {
	case c.unknown():
		return append(w.succeed(c.request, nil), w)
	case c.request.Op == 0:
		return w.shown(c)
	case c.err == nil:
		return w.succeed(c.request, &c.lease)
	}
	return w.refuse(c.request, c.err)
}

// at moves the clock on to the time of an answer. A backend that may forget may go on
// with another clock.
func (w world) at(ms int64) (world, bool) {
	if ms < w.now && !w.jumps && !w.noClock {
		return w, false
	}
	w.now = max(w.now, ms)
	return w, true
}

// shown is a Get.
func (w world) shown(c call) []world {
	switch {
	case errors.Is(c.err, lock.ErrNotFound):
		return keep(w, w.status == "" || w.jumps)
	case c.err != nil:
		return keep(w, false)
	case w.lease != c.lease.LeaseID || w.owner != c.lease.Owner:
		return nil
	}
	w, ok := w.see(c.lease.Token, c.lease.ExpiresMS)
	if !ok {
		return nil
	}
	switch c.lease.State {
	case lock.Active:
		return w.alive(c.lease.ExpiresMS - c.lease.RemainingMS)
	case lock.Expired:
		return w.over()
	}
	return keep(w, w.status == lock.Released)
}

func keep(w world, ok bool) []world {
	if !ok {
		return nil
	}
	return []world{w}
}

// see compares the latest lease's token and end with those of an answer.
func (w world) see(token, expires int64) (world, bool) {
	var a, b bool
	w.token, a = w.token.see(token)
	w.expires, b = w.expires.see(expires)
	return w, a && b
}

// unseenEnd is the end of a term that was granted without an answer.
func (w world) unseenEnd(r lock.Request) guess {
	if w.noClock {
		return guess{0, true}
	}
	return guess{w.now + r.TTLMS, true}
}

// alive is this world if the lease can be alive at the time. A store without a clock of
// its own may end it late.
func (w world) alive(now int64) []world {
	w, ok := w.at(now)
	return keep(w, ok && w.status == lock.Active && (now < w.expires.n || w.expires.loose || w.noClock))
}

// over is this world if the lease can have expired.
func (w world) over() []world {
	if w.status == lock.Active {
		w.status = lock.Expired
		w.now = max(w.now, w.expires.n)
	}
	return keep(w, w.status == lock.Expired)
}

func (w world) find(request string) (deed, bool) {
	if request == "" {
		return deed{}, false
	}
	for _, all := range [][]deed{{w.acquired}, w.answers, w.releases} {
		if i := slices.IndexFunc(all, func(d deed) bool { return d.request == request }); i >= 0 {
			return all[i], true
		}
	}
	return deed{}, false
}

// same reports whether the request is the same as the deed's.
func (d deed) same(r lock.Request) bool {
	return d.op == r.Op && d.owner == r.Owner && d.ttl == r.TTLMS && (r.Op == lock.Acquire || r.LeaseID == "" || r.LeaseID == d.lease)
}

// remembered is how many there are of each kind.
const remembered = 16

func (w world) record(r lock.Request) world {
	d := deed{r.RequestID, r.Op, r.Owner, r.TTLMS, w.lease}
	switch r.Op {
	case lock.Acquire:
		w.answers = latest(w.answers, w.acquired)
		w.acquired = d
	case lock.Renew:
		w.answers = latest(w.answers, d)
	case lock.Release:
		w.releases = latest(w.releases, d)
	}
	return w
}

// latest adds a deed that has a request ID to the latest ones.
func latest(all []deed, d deed) []deed {
	if d.request == "" {
		return all
	}
	return append(slices.Clip(all[max(0, len(all)+1-remembered):]), d)
}

// succeed is a request that was carried out now or before; l is nil when the answer was
// lost.
func (w world) succeed(r lock.Request, l *lock.Lease) []world {
	if d, ok := w.find(r.RequestID); ok {
		if l == nil {
			return nil // it changed nothing
		}
		return w.repeated(d, r, *l)
	}
	if l != nil && l.Repeated {
		return nil
	}
	if r.Op == lock.Acquire {
		return w.granted(r, l)
	}
	if w.status != lock.Active || w.owner != r.Owner || r.LeaseID != "" && r.LeaseID != w.lease {
		return nil
	}
	if l != nil && l.LeaseID != w.lease {
		return nil
	}
	if r.Op == lock.Release {
		return w.freed(r, l)
	}
	return w.renewed(r, l)
}

func (w world) repeated(d deed, r lock.Request, l lock.Lease) []world {
	if !l.Repeated || !d.same(r) || l.LeaseID != d.lease || l.Owner != d.owner {
		return nil
	}
	if r.Op == lock.Release {
		return keep(w, l.State == lock.Released)
	}
	if w.lease != d.lease || l.State != lock.Active {
		return nil
	}
	w, ok := w.see(l.Token, l.ExpiresMS)
	if !ok {
		return nil
	}
	return w.alive(l.ExpiresMS - l.RemainingMS)
}

// granted is a new lease. The one before must be over by the store's clock.
func (w world) granted(r lock.Request, l *lock.Lease) []world {
	if l == nil {
		if w.status == lock.Active {
			w.now = max(w.now, w.expires.n)
		}
		w.token = guess{w.token.n + 1, w.token.loose || w.jumps}
		w.lease, w.expires = r.LeaseID, w.unseenEnd(r)
	} else {
		next := guess{w.token.n + 1, w.token.loose || w.jumps}
		token, fits := next.see(l.Token)
		if !fits || l.LeaseID != r.LeaseID || l.Owner != r.Owner || l.ExpiresMS-l.AcquiredMS != r.TTLMS || l.State != lock.Active {
			return nil
		}
		if w.status == lock.Active && l.AcquiredMS < w.expires.n {
			return nil
		}
		var ok bool
		if w, ok = w.at(l.AcquiredMS); !ok {
			return nil
		}
		w.token, w.lease, w.expires = token, l.LeaseID, guess{n: l.ExpiresMS}
	}
	w.owner, w.status = r.Owner, lock.Active
	return []world{w.record(r)}
}

func (w world) renewed(r lock.Request, l *lock.Lease) []world {
	if l == nil {
		w.expires = w.unseenEnd(r)
		return []world{w.record(r)}
	}
	now := l.ExpiresMS - r.TTLMS
	alive := w.alive(now)
	token, fits := w.token.see(l.Token)
	if len(alive) == 0 || !fits || l.State != lock.Active {
		return nil
	}
	w = alive[0]
	w.token, w.expires = token, guess{n: l.ExpiresMS}
	return []world{w.record(r)}
}

func (w world) freed(r lock.Request, l *lock.Lease) []world {
	if w.now >= w.expires.n && !w.expires.loose && !w.noClock {
		return nil
	}
	if l != nil {
		var ok bool
		if w, ok = w.see(l.Token, l.ExpiresMS); !ok || l.State != lock.Released {
			return nil
		}
	}
	w.status = lock.Released
	return []world{w.record(r)}
}

// held is an answer that the lock is held, perhaps with a token and an end.
func (w world) held(e *lock.HeldError) []world {
	ok := true
	if e.Token != 0 {
		if w.token, ok = w.token.see(e.Token); !ok || e.Owner != w.owner {
			return nil
		}
	}
	if e.ExpiresMS == 0 {
		return keep(w, w.status == lock.Active)
	}
	if w.expires, ok = w.expires.see(e.ExpiresMS); !ok {
		return nil
	}
	return w.alive(e.ExpiresMS - e.RemainingMS)
}

// refuse is a request that was not carried out.
func (w world) refuse(r lock.Request, err error) []world {
	d, known := w.find(r.RequestID)
	var held *lock.HeldError
	var fenced *lock.FencedError
	switch {
	case errors.As(err, &held):
		if known || r.Op != lock.Acquire {
			return nil
		}
		return w.held(held)
	case errors.As(err, &fenced):
		return keep(w, w.jumps && r.Op == lock.Acquire && !known)
	case errors.Is(err, lock.ErrRequestReused):
		switch {
		case !known:
			return nil
		case !d.same(r):
			return []world{w}
		case r.Op != lock.Acquire:
			return nil
		case w.lease != d.lease || w.status == lock.Released:
			return []world{w}
		}
		return w.over()
	case errors.Is(err, lock.ErrExpired):
		if r.Op == lock.Acquire || w.owner != r.Owner || r.LeaseID != "" && r.LeaseID != w.lease || known && w.lease != d.lease {
			return nil
		}
		return w.over()
	case errors.Is(err, lock.ErrNotOwned):
		if known {
			return keep(w, r.Op == lock.Renew && (w.lease != d.lease || w.status == lock.Released))
		}
		mine := w.status != "" && w.owner == r.Owner && (r.LeaseID == "" || r.LeaseID == w.lease)
		return keep(w, r.Op != lock.Acquire && (!mine || w.status == lock.Released))
	}
	return nil
}
