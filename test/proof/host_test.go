package proof

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/test/trace"
)

// host is what a daemon's process has beside its streams: the product's host of locks
// and its blocks of sequences, at the end of a link to the store of records.
type host struct {
	*life
	link *link
	// records is the store at the end of the link, as the process sees it.
	records record.Store
	locks   *lock.Host
	blocks  *sequence.Blocks
	rules   *sequence.Records
	actors  *actors
	parted  bool            // its processes know that it ends
	ctx     context.Context // ends with the process, as its connections do
	end     context.CancelFunc
}

// callTimeout is a host's for one request.
const callTimeout = 90 * time.Millisecond

func (l *life) openHost() {
	w := l.d.w
	h := &host{life: l, link: &link{net: w.net, d: l.d, name: fmt.Sprint(l.d.name, " life ", w.number())}}
	h.ctx, h.end = context.WithCancel(context.Background())
	h.records = w.records.client(h.link, h.link, l.d.clock)
	h.locks = lock.NewHost(locks{lock.OnRecords(h.records)}, h, callTimeout)
	h.locks.UseRandom(newRand(w.rnd.Uint64()).Float64)
	h.rules = sequence.OnRecords(h.records)
	h.blocks = sequence.NewBlocks(h.rules, h.Elapsed)
	h.place()
	l.host = h
	time.Sleep(time.Nanosecond)
	synctest.Wait()
}

// Elapsed is the host's clock that cannot be set.
func (h *host) Elapsed() time.Duration { return time.Since(h.d.w.began) }

// crash ends the rest of the process.
func (h *host) crash() {
	if h == nil || h.link.gone.Load() {
		return
	}
	w := h.d.w
	h.link.gone.Store(true)
	w.placeTrail.all(trace.PlaceStep{Do: "Crash", Host: h.link.name})
	h.end()
	w.disconnected(h)
	h.actors.stop()
	go func() { _ = h.locks.Close(h.ctx) }()
	synctest.Wait()
}

// stop is a planned end: the host releases its kept locks, for as long as it has patience.
func (h *host) stop() {
	w := h.d.w
	w.disconnected(h)
	end := time.Now().Add(pick(w, []time.Duration{time.Millisecond, 300 * time.Millisecond}))
	ctx, cancel := context.WithDeadline(h.ctx, end)
	defer cancel()
	var closed atomic.Bool
	go func() {
		h.actors.stop()
		select {
		case <-h.actors.ended:
		case <-ctx.Done():
		}
		// Releases are sent before it gives up, even when the actors took all the time: else
		// chance would say whether they are.
		ctx, cancel := context.WithDeadline(h.ctx, end.Add(time.Microsecond))
		defer cancel()
		_ = h.locks.Close(ctx)
		closed.Store(true)
	}()
	for w.net.settle(); !closed.Load(); w.net.settle() {
		if !w.net.step() || w.rnd.IntN(3) == 0 {
			w.sleep(time.Millisecond)
		}
	}
}

// errand is a call that a process of a host makes.
type errand struct {
	by     *host
	ended  atomic.Bool
	at     time.Duration // when it ended
	finish func(at time.Duration)
}

// send has a process make a call. finish judges it, on the world's own goroutine.
func (w *world) send(h *host, patience time.Duration, call func(context.Context), finish func(at time.Duration)) {
	e := &errand{by: h, finish: finish}
	w.errands = append(w.errands, e)
	go func() {
		ctx, cancel := context.WithTimeout(h.ctx, patience)
		defer cancel()
		call(ctx)
		e.at = time.Since(w.began)
		e.ended.Store(true)
	}()
	time.Sleep(time.Nanosecond) // no two calls end at the same moment
	synctest.Wait()
}

// settled judges the calls that have ended.
func (w *world) settled() {
	var ended []*errand
	w.errands = slices.DeleteFunc(w.errands, func(e *errand) bool {
		if e.ended.Load() {
			ended = append(ended, e)
		}
		return e.ended.Load()
	})
	for _, e := range ended {
		w.current = e.by.d
		e.finish(e.at)
	}
}

// belief is that a process holds a lock.
type belief struct {
	who   string
	by    *host // the host of its process; nil: it relies on the term, even without the daemon
	lease lock.Lease
	ttl   time.Duration
	kept  *lock.Holding // nil: the process renews by itself
	from  time.Duration
	until time.Duration
	lost  *atomic.Int64 // when the host told of the loss
}

