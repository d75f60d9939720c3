package sequence

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/receipt"
)

// recordPrefix begins the keys of all records of this package. It is short because there
// may be millions of them.
const recordPrefix = "seq/"

// windowPrefix begins those of the windows of receipts. Their keys end with windowBegin, which
// no key of a sequence has, and the window's name.
const (
	windowPrefix = "seqd/"
	windowBegin  = "\x1f"
)

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

// Close implements Store.
func (s *Records) Close() error { return nil }

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

// carryOut carries requests for one key out in one change, one after the other. An answer of
// errLater is never that of the first.
func (s *Records) carryOut(ctx context.Context, requests []Request) []answer {
	answers := make([]answer, len(requests))
	var startsOver atomic.Bool // as the rule saw it last
	err := s.changeSeeing(ctx, requests[0].Tenant, requests[0].Key, func(before State, over bool, v record.View) (State, error) {
		after, err := nextOf(before, over, requests, v, answers)
		startsOver.Store(after.StartsOver)
		return after, err
	})
	if err == nil || errors.Is(err, errNothing) {
		return answers
	}
	if startsOver.Load() && !IsAnswer(err) {
		err = fmt.Errorf("%w: %w", ErrReset, err)
	}
	// The rule may still run, and make answers of a change that is never committed. So none of
	// them is read, and others are made.
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

// nextOf is nextIn for one request after the other, as if each had a change of its own. The
// first decides which windows are asked for.
func nextOf(s State, over bool, requests []Request, v record.View, answers []answer) (State, error) {
	changed, more := false, false
	for i, r := range requests {
		after, got, err := nextIn(s, over, r, v)
		if _, unseen := errors.AsType[*receipt.UnseenError](err); unseen {
			if i == 0 {
				return s, err
			}
			err = errLater
		}
		answers[i] = answer{got, err}
		if err == nil {
			more = more || after.Receipts.size() > s.Receipts.size()
			s, over, changed = after, false, true
		}
	}
	if !changed {
		return s, errNothing
	}
	if !more {
		return s, nil
	}
	return s.tidied(v.NowMS)
}

// changeSeeing is change, again with the windows that it depends on, and then without those
// for which there is no room: a known key must not fail for want of a receipt.
func (s *Records) changeSeeing(ctx context.Context, tenant, key string, step func(before State, over bool, v record.View) (State, error)) error {
	var asked receipt.Asked
	noRoom := false
	for {
		windows := asked.Windows()
		err := s.change(ctx, tenant, key, windows, noRoom, step)
		unseen, more := errors.AsType[*receipt.UnseenError](err)
		_, full := errors.AsType[*record.FullError](err)
		switch {
		case more:
			asked.Add(unseen)
		case full && len(windows) > 0 && !noRoom:
			asked, noRoom = receipt.Asked{}, true
		default:
			return err
		}
	}
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
		before = before.unknown()
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
	return s.change(ctx, d.Tenant, d.Key, nil, false, func(before State, _ bool, v record.View) (State, error) {
		after := Declared(before, d, v.NowMS)
		if v.Fence.Doubt && before.Life != v.Life {
			after = after.forgetAll(v.NowMS)
		}
		after.Life = v.Life
		return after, nil
	})
}

func windowPath(tenant, key, name string) string {
	return windowPrefix + tenant + "/" + key + windowBegin + name
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

// change replaces a key's state by what step makes of it, and windows of it too. The step sees
// the windows that are named.
func (s *Records) change(ctx context.Context, tenant, key string, windows []string, noRoom bool, step func(before State, over bool, v record.View) (State, error)) error {
	path := recordPrefix + tenant + "/" + key
	ask := record.Ask{Keys: []string{path}}
	for _, name := range windows {
		ask.Keys = append(ask.Keys, windowPath(tenant, key, name))
	}
	_, err := s.records.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		before, err := stateIn(v, path, key)
		if err != nil {
			return nil, err
		}
		before.NoRoom = noRoom
		for _, name := range windows {
			w, err := stateIn(v, windowPath(tenant, key, name), key)
			if err != nil {
				return nil, err
			}
			if before.Windows == nil {
				before.Windows = map[string][]Receipt{}
			}
			if before.Windows[name] = nil; w.Began == before.Began {
				before.Windows[name] = w.Receipts.list()
			}
		}
		after, err := step(before, v.Records[path].Over, v)
		if err != nil {
			return nil, err
		}
		writes := []record.Write{{Key: path, Value: after.encode(), TermMS: after.Options.ttlMS(), Unlisted: true}}
		for name, all := range after.Changed {
			w := State{Options: DefaultOptions(), Began: after.Began, Receipts: receiptsOf(all)}
			writes = append(writes, record.Write{Key: windowPath(tenant, key, name), Value: w.encode(), KeepMS: keepMS(all, v.NowMS), Unlisted: true, Frees: true})
		}
		return writes, nil
	})
	return err
}
