package recordtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// expire lets so much time pass, or, where the clock cannot be set, ends the terms of
// the records.
func (r *rig) expire(d time.Duration, keys ...string) {
	if r.target.Advance != nil {
		r.target.Advance(d)
		return
	}
	for _, key := range keys {
		r.target.Expire(key)
	}
}

func termed(key, value string, term time.Duration) record.Write {
	return record.Write{Key: key, Value: []byte(value), TermMS: term.Milliseconds(), KeepMS: time.Hour.Milliseconds()}
}

// left checks how much is left of a record's term, which was written at atMS or later, by
// no more than the test has taken.
func (r *rig) left(key string, atMS int64, term time.Duration) {
	r.Helper()
	v := r.read(record.Ask{Keys: []string{key}})
	found, ms := v.Records[key], term.Milliseconds()
	if found.EndMS != atMS+ms || found.LeftMS < 1 || found.LeftMS > ms || found.LeftMS > max(1, found.EndMS-v.NowMS) {
		r.Errorf("%s ends at %d, %d ms after %d; want %d, and at most %d", key, found.EndMS, found.LeftMS, v.NowMS, atMS+ms, ms)
	}
	page, err := r.store.List(r.context(), key, "", 1)
	if err != nil || len(page) != 1 || page[0].EndMS != found.EndMS || page[0].LeftMS < 1 || page[0].LeftMS > ms {
		r.Errorf("the list has %+v (%v), want the end %d", page, err, found.EndMS)
	}
	// A rule that does not write may rest on the rest of a term, too.
	var shown record.Record
	if _, err := r.store.Change(r.context(), record.Ask{Keys: []string{key}}, func(v record.View) ([]record.Write, error) {
		shown = v.Records[key]
		return nil, nil
	}); err != nil || shown.EndMS != found.EndMS || shown.LeftMS < 1 || shown.LeftMS > found.LeftMS {
		r.Errorf("a rule is shown %+v, after %+v (%v)", shown, found, err)
	}
}

// ends: how long a term lasts is counted from the moment that the change returned.
func ends(r *rig) {
	write := func(w record.Write) int64 {
		at, err := r.store.Change(r.context(), record.Ask{Keys: []string{w.Key}}, func(record.View) ([]record.Write, error) {
			return []record.Write{w}, nil
		})
		must.Succeed(r, err)
		return at
	}
	r.left("a", write(termed("a", "1", time.Minute)), time.Minute)
	at := write(termed("a", "2", time.Hour))
	r.left("a", at, time.Hour)
	r.store = r.open()
	r.left("a", at, time.Hour)
	if r.target.Advance != nil {
		r.target.Advance(time.Minute)
		if got := r.read(record.Ask{Keys: []string{"a"}}).Records["a"]; got.LeftMS != (time.Hour - time.Minute).Milliseconds() {
			r.Errorf("%d ms are left after a minute of an hour", got.LeftMS)
		}
	}
	grant := termed("a", "3", time.Minute)
	grant.GrantMS = time.Hour.Milliseconds() // does not make the term longer
	at = write(grant)
	r.left("a", at, time.Minute)
	r.expire(time.Minute, "a")
	if got := r.read(record.Ask{Keys: []string{"a"}}).Records["a"]; !got.Over || got.LeftMS != 0 || got.EndMS != at+time.Minute.Milliseconds() {
		r.Errorf("after its end it is %+v, want the end at %d", got, at+time.Minute.Milliseconds())
	}
	r.write(text("a", "4"))
	if got := r.read(record.Ask{Keys: []string{"a"}}).Records["a"]; got.Over || got.LeftMS != 0 || got.EndMS != 0 {
		r.Errorf("without a term it is %+v", got)
	}
}

// back: a clock that steps back makes no term shorter, also when it steps ahead again,
// and an ended term stays so.
func back(r *rig) {
	if r.target.Advance == nil {
		r.Skip("its clock cannot be set")
	}
	r.write(termed("over", "1", time.Minute))
	r.target.Advance(time.Minute)
	r.write(text("any", ""))
	began := r.read(record.Ask{}).NowMS
	r.target.Advance(-time.Hour)
	r.see("over", "1!")
	r.store = r.open() // another process knows it too
	if page, err := r.store.List(r.context(), "over", "", 1); err != nil || len(page) != 1 || !page[0].Over {
		r.Errorf("the list has %+v (%v)", page, err)
	}
	r.see("over", "1!")
	r.write(termed("k", "1", time.Minute))
	if now := r.read(record.Ask{}).NowMS; now != began {
		r.Errorf("the clock went back by %d ms", began-now)
	}
	r.target.Advance(time.Hour + time.Minute - time.Millisecond)
	r.see("k", "1")
	r.target.Advance(time.Millisecond)
	r.see("k", "1!")
}