// end is when the process ceased to believe it.
func (b *belief) end() time.Duration { return min(b.until, time.Duration(b.lost.Load())) }

// believe judges that a process is the only one.
func (w *world) believe(b *belief) {
	key := b.lease.Key
	if b.end() <= b.from || w.back[b.lease.LeaseID] {
		return
	}
	w.alone(b)
	last := w.tokens[key]
	known := slices.ContainsFunc(w.beliefs[key], func(o *belief) bool { return o.lease.Token == b.lease.Token })
	if b.lease.Token <= last && !known {
		w.broken("%s holds %s with token %d after token %d", b.who, key, b.lease.Token, last)
	}
	w.tokens[key] = max(last, b.lease.Token)
	w.beliefs[key] = append(w.beliefs[key], b)
}

// alone judges that no other lease is believed in at the same time.
func (w *world) alone(b *belief) {
	for _, o := range w.beliefs[b.lease.Key] {
		if o.lease.Token != b.lease.Token && o.from < b.end() && b.from < o.end() {
			w.broken("%s holds %s with token %d from %v until %v, and %s with token %d from %v until %v",
				b.who, b.lease.Key, b.lease.Token, b.from, b.end(), o.who, o.lease.Token, o.from, o.end())
		}
		if o.lease.Token == b.lease.Token && o.lease.LeaseID != b.lease.LeaseID {
			w.broken("token %d of %s was given twice", b.lease.Token, b.lease.Key)
		}
	}
}

// ended ends all beliefs in a lease.
func (w *world) ended(b *belief, at time.Duration) {
	w.back[b.lease.LeaseID] = true // a late answer to a repeated request changes nothing
	for _, o := range w.beliefs[b.lease.Key] {
		if o.lease.Token == b.lease.Token {
			o.until = min(o.until, at)
		}
	}
}

// broken notes the first violation.
func (w *world) broken(format string, args ...any) {
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, args...)
	}
}

// disconnected has the processes of a host know that it has ended. Who keeps a lock
// through it has lost that; who relies on a term goes on.
func (w *world) disconnected(h *host) {
	w.net.settle()
	h.parted = true
	for _, all := range w.beliefs {
		for _, b := range all {
			if b.by == h {
				b.until = min(b.until, time.Since(w.began))
			}
		}
	}
}

// forever is the end of a belief that nothing but the host's word ends.
const forever = time.Duration(math.MaxInt64)

var lockKeys = []string{"orders", "mail"}

func (d *daemon) requestID() string {
	return fmt.Sprintf("%016x%016x", d.w.rnd.Uint64(), d.w.rnd.Uint64())
}

// wanted is a request for a lock that may be made again.
type wanted struct {
	lock.Request
	by    *host // where it was made; with Elsewhere it may be made again anywhere
	keep  bool  // the host is to renew
	token int64 // that it was granted; 0: none yet
	life  int   // of the store, which forgets requests with its locks
	since int   // how many requests for the lock were carried out before it
}

// useLocks lets a process of the host do something with locks.
func (h *host) useLocks() {
	w := h.d.w
	now := time.Since(w.began)
	var own []*belief
	for _, key := range lockKeys {
		for _, b := range w.beliefs[key] {
			if now < b.end() && (b.by == h || b.by == nil) {
				own = append(own, b)
			}
		}
	}
	if len(own) > 0 && w.rnd.IntN(2) == 0 {
		h.changeLock(pick(w, own))
		return
	}
	want := &wanted{by: h, keep: w.rnd.IntN(2) == 0, Request: lock.Request{
		Tenant: "t", Key: pick(w, lockKeys), Owner: fmt.Sprint(h.d.name, ":", w.rnd.IntN(3)),
		TTLMS: 100 + int64(w.rnd.IntN(500)),
		Wait:  time.Duration(w.rnd.IntN(800)-200)*time.Millisecond + offGrid, // it ends at no moment at which a call does
	}}
	if w.rnd.IntN(2) == 0 {
		want.since = w.lockTrail.carried[want.Key]
		want.RequestID, want.Elsewhere = h.d.requestID(), !want.keep && w.rnd.IntN(2) == 0
		w.wanted = append(w.wanted[max(0, len(w.wanted)-5):], want)
	}
	if len(w.wanted) > 0 && w.rnd.IntN(4) == 0 {
		if again := pick(w, w.wanted); again.by == h || again.Elsewhere {
			want = again
			w.count("lock requests repeated")
		}
	}
	if want.keep {
		h.hold(want)
	} else {
		h.acquire(want)
	}
}

