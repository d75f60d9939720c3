package sequence

import (
	"context"
	"errors"
	"fmt"

	"github.com/kazahana/kazahana/internal/record"
)

// recordPrefix begins the keys of all records of this package. It is short because there
// may be millions of them.
const recordPrefix = "seq/"

// OnRecords keeps sequences as records: the value of each is a State, and its TTL the
// record's term. The records are closed by their owner.
func OnRecords(records record.Store) *Records { return &Records{records} }

// Records is a Store that runs its steps as rules over records.
type Records struct{ records record.Store }

var _ Store = (*Records)(nil)

// Close implements Store.
func (s *Records) Close() error { return nil }

// Next implements Store.
func (s *Records) Next(ctx context.Context, r Request) (Range, error) {
	if err := r.Validate(); err != nil {
		return Range{}, err
	}
	var got Range
	step := func(before State, over bool, v record.View) (after State, err error) {
		after, got, err = nextIn(before, over, r, v)
		return after, err
	}
	try := func() error { return s.change(ctx, r.Tenant, r.Key, step) }
	var err error
	if r.RequestID == "" {
		err = try()
	} else {
		err = record.Settle(try, IsAnswer)
	}
	if err != nil {
		return Range{}, err
	}
	return got, nil
}

// nextIn is Next in a store that may have forgotten values. What a key had before its
// TTL passed matters only while that is so.
func nextIn(before State, over bool, r Request, v record.View) (after State, got Range, err error) {
	if v.Fence.Doubt && before.Life != v.Life {
		after, got, known, err := NextInDoubt(before, r, v.NowMS, Doubt{FromMS: v.Fence.FromMS, Reason: v.Fence.Reason})
		if known {
			after.Life = v.Life
		}
		return after, got, err
	}
	if over {
		before = State{}
	}
	after, got, err = Next(before, r, v.NowMS)
	after.Life = v.Life
	return after, got, err
}

// Declare implements Store.
func (s *Records) Declare(ctx context.Context, d Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	return s.change(ctx, d.Tenant, d.Key, func(_ State, _ bool, v record.View) (State, error) {
		after := Declared(d, v.NowMS)
		after.Life = v.Life
		return after, nil
	})
}

// change replaces a key's state by what step makes of it.
func (s *Records) change(ctx context.Context, tenant, key string, step func(before State, over bool, v record.View) (State, error)) error {
	path := recordPrefix + tenant + "/" + key
	_, err := s.records.Change(ctx, record.Ask{Keys: []string{path}}, func(v record.View) ([]record.Write, error) {
		var before State
		found, ok := v.Records[path]
		if ok {
			var err error
			if before, err = decode(found.Value); err != nil {
				return nil, fmt.Errorf("sequence %q: %w", key, err)
			}
		}
		after, err := step(before, found.Over, v)
		if err != nil {
			return nil, err
		}
		return []record.Write{{Key: path, Value: after.encode(), TermMS: after.Options.ttlMS(), Unlisted: true}}, nil
	})
	if errors.Is(err, record.ErrTerm) {
		err = fmt.Errorf("%w: %w", ErrTTL, err)
	}
	return err
}
