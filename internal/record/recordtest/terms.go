package recordtest

import (
	"time"

	"github.com/kazahana/kazahana/internal/record"
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

func terms(r *rig) {
	r.write(termed("a", "1", time.Minute), termed("b", "1", time.Minute), text("c", "1"))
	r.see("a", "1")
	if r.target.Advance != nil {
		r.target.Advance(time.Minute - time.Millisecond)
		r.see("a", "1")
		r.write(termed("b", "2", time.Minute)) // counted from here
		r.target.Advance(time.Millisecond)
	} else {
		r.write(termed("b", "2", time.Minute))
		r.target.Expire("a")
	}
	r.see("a", "1!")
	r.see("b", "2")
	r.see("c", "1")
	r.store = r.open()
	r.see("a", "1!")
	// A new term, a longer one, and none.
	r.write(termed("a", "3", time.Minute))
	r.see("a", "3")
	r.write(termed("a", "4", time.Hour))
	if r.target.Advance != nil {
		r.target.Advance(time.Hour - time.Millisecond)
	}
	r.see("a", "4")
	r.write(termed("a", "5", time.Minute))
	r.expire(time.Minute, "a")
	r.see("a", "5!")
	r.write(record.Write{Key: "a", Value: []byte("6"), KeepMS: record.MaxKeepMS})
	r.see("a", "6")
	r.write(termed("a", "7", time.Minute), record.Write{Key: "b", Value: []byte("7")})
	r.write(text("a", "8")) // the term is gone, and the record is for ever
	if r.target.Advance != nil {
		r.target.Advance(2 * record.MaxTermMS * time.Millisecond)
		r.sweep()
	}
	r.see("a", "8")
	r.see("b", "7")
}

// back: a clock that steps back makes no term shorter, also when it steps ahead again,
// and what is over stays so.
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

// sweep changes enough for the store to have looked at every record.
func (r *rig) sweep() {
	r.Helper()
	for range 100 {
		r.write(text("swept", ""))
	}
}

// idle: what is due is deleted, and nothing else.
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
		record.Write{Key: "keep", Value: []byte("1"), KeepMS: minute, Index: []string{"i/keep"}},
		record.Write{Key: "ever", Value: []byte("1"), Index: []string{"i/ever"}},
	)
	r.target.Advance(time.Minute - time.Millisecond)
	r.sweep()
	for _, key := range []string{"term", "both", "keep", "ever"} {
		r.see(key, "1")
	}
	r.target.Advance(time.Millisecond)
	r.sweep()
	r.see("term", "-")
	r.see("both", "1!")
	r.see("keep", "-")
	r.target.Advance(time.Minute)
	r.sweep()
	r.see("both", "-")
	r.see("ever", "1")
	if got := r.read(record.Ask{Ranges: []record.Range{{From: "i/", To: "i0", Limit: 9}}}).Ranges[0]; len(got) != 1 || got[0].Key != "ever" {
		r.Errorf("the index has %v", got)
	}
}

// floor: it rises when a record is deleted, by a rule or by the store, and never else.
func floor(r *rig) {
	marked := func(key string, mark int64) record.Write {
		return record.Write{Key: key, Value: []byte("1"), Mark: mark}
	}
	r.seeFloor(0)
	r.write(marked("a", 7))
	r.write(marked("a", 5), marked("b", 9), marked("c", 0))
	r.seeFloor(0)
	r.write(record.Write{Key: "none", Mark: 99}) // there is nothing to delete
	r.write(record.Write{Key: "c"})
	r.seeFloor(0)
	r.write(record.Write{Key: "a"})
	r.seeFloor(5)
	r.write(record.Write{Key: "b", Mark: 12})
	r.seeFloor(12)
	r.write(marked("a", 8))
	r.write(record.Write{Key: "a"})
	r.seeFloor(12)
	r.store = r.open()
	r.seeFloor(12)
	idle := marked("idle", 20)
	idle.TermMS, idle.KeepMS = time.Minute.Milliseconds(), time.Minute.Milliseconds()
	r.write(idle)
	r.expire(time.Minute, "idle")
	r.see("idle", "1!")
	r.seeFloor(12)
	if r.target.Advance != nil {
		r.target.Advance(time.Minute)
		r.sweep()
		r.see("idle", "-")
		r.seeFloor(20)
	}
}
