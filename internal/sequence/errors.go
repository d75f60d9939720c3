package sequence

import (
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// Errors without fields. Callers decide with errors.Is.
var (
	// ErrInvalid: the request can never succeed as it is. INVALID_PARAMS.
	ErrInvalid = errors.New("invalid request")
	// ErrRequestReused: the request ID was used before, for another number of
	// values. REQUEST_ID_REUSED.
	ErrRequestReused = errors.New("the request ID was used before, for another number of values")
	// ErrReset is part of an error of a store that failed in a step in which the key
	// was to start over at its maximum.
	ErrReset = errors.New("the key was to start over")
)

// ExhaustedError: so many values do not fit before the key's maximum, and the
// key does not start over. Nothing was taken. SEQUENCE_EXHAUSTED.
type ExhaustedError struct {
	Key  string
	Max  int64 // the greatest value that may be handed out
	Left int64 // how many values there are still
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("sequence %q has %d values left before its maximum %d", e.Key, e.Left, e.Max)
}

// MismatchError: the key counts in another way than the caller has it. It is
// ErrInvalid. An operator changes a key's way with Declare.
type MismatchError struct {
	Key             string
	Recorded, Asked string // Options.Text of each
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%v: sequence %q counts with %s, and the request says %s", ErrInvalid, e.Key, e.Recorded, e.Asked)
}

// Is reports that the error is ErrInvalid.
func (e *MismatchError) Is(target error) bool { return target == ErrInvalid }

// FencedError: the store may have forgotten values of this key that it handed
// out, and hands out none that could be among them. SEQUENCE_FENCED.
type FencedError struct {
	Key string
	// UntilMS is when the key starts over for want of use, in Unix ms by the
	// store's clock; 0 where only an operator can say how to go on.
	UntilMS int64
	Reason  string
}

func (e *FencedError) Error() string {
	way := "an operator must say how to go on (docs/sequences.md)"
	if e.UntilMS > 0 {
		way = "it starts over at " + time.UnixMilli(e.UntilMS).UTC().Format(time.RFC3339) + " unless an operator says how to go on (docs/sequences.md)"
	}
	return fmt.Sprintf("sequence %q hands out nothing: %s; %s", e.Key, e.Reason, way)
}

// IsAnswer reports whether an error of a Store is its answer to the request:
// nothing was taken. Anything else leaves open whether values were.
func IsAnswer(err error) bool {
	var exhausted *ExhaustedError
	var fenced *FencedError
	var full *record.FullError
	if stray, ok := errors.AsType[*record.StrayError](err); ok {
		return !stray.Unsure
	}
	return err == nil || errors.Is(err, ErrInvalid) || errors.Is(err, ErrRequestReused) ||
		errors.As(err, &exhausted) || errors.As(err, &fenced) || errors.As(err, &full)
}
