package proof

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// This file is the way to the provider. Time passes on it, other daemons act, the
// own clock jumps and callers take IDs; requests and answers get lost, arrive late
// or twice, and the process may be gone when the answer comes.

// answer is an answer that the network has seen.
type answer struct {
	request string
	leases  []lease.Lease
}

var (
	errLost    = errors.New("lost on the way")
	errNotSent = fmt.Errorf("%w: connection refused", provider.ErrNotSent)
)

// travel lets things happen.
func (s *stream) travel() {
	w := s.d.w
	s.p.check()
	for range w.rnd.IntN(5) {
		w.meanwhile(s)
		s.p.check()
	}
	if w.rnd.IntN(w.deadlyCalls) == 0 {
		w.count("killed during a call")
		s.d.kill()
		s.p.check()
	}
}

// unreachable reports whether the provider cannot be reached at all.
func (w *world) unreachable() bool { return w.nowMS() < w.downUntil || w.rnd.IntN(20) == 0 }

// later has a message arrive at some time, and its answer nowhere.
func (w *world) later(message func()) {
	w.messages = append(w.messages, message)
	w.count("messages delayed")
}

// deliver lets one of the delayed messages arrive.
func (w *world) deliver() {
	if n := len(w.messages); n > 0 {
		i := w.rnd.IntN(n)
		message := w.messages[i]
		w.messages = append(w.messages[:i:i], w.messages[i+1:]...)
		message()
	}
}

func (s *stream) acquire(req provider.AcquireRequest) ([]lease.Lease, error) {
	w := s.d.w
	w.trail.asks(s, req.RequestID)
	s.travel()
	if w.unreachable() {
		return nil, errLost
	}
	if w.rnd.IntN(20) == 0 {
		w.later(func() { _, _ = s.carryOut(req) })
		return nil, context.DeadlineExceeded
	}
	if w.rnd.IntN(20) == 0 && len(w.answers) > 0 {
		w.count("answers mixed up")
		if a := pick(w, w.answers); a.request == req.RequestID || w.without(answersEchoed) {
			return a.leases, nil
		}
		return nil, errLost
	}
	leases, err := s.carryOut(req)
	if err == nil {
		w.count("leases granted")
		w.tells("%s is granted %v", s.name(), leases)
		w.answers = append(w.answers[max(0, len(w.answers)-3):len(w.answers):len(w.answers)], answer{req.RequestID, leases})
	}
	s.travel()
	if w.rnd.IntN(15) == 0 {
		return nil, errLost
	}
	return leases, err
}

// carryOut lets a request to acquire arrive.
func (s *stream) carryOut(req provider.AcquireRequest) ([]lease.Lease, error) {
	s.d.w.trail.carried = req.RequestID
	return s.d.w.provider.Acquire(context.Background(), req)
}

func (s *stream) release(req provider.ReleaseRequest) error {
	defer s.flush()
	w := s.d.w
	w.trail.sends(s, req)
	send := func() error {
		err := w.provider.Release(context.Background(), req)
		if err == nil {
			w.count("leases released")
			w.tells("the store takes machine ID %d back until %d ms", req.ID, req.TimestampMS-w.began.UnixMilli())
		}
		return err
	}
	s.travel()
	err := s.wire(send)
	s.travel()
	return err
}

// wire is what can become of a release on the wire.
func (s *stream) wire(send func() error) error {
	w := s.d.w
	kept := func(err error) error {
		w.count("releases refused or not sent")
		if w.without(sentOnce) {
			w.later(func() { _ = send() })
		}
		return err
	}
	unknown := func(err error) error {
		w.count("releases without an answer")
		if w.without(unknownIsGone) {
			return fmt.Errorf("%w: %w", provider.ErrNotSent, err)
		}
		return err
	}
	switch p := w.rnd.IntN(20); {
	case w.nowMS() < w.downUntil, p < 2:
		return kept(errNotSent)
	case p < 3:
		return kept(&provider.BusyError{RetryAfter: time.Millisecond, Reason: "busy"})
	case p < 4:
		return kept(provider.ErrTimestampSkew)
	case p < 5:
		return unknown(errLost) // on the way there
	case p < 6:
		_ = send()
		return unknown(errLost) // on the way back
	case p < 9:
		w.later(func() { _ = send() })
		return unknown(context.DeadlineExceeded)
	case p < 10:
		err := send()
		if !errors.Is(err, provider.ErrNotSent) {
			w.later(func() { _ = send() }) // it arrives twice
		}
		return err
	}
	return send()
}

func (s *stream) verify(claims []provider.Claim) ([]int, error) {
	w := s.d.w
	s.travel()
	if w.unreachable() {
		return nil, errLost
	}
	lost, err := w.provider.Verify(context.Background(), s.svc.name, claims)
	s.travel()
	if w.rnd.IntN(20) == 0 {
		return nil, errLost
	}
	return lost, err
}
