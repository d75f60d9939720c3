package sequence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kazahana/kazahana/internal/record"
)

// recordPrefix begins the keys of all records of this package. It is short because there
// may be millions of them.
const recordPrefix = "seq/"

// OnRecords keeps sequences as records: the value of each is a State, and its TTL the
// record's term. The records are closed by their owner.
func OnRecords(records record.Store) *Records {
	return &Records{records: records, crowds: crowds{waiting: map[crowd][]*waiter{}}}
}

// Records is a Store that runs its steps as rules over records.
type Records struct {
	records record.Store
	crowds  crowds
}

var _ Store = (*Records)(nil)

// Next implements Store.
func (s *Records) Next(ctx context.Context, r Request) (Range, error) {
	if err := r.Validate(); err != nil {
		return Range{}, err
	}
	var got answer
	try := func() error {
		got = s.together(ctx, r)
		return got.err
	}
	if r.RequestID == "" {
		_ = try()
	} else {
		got.err = record.Settle(try, IsAnswer)
	}
	if got.err != nil {
		return Range{}, got.err
	}
	return got.values, nil
}

// answer is what became of a call.
type answer struct {
	values Range
	err    error
}

var (
	// errLater is the answer to a call that was not carried out, and is to be by another change.
	errLater = errors.New("to be carried out by another change")
	// errNothing: no call is to change anything.
	errNothing = errors.New("all calls were refused")
)

// decision is what one run of the rule made of requests.
type decision struct {
	answers    []answer
	startsOver bool
}

// carryOut carries requests for one key out in one change, one after the other. The first answer
// is never errLater.
func (s *Records) carryOut(ctx context.Context, requests []Request) []answer {
	// The answers are from the run with the committed value. Another one may still be under
	// way when the change has failed.
	var latest atomic.Pointer[decision]
	err := s.change(ctx, requests[0].Tenant, requests[0].Key, func(before State, over bool, v record.View) (State, error) {
		after, d := nextOf(before, over, requests, v)
		latest.Store(&d)
		if !slices.ContainsFunc(d.answers, func(a answer) bool { return a.err == nil }) {
			return before, errNothing
		}
		return after, nil
	})
	d := latest.Load()
	if err == nil || errors.Is(err, errNothing) {
		return d.answers
	}
	if d != nil && d.startsOver && !IsAnswer(err) {
		err = fmt.Errorf("%w: %w", ErrReset, err)
	}
	failed := make([]answer, len(requests))
	for i := range failed {
		failed[i].err = err
	}
	if _, full := errors.AsType[*record.FullError](err); full && len(requests) > 1 { // a smaller change may fit
		for i := range failed {
			failed[i].err = errLater
		}
		failed[0] = s.carryOut(ctx, requests[:1])[0]
	}
	return failed
}

// nextOf is Next for one request after the other, as if each had a change of its own.
func nextOf(s State, over bool, requests []Request, v record.View) (State, decision) {
	d := decision{answers: make([]answer, len(requests))}
	for i, r := range requests {
		after, got, err := Next(s, over, r, v)
		if d.answers[i] = (answer{got, err}); err == nil {
			s, over, d.startsOver = after, false, after.StartsOver
		}
	}
	return s, d
}

// doubtful is a change of which is not known whether it was carried out: the state before and
// after it, as encoded.
type doubtful struct{ before, after string }

// Declare implements Store. After a lost answer it looks at what is there now: where the
// declaration was carried out and values were taken since, another one would have them handed
// out twice.
func (s *Records) Declare(ctx context.Context, d Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	var tried []doubtful
	return record.Settle(func() error {
		var latest atomic.Pointer[doubtful]
		earlier := tried
		err := s.change(ctx, d.Tenant, d.Key, func(present State, _ bool, v record.View) (State, error) {
			after, is := declared(present, d, v), string(present.encode())
			switch {
			case len(earlier) == 0:
			case slices.ContainsFunc(earlier, func(t doubtful) bool { return t.after == is }):
				after = present
			case earlier[0].before != is:
				return State{}, fmt.Errorf("sequence %q was used meanwhile: look at it before you declare it again", d.Key)
			}
			latest.Store(&doubtful{is, string(after.encode())})
			return after, nil
		})
		if run := latest.Load(); run != nil && errors.Is(err, record.ErrOutrun) {
			tried = append(tried, *run)
		}
		return err
	}, IsAnswer)
}

// stateIn is the state that a record of the key has. An absent one has none.
func stateIn(v record.View, path, key string) (s State, err error) {
	r, found := v.Records[path]
	if !found {
		return s, nil
	}
	if s, err = decode(r.Value); err != nil {
		err = fmt.Errorf("sequence %q: %w", key, err)
	}
	return s, err
}

// change replaces a key's state by what step makes of it.
func (s *Records) change(ctx context.Context, tenant, key string, step func(before State, over bool, v record.View) (State, error)) error {
	path := recordPrefix + tenant + "/" + key
	_, err := s.records.Change(ctx, record.Ask{Keys: []string{path}}, func(v record.View) ([]record.Write, error) {
		before, err := stateIn(v, path, key)
		if err != nil {
			return nil, err
		}
		after, err := step(before, v.Records[path].Over, v)
		if err != nil {
			return nil, err
		}
		return []record.Write{{Key: path, Value: after.encode(), TermMS: after.Options.ttlMS(), Unlisted: true}}, nil
	})
	return err
}
