package sequence

import (
	"github.com/kazahana/kazahana/internal/record/receipt"
)

// State is everything that is remembered of one key. The zero value is a key
// that is not known.
type State struct {
	Options Options // what the key was made with; Step is 0 where it is not known
	Last    int64   // the last value that was handed out, in this run
	UsedMS  int64   // Unix ms of the last use, by the store's clock
	// Receipts are the last calls that had a RequestID, oldest first: at least MaxReceipts.
	// Earlier ones are in windows.
	Receipts receipts
	// Moved is the latest time in the IDs of the receipts in windows, and MovedMS when some
	// moved there last, in Unix ms. Of the calls up to Forgotten not all receipts are kept.
	Moved, Forgotten receipt.Stamp
	MovedMS          int64
	// Began tells the windows of this count from those of an earlier one: of before a
	// declaration, or before the TTL passed. It is 0 while nothing has moved.
	Began int64
	// Life is the store's life in which the key became known. In a later one, values
	// may be missing.
	Life string

	// What follows is not recorded with the key. Windows are those that the store was asked
	// for; one that is missing there has no receipts. NoRoom: there is no room for windows.
	Windows map[string][]Receipt
	NoRoom  bool
	// Changed are windows as they are to be written with the state.
	Changed map[string][]Receipt
	// StartsOver: the transition went past the maximum.
	StartsOver bool
}

// Receipt is a call that was carried out.
type Receipt struct {
	RequestID savedID
	Last      int64 // the last value that it got
	Count     int
	DoneMS    int64 // Unix ms, where the ID tells no time; else 0
}

// Known reports whether the state is that of a key that was used.
func (s State) Known() bool { return s.Options.Step != 0 }

// Next is the transition that a request makes: what the key's state is
// afterwards, and the values that the request gets. With an error nothing
// changes; a *receipt.UnseenError names the windows that the transition depends on. The
// request must be valid. A key whose TTL has passed is not known. A state that has got receipts
// must be tidied before it is written.
func Next(s State, r Request, nowMS int64) (State, Range, error) {
	asked := askedBy(r.RequestID, nowMS)
	if !s.Known() {
		if err := s.fresh(r, asked, nowMS); err != nil {
			return s, Range{}, err
		}
		fresh := s.unknown()
		fresh.Options, fresh.UsedMS = r.Options, nowMS
		fresh.Options.Block = 0
		return fresh.restarted().take(asked, FreshCount(r), nowMS)
	}
	if !s.Options.same(r.Options) {
		return s, Range{}, &MismatchError{Key: r.Key, Recorded: s.Options.Text(), Asked: r.Options.Text()}
	}
	again, ok, err := s.receipt(asked, nowMS)
	if ok {
		return s.repeat(again, r, nowMS)
	}
	if err == nil {
		err = s.fresh(r, asked, nowMS)
	}
	if err != nil {
		return s, Range{}, err
	}
	switch left := s.left(); {
	case left >= int64(r.Count):
		return s.take(asked, r.Count, nowMS)
	case left >= int64(r.Least()):
		return s.take(asked, int(left), nowMS)
	case s.Options.Max != 0 && s.Options.OnMax == Reset:
		s.StartsOver = true
		return s.restarted().take(asked, FreshCount(r), nowMS)
	default:
		return s, Range{}, &ExhaustedError{Key: r.Key, Max: s.Options.Limit(), Left: left}
	}
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
	again, ok, err := s.receipt(askedBy(r.RequestID, nowMS), nowMS)
	if err != nil {
		return s, Range{}, false, err
	}
	if ok && s.Options.same(r.Options) {
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
	after, got, err = Next(s.unknown(), r, nowMS)
	return after, got, true, err
}

// unknown is the state of the same key when it is not known. It has no receipts, and the
// windows are those of an earlier count.
func (s State) unknown() State {
	none := State{NoRoom: s.NoRoom}
	for name := range s.Windows {
		if none.Windows == nil {
			none.Windows = map[string][]Receipt{}
		}
		none.Windows[name] = nil
	}
	return none
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
func (s State) take(a asked, count int, nowMS int64) (State, Range, error) {
	if !s.Known() {
		panic("sequence: values were taken of a key without options")
	}
	got := Range{First: s.Last + s.Options.Step, Step: s.Options.Step, Count: count}
	s.Last = got.Last()
	s.UsedMS = max(s.UsedMS, nowMS)
	if a.id == "" {
		return s, got, nil
	}
	done := Receipt{RequestID: a.id, Last: s.Last, Count: count}
	if !a.timed {
		done.DoneMS = nowMS
	}
	s.Receipts = s.Receipts.with(done)
	return s, got, nil
}

// Declared is the state that an operator declares. The key may count in another way from then
// on: calls from before are refused if their IDs tell a time, and are new calls if not.
func Declared(before State, d Declaration, nowMS int64) State {
	s := State{Options: d.Options, Last: d.Last, UsedMS: nowMS, Forgotten: max(before.Forgotten, before.Moved)}
	for _, r := range before.Receipts.list() {
		s = s.forget(r)
	}
	s.Options.Block = 0
	if before.Began != 0 {
		s.Began = before.Began + 1
	}
	return s
}
