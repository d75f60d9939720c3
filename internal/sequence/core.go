package sequence

import (
	"github.com/kazahana/kazahana/internal/keyname"
	"github.com/kazahana/kazahana/internal/record"
)

// State is everything that is remembered of one key. The zero value is a key
// that is not known.
type State struct {
	Options Options // what the key was made with; Step is 0 where it is not known
	Last    int64   // the last value that was handed out, in this run
	UsedMS  int64   // Unix ms of the last use, by the store's clock
	// Receipts are the latest calls that had a RequestID, at least MaxReceipts of them.
	Receipts receipts
	// Life is the store's life in which the key became known. In a later one, values
	// may be missing.
	Life string

	// StartsOver: the transition went past the maximum.
	StartsOver bool
}

// Known reports whether the state belongs to a key that was used.
func (s State) Known() bool { return s.Options.Step != 0 }

// Next is the transition that a request makes in a store as the view shows it: what the key's
// state is afterwards, and the values that the request gets. over: its TTL has passed. With an
// error nothing changes. The request must be valid.
func Next(s State, over bool, r Request, v record.View) (State, Range, error) {
	if v.Fence.Doubt && s.Life != v.Life {
		if again, ok := s.receipt(r); ok && s.Options.same(r.Options) {
			return s.repeat(again, r, v.NowMS)
		}
		if err := s.inDoubt(r, v); err != nil {
			return s, Range{}, err
		}
		over = true
	}
	if over {
		s = State{}
	}
	if s.Life = v.Life; !s.Known() {
		s.Options, s.UsedMS = r.Options, v.NowMS
		s.Options.Block = 0
		return s.restarted().take(r, freshCount(r), v.NowMS)
	}
	if !s.Options.same(r.Options) {
		return s, Range{}, &MismatchError{Key: r.Key, Recorded: s.Options.Text(), Asked: r.Options.Text()}
	}
	if again, ok := s.receipt(r); ok {
		return s.repeat(again, r, v.NowMS)
	}
	switch left := s.left(); {
	case left >= int64(r.Count):
		return s.take(r, r.Count, v.NowMS)
	case left >= int64(r.Least()):
		return s.take(r, int(left), v.NowMS)
	case s.Options.Max != 0 && s.Options.OnMax == Reset:
		s.StartsOver = true
		return s.restarted().take(r, freshCount(r), v.NowMS)
	default:
		return s, Range{}, &ExhaustedError{Key: r.Key, Max: s.Options.Limit(), Left: left}
	}
}

// receipt finds the receipt of a call that was made before.
func (s State) receipt(r Request) (Receipt, bool) {
	if r.RequestID == "" {
		return Receipt{}, false
	}
	return s.Receipts.find(keyname.KeptRequestID(r.RequestID))
}

// repeat answers a request that was carried out before. It counts as a use, so that the
// caller knows from when on values may come again.
func (s State) repeat(again Receipt, r Request, nowMS int64) (State, Range, error) {
	if again.Count < r.Least() || again.Count > r.Count {
		return s, Range{}, ErrRequestReused
	}
	s.UsedMS = max(s.UsedMS, nowMS)
	return s, rangeTo(again.Last, s.Options.Step, again.Count), nil
}

// inDoubt returns the refusal of a key if the store may have forgotten its last values: it hands
// out nothing that could be among them. A key with a TTL starts over once it must have been idle
// for that long, and everything is known of it from then on.
func (s State) inDoubt(r Request, v record.View) error {
	ttl := r.Options.ttlMS()
	if s.Known() {
		ttl = s.Options.ttlMS()
	}
	until := max(v.Fence.FromMS, s.UsedMS) + ttl
	switch {
	case ttl == 0:
		return &FencedError{Key: r.Key, Reason: v.Fence.Reason}
	case v.NowMS < until:
		return &FencedError{Key: r.Key, UntilMS: until, Reason: v.Fence.Reason}
	}
	return nil
}

// left is how many values there are before the limit.
func (s State) left() int64 { return (s.Options.Limit() - s.Last) / s.Options.Step }

// freshCount is how many values the request gets of a key that begins.
func freshCount(r Request) int {
	if r.Options.fits(r.Count) {
		return r.Count
	}
	return int((r.Options.Limit()-r.Options.First())/r.Options.Step) + 1
}

// restarted is the state before the first value of the next run; it has the
// receipts of the run before.
func (s State) restarted() State {
	// Both are 0 or more, so this may be negative but does not overflow.
	s.Last = s.Options.First() - s.Options.Step
	return s
}

// take hands out count values, which fit.
func (s State) take(r Request, count int, nowMS int64) (State, Range, error) {
	if !s.Known() {
		panic("sequence: values were taken of a key without options")
	}
	got := Range{First: s.Last + s.Options.Step, Step: s.Options.Step, Count: count}
	s.Last = got.Last()
	s.UsedMS = max(s.UsedMS, nowMS)
	if r.RequestID != "" {
		s.Receipts = s.Receipts.with(Receipt{RequestID: keyname.KeptRequestID(r.RequestID), Last: s.Last, Count: count})
	}
	return s, got, nil
}

// declared is the state that an operator declares. A key that counts as before remembers its
// calls.
func declared(before State, d Declaration, v record.View) State {
	s := State{Options: d.Options, Last: d.Last, UsedMS: v.NowMS, Life: v.Life}
	s.Options.Block = 0
	if before.Options.same(d.Options) {
		s.Receipts = before.Receipts
	}
	return s
}
