package sequence

import (
	"github.com/kazahana/kazahana/internal/keyname"
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

// Known reports whether the state is that of a key that was used.
func (s State) Known() bool { return s.Options.Step != 0 }

// Next is the transition that a request makes: what the key's state is
// afterwards, and the values that the request gets. With an error nothing
// changes. The request must be valid. A key whose TTL has passed is not known.
func Next(s State, r Request, nowMS int64) (State, Range, error) {
	if !s.Known() {
		fresh := State{Options: r.Options, UsedMS: nowMS}
		fresh.Options.Block = 0
		return fresh.restarted().take(r, FreshCount(r), nowMS)
	}
	if !s.Options.same(r.Options) {
		return s, Range{}, &MismatchError{Key: r.Key, Recorded: s.Options.Text(), Asked: r.Options.Text()}
	}
	if again, ok := s.receipt(r); ok {
		return s.repeat(again, r, nowMS)
	}
	switch left := s.left(); {
	case left >= int64(r.Count):
		return s.take(r, r.Count, nowMS)
	case left >= int64(r.Least()):
		return s.take(r, int(left), nowMS)
	case s.Options.Max != 0 && s.Options.OnMax == Reset:
		s.StartsOver = true
		return s.restarted().take(r, FreshCount(r), nowMS)
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

// Doubt is what a store knows that may have forgotten values.
type Doubt struct {
	FromMS int64  // Unix ms: the forgotten values were handed out before
	Reason string // for people
}

// NextInDoubt is Next for a key whose last values the store may have forgotten. It
// hands out nothing that could be among them: a request that is known gets its
// values again, and a key with a TTL starts over once it must have been idle for that
// long. over reports that it did: everything is known of the key from then on.
func NextInDoubt(s State, r Request, nowMS int64, d Doubt) (after State, got Range, over bool, err error) {
	if again, ok := s.receipt(r); ok && s.Options.same(r.Options) {
		after, got, err = s.repeat(again, r, nowMS)
		return after, got, false, err
	}
	ttl := r.Options.ttlMS()
	if s.Known() {
		ttl = s.Options.ttlMS()
	}
	until := max(d.FromMS, s.UsedMS) + ttl
	switch {
	case ttl == 0:
		return s, Range{}, false, &FencedError{Key: r.Key, Reason: d.Reason}
	case nowMS < until:
		return s, Range{}, false, &FencedError{Key: r.Key, UntilMS: until, Reason: d.Reason}
	}
	after, got, err = Next(State{}, r, nowMS)
	return after, got, true, err
}

// left is how many values there are before the limit.
func (s State) left() int64 { return (s.Options.Limit() - s.Last) / s.Options.Step }

// FreshCount is how many values the request gets of a key that begins.
func FreshCount(r Request) int {
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

// Declared is the state that an operator declares. A key that counts as before remembers its
// calls.
func Declared(before State, d Declaration, nowMS int64) State {
	s := State{Options: d.Options, Last: d.Last, UsedMS: nowMS}
	s.Options.Block = 0
	if before.Options.same(d.Options) {
		s.Receipts = before.Receipts
	}
	return s
}
