package sequence

import (
	"cmp"
	"context"
	"fmt"

	"github.com/kazahana/kazahana/internal/keyname"
)

// Store keeps the sequences. Implementations are safe for concurrent use and
// return soon after ctx is done, as a record.Store does. Package sequencetest is the suite that holds
// one to this.
type Store interface {
	// Next takes values of a key, atomically, and answers when they are as
	// durably taken as the store ever makes it. Its own clock decides what has
	// expired: a key no sooner than its TTL after its last use, and no later than
	// half a TTL and some seconds after that.
	//
	// Errors: after an error that IsAnswer knows, no value was taken. Anything else means
	// that values may or may not have been taken, or may yet be: the caller asks again
	// with the same RequestID.
	Next(ctx context.Context, r Request) (Range, error)

	// Declare has the key count with the options from now on, as if last had been
	// the last value handed out: an operator moves a sequence here from elsewhere,
	// changes how it counts, or goes on after a FencedError. Nothing keeps the operator
	// from declaring a value that was handed out. Errors: ErrInvalid;
	// errors.ErrUnsupported where the store takes no declarations.
	Declare(ctx context.Context, d Declaration) error
}

// Declaration is what an operator says of a key.
type Declaration struct {
	Tenant, Key string
	Options     Options
	Last        int64 // 0 to the options' limit, and such that the next value is no less than the first
}

// Limits of what a caller may name.
const (
	MaxKey       = 512                  // bytes of UTF-8
	MaxRequestID = keyname.MaxRequestID // characters
)

// Request asks for values of one key.
type Request struct {
	Tenant string // 1 to 64 of A-Z a-z 0-9 . _ @ -
	Key    string // 1 to MaxKey bytes of UTF-8 without control characters
	Count  int    // how many values, 1 to MaxCount
	// AtLeast is how many will do where Count do not fit before the maximum, 1 to
	// Count; 0 means Count.
	AtLeast int
	// RequestID makes the request safe to send again, within what a key remembers
	// (MaxReceipts): up to MaxRequestID visible ASCII characters, scoped to the tenant and
	// the key, best random. Empty means that it is never sent again.
	RequestID string
	Options   Options
}

// Least is AtLeast with its default.
func (r Request) Least() int { return cmp.Or(r.AtLeast, r.Count) }

// Validate says what makes the request impossible; the error wraps ErrInvalid.
// Every Store calls it first.
func (r Request) Validate() error {
	if err := CheckKey(r.Tenant, r.Key); err != nil {
		return err
	}
	if err := r.Options.Validate(); err != nil {
		return err
	}
	switch {
	case r.Count < 1 || r.Count > MaxCount:
		return fmt.Errorf("%w: count: %d is not 1 to %d", ErrInvalid, r.Count, MaxCount)
	case r.Least() < 1 || r.Least() > r.Count:
		return fmt.Errorf("%w: at least %d values of %d cannot be had", ErrInvalid, r.AtLeast, r.Count)
	case r.RequestID != "" && !keyname.RequestID.Matches(r.RequestID):
		return fmt.Errorf("%w: the request ID must be 1 to %d visible ASCII characters", ErrInvalid, MaxRequestID)
	case !r.Options.fits(r.Least()):
		return fmt.Errorf("%w: count: %d values one step of %d apart do not fit between the first value, %d, and the maximum, %d",
			ErrInvalid, r.Least(), r.Options.Step, r.Options.First(), r.Options.Limit())
	}
	return nil
}

// Validate says what makes the declaration impossible; the error wraps
// ErrInvalid.
func (d Declaration) Validate() error {
	if err := CheckKey(d.Tenant, d.Key); err != nil {
		return err
	}
	if err := d.Options.Validate(); err != nil {
		return err
	}
	if d.Last < max(0, d.Options.First()-d.Options.Step) || d.Last > d.Options.Limit() {
		return fmt.Errorf("%w: last: %d is not %d to %d", ErrInvalid, d.Last, max(0, d.Options.First()-d.Options.Step), d.Options.Limit())
	}
	return nil
}

// CheckKey returns the fault of the name of a sequence; the error wraps ErrInvalid.
func CheckKey(tenant, key string) error {
	if !keyname.Tenant.Matches(tenant) {
		return fmt.Errorf("%w: the tenant must be 1 to 64 of A-Z a-z 0-9 . _ @ -", ErrInvalid)
	}
	if err := keyname.Check(key, MaxKey); err != nil {
		return fmt.Errorf("%w: the key %w", ErrInvalid, err)
	}
	return nil
}

// NewRequestID returns a random request ID.
func NewRequestID() string { return keyname.NewRequestID() }

// Range is values one step apart, in ascending order.
type Range struct {
	First int64
	Step  int64
	Count int
}

// rangeTo is the range that ends with last.
func rangeTo(last, step int64, count int) Range {
	return Range{First: last - int64(count-1)*step, Step: step, Count: count}
}

// Last is the greatest value.
func (r Range) Last() int64 { return r.First + int64(r.Count-1)*r.Step }

// Values lists them.
func (r Range) Values() []int64 {
	all := make([]int64, r.Count)
	for i := range all {
		all[i] = r.First + int64(i)*r.Step
	}
	return all
}