// answered judges an answer to a request that may have been made before.
func (w *world) answered(want *wanted, l lock.Lease) {
	if want.RequestID == "" {
		return
	}
	remembered := w.lockTrail.carried[want.Key]-want.since < lock.MaxReceipts
	if want.token != 0 && want.token != l.Token && want.life == w.records.life && remembered {
		w.broken("request of %s for lock %s was granted tokens %d and %d", want.Owner, want.Key, want.token, l.Token)
	}
	want.token, want.life = l.Token, w.records.life
}

func (w *world) never() *atomic.Int64 {
	lost := &atomic.Int64{}
	lost.Store(int64(forever))
	return lost
}

// relied is how long a process relies on a lease that it renews by itself: clocks run at
// different speeds.
func relied(l lock.Lease) time.Duration {
	left := time.Duration(l.RemainingMS) * time.Millisecond
	return left - left/20
}

// acquire takes a lock for a holder that relies on the term.
func (h *host) acquire(want *wanted) {
	var l lock.Lease
	var err error
	w := h.d.w
	w.send(h, time.Second, func(ctx context.Context) { l, err = h.locks.Acquire(ctx, want.Request) }, func(at time.Duration) {
		w.tells("%s: acquire %s: token %d, %d ms, %v", want.Owner, want.Key, l.Token, l.RemainingMS, h.saw(err))
		if err != nil {
			return
		}
		w.answered(want, l)
		until := at + relied(l)
		if w.without(termFromSending) {
			until = at + want.TTL()
		}
		w.believe(&belief{who: want.Owner, ttl: want.TTL(), lease: l, from: at, until: until, lost: w.never()})
		w.count("locks granted")
	})
}

// hold takes a lock that the host renews.
func (h *host) hold(want *wanted) {
	var g *lock.Holding
	var err error
	w, lost := h.d.w, h.d.w.never()
	told := func(lock.Lease, error) {
		if !w.without(lossObeyed) {
			lost.CompareAndSwap(int64(forever), int64(time.Since(w.began)))
		}
	}
	w.send(h, time.Second, func(ctx context.Context) { g, err = h.locks.Hold(ctx, want.Request, told) }, func(at time.Duration) {
		w.tells("%s: hold %s: %v", want.Owner, want.Key, h.saw(err))
		if err != nil {
			return
		}
		l := g.Lease()
		w.answered(want, l)
		for _, o := range w.beliefs[l.Key] { // from which this one takes over
			if o.by == h && o.lease.Token == l.Token {
				o.until = min(o.until, at)
			}
		}
		if !h.over() && !h.parted && !h.link.gone.Load() && !g.Over() {
			w.believe(&belief{who: want.Owner, ttl: want.TTL(), by: h, lease: l, kept: g, from: at, until: forever, lost: lost})
			w.count("locks granted")
		}
	})
}

// changeLock has a holder release its lock, or renew it.
func (h *host) changeLock(b *belief) {
	w := h.d.w
	sent := time.Since(w.began)
	r := lock.Request{Op: lock.Release, Tenant: "t", Key: b.lease.Key, Owner: b.lease.Owner, LeaseID: b.lease.LeaseID}
	if b.kept == nil && w.rnd.IntN(3) == 0 {
		r.Op, r.TTLMS = lock.Renew, b.ttl.Milliseconds() // a shorter renewal that comes late would end the lease before
	}
	if w.rnd.IntN(2) == 0 {
		r.RequestID = h.d.requestID()
	}
	if r.Op == lock.Release {
		w.ended(b, sent) // with any outcome
	}
	var l lock.Lease
	var err error
	w.send(h, callTimeout, func(ctx context.Context) {
		if b.kept != nil {
			err = b.kept.Release(ctx)
		} else {
			l, err = h.locks.Change(ctx, r)
		}
	}, func(at time.Duration) {
		w.tells("%s: %v %s: %v", b.who, r.Op, b.lease.Key, h.saw(err))
		if err == nil && r.Op == lock.Renew && at < b.end() {
			w.count("locks renewed")
			b.until = max(b.until, sent+relied(l))
			w.alone(b)
		}
	})
}
