package capacity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/state"
)

// The defaults of packaging/kazahanad.yaml.
const (
	retryInterval = time.Second
	retryMax      = time.Minute
)

// poll is how often a keeper asks to be woken while nothing is due. The clocks
// of this simulation are never set, so a world may leave those steps out.
const poll = time.Second

// How long a host is down: a process that was told to stop is started again at once, a killed one
// when an operator notices.
const (
	restartTakes = 10 * second
	crashTakes   = 30 * second
)

var errGap = errors.New("no lease is usable, and one was")

// host is a machine: it is up or down with all its services.
type host struct {
	w        *world
	number   int
	rnd      *rand.Rand
	up       bool
	services []*service
}

func newHost(w *world, number int) *host {
	h := &host{w: w, number: number, rnd: newRand(w.seed, number)}
	for i := range w.services {
		s := &service{host: h, name: fmt.Sprint("service", i)}
		s.forget()
		h.services = append(h.services, s)
	}
	w.at(h.within(w.startOver), h.start)
	for _, v := range w.waves {
		w.at(v.at+h.within(v.over), h.restart)
	}
	if i := w.hosts - number; i <= w.guests {
		w.at(w.guestsLeave+h.within(minute), h.stop)
	}
	h.again(w.restarts, h.restart)
	h.again(w.crashes, h.crash)
	return h
}

// within is an even random time below limit.
func (h *host) within(limit int64) int64 { return h.rnd.Int64N(max(limit, 1)) }

// again has do called at random times, so often per hour on average.
func (h *host) again(perHour float64, do func()) {
	if perHour == 0 {
		return
	}
	h.w.at(h.w.now+int64(h.rnd.ExpFloat64()/perHour*float64(hour)), func() {
		do()
		h.again(perHour, do)
	})
}

func (h *host) start() {
	h.up = true
	for _, s := range h.services {
		s.start()
	}
}

// stop ends the host's process as SIGTERM does.
func (h *host) stop() {
	if !h.up {
		return
	}
	h.up = false
	for _, s := range h.services {
		s.turn(keeper.Stop{})
		s.life++
	}
}

// restart stops the host's process and starts it again.
func (h *host) restart() {
	if !h.up {
		return
	}
	h.stop()
	h.w.at(h.w.now+h.within(restartTakes), h.start)
}

// crash ends the process as kill -9 does. Where the state is lost, as with a
// container that is replaced, nothing tells the next life of its leases.
func (h *host) crash() {
	if !h.up {
		return
	}
	h.up = false
	lost := h.rnd.Float64() < h.w.lost
	for _, s := range h.services {
		s.life++
		if lost {
			s.forget()
		}
	}
	h.w.at(h.w.now+h.within(crashTakes), h.start)
}

// service is the core of one keeper with its surroundings.
type service struct {
	host  *host
	name  string
	saved state.Saved // durable
	life  int         // counts the processes
	core  *keeper.Core
	held  []lease.Lease
	had   bool // a usable lease in this life
}

// forget empties the durable state.
func (s *service) forget() {
	s.saved = state.Saved{Timeline: s.host.w.terms.Timeline, Source: state.SourceConfig}
}

// start begins a life.
func (s *service) start() {
	w := s.host.w
	cfg := keeper.Config{
		Service: s.name, MaxThroughput: w.leases * w.terms.Layout().Throughput(),
		RetryInterval: retryInterval, RetryMax: retryMax,
	}
	core, first := keeper.NewCore(cfg, s.saved, s.host.rnd, s.moment())
	s.core, s.held = core, first.Held
	s.had = s.usable() // an adopted lease
	s.step(s.life)
}

// step takes the due steps, unless the process is gone, and comes back for the next ones.
func (s *service) step(life int) {
	if life != s.life {
		return
	}
	s.look()
	nap := s.turn(keeper.Tick{})
	s.look()
	s.host.w.at(s.next(nap), func() { s.step(life) })
}

// turn lets the core act on a Tick or a Stop, to the end. Each action takes no time.
func (s *service) turn(e keeper.Event) (nap time.Duration) {
	for {
		switch a := s.core.Handle(s.moment(), e).(type) {
		case keeper.Publish:
			s.held = a.Held
			e = keeper.Published{}
		case keeper.Rebase:
			e = keeper.Rebased{OK: true}
		case keeper.Save:
			s.saved = a.Content
			e = keeper.Saved{}
		case keeper.Confirm:
			e = keeper.Confirmed(a)
		case keeper.Acquire:
			leases, err := s.acquire(a.Request)
			e = keeper.Acquired{Leases: leases, Err: err}
		case keeper.Verify:
			lost, err := provider.Verify(context.Background(), s.host.w.provider, s.name, a.Leases)
			e = keeper.Verified{Lost: lost, Err: err}
		case keeper.Release:
			s.release(a.Request)
			e = keeper.Released{}
		case keeper.Sleep:
			return a.For
		case keeper.Done:
			return 0
		}
	}
}

// moment shows the right time. The generator makes IDs all the time.
func (s *service) moment() keeper.Moment {
	w := s.host.w
	return keeper.Moment{MS: w.nowMS(), Elapsed: time.Duration(w.now) * time.Millisecond, LastMS: w.nowMS()}
}

// next is when the keeper is to be woken. It asked for a nap; a nap as long as its poll
// says only that nothing is due, and then the next time at which something can be is when
// a lease or the wait after a failure ends.
func (s *service) next(nap time.Duration) int64 {
	w := s.host.w
	if nap < poll {
		return w.now + nap.Milliseconds()
	}
	next := w.length + 1
	sooner := func(t int64) {
		if t > w.now {
			next = min(next, t)
		}
	}
	if retry := s.core.Status().RetryIn; retry > 0 {
		sooner(w.now + (retry + time.Millisecond - 1).Milliseconds())
	}
	for _, l := range s.held {
		created := l.Created - beginMS
		sooner(created + l.Term()*9/10)
		sooner(created + l.Term())
	}
	return next
}

func (s *service) usable() bool {
	now := s.host.w.nowMS()
	return slices.ContainsFunc(s.held, func(l lease.Lease) bool { return l.Allows(now) })
}

// look finds a service that is without a lease after it had one.
func (s *service) look() {
	usable := s.usable()
	if !usable {
		s.host.w.lastGap = s.host.w.now
	}
	if s.had && !usable {
		s.host.w.gaps++
		s.host.w.blame(s, errGap)
	}
	s.had = usable
}

func (s *service) acquire(req provider.AcquireRequest) ([]lease.Lease, error) {
	w := s.host.w
	w.acquires++
	leases, err := w.provider.Acquire(context.Background(), req)
	if short := w.terms.LeaseCount(req.ThroughputPerMS) - len(leases); err == nil && short > 0 {
		err = fmt.Errorf("%d of %d leases are missing", short, short+len(leases))
		w.failed++
		w.lastFailed = w.now
		w.blame(s, err)
		err = nil // the keeper takes what there is
	} else if err != nil {
		w.failed++
		w.lastFailed = w.now
		w.blame(s, fmt.Errorf("acquire: %w", err))
		return nil, err
	}
	return leases, nil
}

func (s *service) release(req provider.ReleaseRequest) {
	w := s.host.w
	if w.keepReleases {
		return
	}
	w.at(w.now+w.releaseTakes, func() {
		if err := w.provider.Release(context.Background(), req); err != nil {
			w.blame(s, fmt.Errorf("release: %w", err))
		}
	})
}
