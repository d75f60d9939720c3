package sequence

import (
	"context"
	"errors"
	"fmt"

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
	try := func() error { return s.changeSeeing(ctx, r.Tenant, r.Key, step) }
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
		before = State{NoRoom: before.NoRoom}
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

// change replaces a key's state by what step makes of it, and windows of it too. The step sees
// the windows that are named.
func (s *Records) change(ctx context.Context, tenant, key string, windows []string, noRoom bool, step func(before State, over bool, v record.View) (State, error)) error {
	path := recordPrefix + tenant + "/" + key
	windowPath := func(name string) string { return windowPrefix + tenant + "/" + key + windowBegin + name }
	ask := record.Ask{Keys: []string{path}}
	for _, name := range windows {
		ask.Keys = append(ask.Keys, windowPath(name))
	}
	_, err := s.records.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		read := func(path string) (s State, err error) {
			if found, ok := v.Records[path]; ok {
				if s, err = decode(found.Value); err != nil {
					err = fmt.Errorf("sequence %q: %w", key, err)
				}
			}
			return s, err
		}
		before, err := read(path)
		if err != nil {
			return nil, err
		}
		before.NoRoom = noRoom
		for _, name := range windows {
			w, err := read(windowPath(name))
			if err != nil {
				return nil, err
			}
			if before.Windows == nil {
				before.Windows = map[string][]Receipt{}
			}
			if before.Windows[name] = nil; w.Began == before.Began {
				before.Windows[name] = w.Receipts
			}
		}
		after, err := step(before, v.Records[path].Over, v)
		if err != nil {
			return nil, err
		}
		writes := []record.Write{{Key: path, Value: after.encode(), TermMS: after.Options.ttlMS(), Unlisted: true}}
		for name, all := range after.Changed {
			w := State{Options: DefaultOptions(), Began: after.Began, Receipts: all}
			writes = append(writes, record.Write{Key: windowPath(name), Value: w.encode(), KeepMS: keepMS(all, v.NowMS), Unlisted: true, Frees: true})
		}
		return writes, nil
	})
	if errors.Is(err, record.ErrTerm) {
		err = fmt.Errorf("%w: %w", ErrTTL, err)
	}
	return err
}