// fresh: a rule that compares times is shown times that are read during the call, and its commit
// is not before the last one.
func fresh(r *rig) {
	other := &rig{T: r.T, target: r.target, area: r.area, store: r.open()}
	ask := record.Ask{Keys: []string{"a"}, Fresh: true}
	change := func(refusal error, meanwhile func()) (runs []int64) {
		r.Helper()
		before := other.read(record.Ask{}).NowMS
		at, err := r.store.Change(r.context(), ask, func(v record.View) ([]record.Write, error) {
			if runs = append(runs, v.NowMS); len(runs) == 1 {
				meanwhile()
			}
			return []record.Write{text("a", "1")}, refusal
		})
		if err != refusal || runs[0] < before || refusal == nil && at < runs[len(runs)-1] {
			r.Errorf("after %d a rule is shown the times %v, and the commit is at %d (%v)", before, runs, at, err)
		}
		return runs
	}
	nothing := func() {}
	change(nil, nothing) // this client's time is old from now on
	if r.target.Advance != nil {
		r.target.Advance(time.Hour)
	}
	change(nil, nothing)
	change(errRule, nothing)
	if r.target.Advance == nil || !r.target.Between {
		return
	}
	// A clock that steps back by less than the store takes note of.
	r.target.Advance(500 * time.Millisecond)
	if runs := change(nil, func() { r.target.Advance(-500 * time.Millisecond) }); len(runs) < 2 {
		r.Errorf("a commit before the time that the rule was shown, %v, was carried out", runs)
	}
}

// followed: where the area says so, the time goes back as far as the clock does, in a call no
// commit is before the time that its rule was shown, and a fence covers grants from the time
// while the clock was ahead.
func followed(r *rig) {
	if r.target.Advance == nil {
		r.Skip("its clock cannot be set")
	}
	f := newRig(r.T, r.target, record.Area{Name: "followed", MaxGrantMS: time.Hour.Milliseconds(), FollowsClock: true})
	near := func(what string, ms, want int64) {
		r.Helper()
		if apart := ms - want; apart < 0 || apart > time.Minute.Milliseconds() {
			r.Errorf("%s is %d ms from %d", what, apart, want)
		}
	}
	f.write(granted("1", time.Minute))
	r.target.Advance(3 * time.Hour)
	f.write(granted("2", time.Minute))
	ahead := f.read(record.Ask{}).NowMS
	r.target.Advance(-2 * time.Hour)
	behind := ahead - (2 * time.Hour).Milliseconds()
	for range 2 {
		near("the time of a read", f.read(record.Ask{}).NowMS, behind)
		var shown int64
		at, err := f.store.Change(f.context(), record.Ask{Keys: []string{"granted"}, Fresh: true}, func(v record.View) ([]record.Write, error) {
			shown = v.NowMS
			return []record.Write{granted("3", time.Minute)}, nil
		})
		must.Succeed(r, err)
		near("the time of a rule", shown, behind)
		near("the commit", at, shown)
		f.see("granted", "3")
		f.store = f.open() // another process sees the same
	}
	f.write(record.Write{Key: "marked", Value: []byte("1"), Mark: f.base + 1})
	f.write(record.Write{Key: "marked"}) // the store may write its own record anew
	must.Succeed(r, f.store.Fence(f.context()))
	if v := f.read(record.Ask{}); v.Fence.UntilMS < ahead+time.Minute.Milliseconds() {
		r.Errorf("the fence is %+v, and what was granted at %d lasts for a minute", v.Fence, ahead)
	}
}

// sweep changes enough for the store to have looked at every record.
func (r *rig) sweep() {
	r.Helper()
	for range 100 {
		r.write(text("swept", ""))
	}
}

// sweepAway waits until the store has deleted the record.
func (r *rig) sweepAway(key string) {
	r.Helper()
	for began := time.Now(); shown(r.read(record.Ask{Keys: []string{key}}), key) != "-"; r.sweep() {
		if time.Since(began) > callTime {
			r.Fatalf("%s is still there", key)
		}
	}
}

// idle: due records are deleted, and no others.
func idle(r *rig) {
	if r.target.Advance == nil {
		// Nothing of such a record is wanted after its term.
		r.write(record.Write{Key: "short", Value: []byte("1"), TermMS: time.Minute.Milliseconds()})
		r.target.Expire("short")
		r.see("short", "-")
		return
	}
	minute := time.Minute.Milliseconds()
	r.write(
		record.Write{Key: "term", Value: []byte("1"), TermMS: minute},
		record.Write{Key: "both", Value: []byte("1"), TermMS: minute, KeepMS: minute},
		record.Write{Key: "keep", Value: []byte("1"), KeepMS: minute, GrantMS: 2 * minute},
		record.Write{Key: "ever", Value: []byte("1"), GrantMS: 1},
	)
	r.target.Advance(time.Minute - time.Millisecond)
	r.sweep()
	for _, key := range []string{"term", "both", "keep", "ever"} {
		r.see(key, "1")
	}
	r.target.Advance(time.Millisecond)
	r.sweepAway("term")
	r.sweepAway("keep")
	r.see("both", "1!")
	r.target.Advance(time.Minute)
	r.sweepAway("both")
	r.see("ever", "1")
}

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
