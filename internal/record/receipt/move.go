package receipt

import (
	"fmt"
	"slices"

	"github.com/kazahana/kazahana/internal/record"
)

// UnseenError: a decision depends on windows that the store was not asked for: those in which a
// receipt can be, or those to which receipts move.
type UnseenError struct {
	Windows []string
	moves   bool
}

func (e *UnseenError) Error() string {
	return fmt.Sprintf("the windows %q are to be seen", e.Windows)
}

// Unwrap implements errors.
func (e *UnseenError) Unwrap() error { return record.ErrMore }

// Asked is which windows a request asks the store for, by the errors so far. They are few
// enough for one record.Ask, together with the key's record.
type Asked struct{ find, move []string }

// Add adds those of an error, instead of earlier ones for the same end.
func (a *Asked) Add(e *UnseenError) {
	if e.moves {
		a.move = e.Windows
	} else {
		a.find = e.Windows
	}
}

// Windows names each window once.
func (a Asked) Windows() []string {
	if len(a.find)+len(a.move) == 0 {
		return nil
	}
	all := slices.Concat(a.find, a.move)
	slices.Sort(all)
	return slices.Compact(all)
}

// Find looks for a receipt in the windows in which it can be. The error is an *UnseenError where
// not all of them were seen.
func Find[R any](seen map[string][]R, made Stamp, is func(R) bool) (found R, ok bool, err error) {
	names := Windows(made)
	for _, name := range names {
		all, shown := seen[name]
		if !shown {
			return found, false, &UnseenError{Windows: names}
		}
		if i := slices.IndexFunc(all, is); i >= 0 {
			return all[i], true, nil
		}
	}
	return found, false, nil
}

// Move puts receipts that were carried out within a span of so many ms into their windows.
// moved is what those have then. What belongs to a window that was not seen is left, for the
// next time. dropped did not fit into a full window. The error is an *UnseenError where none
// was seen.
func Move[R any](leaving []R, madeAt func(R) Stamp, spanMS int64, seen map[string][]R) (moved map[string][]R, left, dropped []R, err error) {
	var names []string
	moved = map[string][]R{}
	width, number, name := widthOf(spanMS), int64(-1), ""
	for _, r := range leaving {
		made := madeAt(r)
		if n := numberOf(made, width); n != number { // most have the name of the one before
			number, name = n, window(made, width)
		}
		if !slices.Contains(names, name) && len(names) < maxMoved {
			names = append(names, name)
		}
		before, shown := seen[name]
		if !shown {
			left = append(left, r)
			continue
		}
		all, begun := moved[name]
		if !begun {
			all = slices.Clip(before)
		}
		if len(all) == maxWindow {
			dropped = append(dropped, r)
			continue
		}
		moved[name] = append(all, r)
	}
	if len(left) > 0 && len(left) == len(leaving) { // what was seen was for another end
		return nil, leaving, nil, &UnseenError{Windows: names, moves: true}
	}
	return moved, left, dropped, nil
}
