package recordtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
)

// counted: a store that says how many records it has counts each once. A change that finds no
// room is shown the store without the records that are due.
func counted(r *rig) {
	const term = time.Minute
	for i := range 3 {
		r.write(text(fmt.Sprint("k", i), "1"), text("again", fmt.Sprint(i)))
	}
	r.write(record.Write{Key: "k0"}, record.Write{Key: "absent"})
	v := r.read(record.Ask{})
	if v.Keys == 0 && v.Size == 0 {
		return // it does not say
	}
	if v.Keys != 3 || v.Size <= 0 {
		r.Errorf("it has %d records of %d bytes, want 3", v.Keys, v.Size)
	}
	const many = 100
	for i := range many {
		w := text(fmt.Sprint("ends", i), "1")
		w.TermMS = term.Milliseconds()
		r.write(w)
	}
	if got := r.read(record.Ask{}).Keys; got != 3+many {
		r.Errorf("it has %d records, want %d", got, 3+many)
	}
	r.target.Advance(2 * term)
	for n, most := range []int64{4, 4, 5} { // the first new key makes room, the next has some
		key, most := fmt.Sprint("new", n), most
		_, err := r.store.Change(r.context(), record.Ask{Keys: []string{key}}, func(v record.View) ([]record.Write, error) {
			if v.Keys >= most {
				return nil, &record.FullError{Setting: record.SettingKeys, Limit: most}
			}
			return []record.Write{text(key, "1")}, nil
		})
		if wants := n == 1; errors.As(err, new(*record.FullError)) != wants {
			r.Errorf("new key %d, where %d may be: %v", n, most, err)
		}
	}
	if got := r.read(record.Ask{}).Keys; got != 5 {
		r.Errorf("it has %d records, want 5", got)
	}
}

// full: a full store refuses new keys, goes on with what exists, and takes new keys again when
// some have ended.
func full(r *rig) {
	const most, term = 8, time.Minute
	var now time.Duration
	s := bounds.New(r.store, bounds.Limits{Keys: most}, func() time.Duration { return now })
	change := func(payer string, w record.Write) error {
		_, err := s.Change(bounds.Pay(r.context(), payer), record.Ask{Keys: []string{w.Key}}, func(record.View) ([]record.Write, error) { return []record.Write{w}, nil })
		return err
	}
	put := func(payer, key string) error {
		w := text(key, payer)
		w.TermMS = term.Milliseconds()
		return change(payer, w)
	}
	goesOn := func(errs ...error) {
		r.Helper()
		if err := errors.Join(errs...); err != nil {
			r.Error(err)
		}
	}
	isFull := func(err error, want record.FullError) {
		r.Helper()
		if got, ok := errors.AsType[*record.FullError](err); !ok || *got != want {
			r.Errorf("%v, want %v", err, &want)
		}
	}
	for i := range 6 {
		goesOn(put("alice", fmt.Sprint("k", i)))
	}
	isFull(put("alice", "k6"), record.FullError{Setting: record.SettingKeys, Limit: 6, Payer: "alice"})
	goesOn(put("bob", "k6"), put("bob", "k7"))
	isFull(put("bob", "k8"), record.FullError{Setting: record.SettingKeys, Limit: most})
	r.see("k8", "-")
	goesOn(put("alice", "k0"), put("bob", "k1"), change("alice", text("k2", "")), change("bob", record.Write{Key: "k7"}))
	now += 2 * term
	if r.target.Advance != nil {
		r.target.Advance(2 * term)
	}
	goesOn(put("alice", "k8"), put("bob", "k9"))
}
