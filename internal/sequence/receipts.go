package sequence

import (
	"fmt"
	"math"
	"time"

	"github.com/kazahana/kazahana/internal/record/receipt"
)

// MaxReceipts is how many calls a key's record remembers at least, if their request IDs tell a
// time. So many at a time move to windows.
const MaxReceipts = 16

// tooFar is how far ahead of the store's clock the time of an ID is none: random digits look
// like UUIDs of version 7 too.
const tooFar = 24 * time.Hour

// asked is the request ID of a call.
type asked struct {
	id    savedID // "": none
	made  receipt.Stamp
	timed bool // made is the time that the ID tells
}

func askedBy(requestID string, nowMS int64) (a asked) {
	if requestID != "" {
		a.id = saveID(requestID)
		a.made, a.timed = a.id.madeAt(nowMS + tooFar.Milliseconds())
	}
	return a
}

// fresh says why a request without a receipt must not be carried out. The IDs that it lets
// pass are those whose receipts are kept, so that one without a receipt is new.
func (s State) fresh(r Request, a asked, nowMS int64) error {
	made, ok := a.made, a.timed
	keep := receipt.Keep.Milliseconds()
	switch {
	case a.id == "":
		return nil
	case !ok && s.untimed(nowMS) >= receipt.MaxUntimed:
		return fmt.Errorf("%w: sequence %q remembers %d calls of the last %v whose request IDs tell no time, and takes no more: make request IDs that are UUIDs of version 7",
			ErrInvalid, r.Key, receipt.MaxUntimed, receipt.Keep)
	case ok && made.MS() > nowMS+keep:
		return fmt.Errorf("%w: the request ID was made at %s, and it is %s: the clock of the host that made it is ahead", ErrInvalid, showTime(made.MS()), showTime(nowMS))
	case ok && made <= max(s.Forgotten, endOf(nowMS)):
		return &ReusedError{fmt.Sprintf("the request ID was made at %s, and requests from up to %s are forgotten: it may have been carried out. "+
			"Ask again with a new request ID; if this one is new, the clock of the host that made it is behind",
			showTime(made.MS()), showTime(max(s.Forgotten, endOf(nowMS)).MS()))}
	}
	return nil
}

// endOf is the latest time in an ID whose request is refused because of its age.
func endOf(nowMS int64) receipt.Stamp {
	return receipt.Stamp(nowMS-receipt.Keep.Milliseconds())*receipt.PerMS - 1
}

// untimed counts the calls of the last time whose IDs tell none.
func (s State) untimed(nowMS int64) (n int) {
	for _, r := range s.Receipts.list() {
		if r.DoneMS != 0 && nowMS-r.DoneMS <= receipt.Keep.Milliseconds() {
			n++
		}
	}
	return n
}

// receipt finds the receipt of a call, unless its time is over. The error is a
// *receipt.UnseenError.
func (s State) receipt(a asked, nowMS int64) (Receipt, bool, error) {
	if a.id == "" || a.timed && a.made <= endOf(nowMS) {
		return Receipt{}, false, nil
	}
	if r, ok := s.Receipts.find(a.id); ok {
		return r, true, nil
	}
	if a.timed && a.made <= s.Moved {
		return receipt.Find(s.Windows, a.made, func(r Receipt) bool { return r.RequestID == a.id })
	}
	return Receipt{}, false, nil
}

// tidied is the state without receipts whose time is over; others move to windows once there
// are enough of them. The state from before stays as it is. The error is a *receipt.UnseenError.
func (s State) tidied(nowMS int64) (State, error) {
	overdue := s.Receipts.timed - MaxReceipts
	if overdue < MaxReceipts {
		overdue = 0
	}
	over := func(doneMS int64) bool { return doneMS != 0 && nowMS-doneMS > receipt.Keep.Milliseconds() }
	moves := overdue > 0
	if !moves && !over(s.Receipts.firstMS) {
		return s, nil
	}
	all := s.Receipts.list()
	staying, leaving := make([]Receipt, 0, len(all)), make([]Receipt, 0, overdue)
	for _, r := range all {
		switch {
		case over(r.DoneMS):
		case r.DoneMS != 0 || overdue == 0:
			staying = append(staying, r)
		default:
			overdue--
			if made, _ := r.RequestID.madeAt(math.MaxInt64); s.NoRoom || made <= endOf(nowMS) {
				s = s.forget(r)
			} else {
				leaving = append(leaving, r)
			}
		}
	}
	s.Receipts = receiptsOf(staying)
	if !moves {
		return s, nil
	}
	if s.Began == 0 {
		s.Began = nowMS
	}
	// So many calls have come since the last time.
	moved, left, dropped, err := receipt.Move(leaving, func(r Receipt) receipt.Stamp {
		made, _ := r.RequestID.madeAt(math.MaxInt64)
		return made
	}, nowMS-s.MovedMS, s.Windows)
	if err != nil {
		return s, err
	}
	for _, r := range leaving {
		made, _ := r.RequestID.madeAt(math.MaxInt64)
		s.Moved = max(s.Moved, made)
	}
	for _, r := range dropped {
		s = s.forget(r)
	}
	s.Changed, s.Receipts, s.MovedMS = moved, receiptsOf(append(left, staying...)), nowMS
	return s, nil
}

// forget keeps a call from being carried out again whose receipt is dropped.
func (s State) forget(r Receipt) State {
	if made, ok := r.RequestID.madeAt(math.MaxInt64); ok && r.DoneMS == 0 {
		s.Forgotten = max(s.Forgotten, made)
	}
	return s
}

// forgetAll keeps calls from being carried out again that the store has forgotten: those whose
// IDs were made before nowMS. Clocks that made them may have been ahead, so none is let
// through because it seems to come from after the loss.
func (s State) forgetAll(nowMS int64) State {
	s.Forgotten = max(s.Forgotten, receipt.Stamp(nowMS+1)*receipt.PerMS-1)
	return s
}

// keepMS is how long a window is kept: until the latest of its requests would be refused
// because of its age.
func keepMS(window []Receipt, nowMS int64) int64 {
	latest := nowMS
	for _, r := range window {
		made, _ := r.RequestID.madeAt(math.MaxInt64)
		latest = max(latest, made.MS())
	}
	return latest - nowMS + receipt.Keep.Milliseconds() + time.Second.Milliseconds()
}

// showTime writes a time in Unix ms for people.
func showTime(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }
