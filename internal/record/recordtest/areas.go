package recordtest

import (
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// beside is the area Two, in the same place.
func (r *rig) beside() *rig {
	r.Helper()
	return newRig(r.T, r.target, Two)
}

func (r *rig) seeList(want ...string) {
	r.Helper()
	page, err := r.store.List(r.context(), "a/", "", record.MaxPage)
	must.Succeed(r, err)
	var got []string
	for _, h := range page {
		got = append(got, h.Key+" "+string(h.Value))
	}
	if !slices.Equal(got, want) {
		r.Errorf("the area %s lists %q, want %q", r.area.Name, got, want)
	}
}

// apart: a change of a key in one area changes none in another one.
func apart(r *rig) {
	two := r.beside()
	r.write(text("a/1", "one"))
	two.see("a/1", "-")
	two.write(text("a/1", "two"), text("a/2", "two"), record.Write{Key: "a/3", Value: []byte("two"), Mark: two.base + 7})
	r.see("a/1", "one")
	r.see("a/2", "-")
	r.seeList("a/1 one")
	r.write(record.Write{Key: "a/1"})
	two.see("a/1", "two")
	two.seeList("a/1 two", "a/2 two", "a/3 two")
	two.write(record.Write{Key: "a/3"})
	two.seeFloor(7)
	r.seeFloor(0)
	if r.target.Advance == nil {
		return
	}
	for _, one := range []*rig{r, two} {
		w := termed("a/due", one.area.Name, time.Minute)
		w.Mark = one.base + 9
		one.write(w)
	}
	r.target.Advance(time.Minute + time.Hour)
	r.sweepAway("a/due")
	r.seeFloor(9)
	two.see("a/due", "two!")
	two.seeFloor(7)
	two.sweepAway("a/due")
	two.seeFloor(9)
}

// watched: the tokens of one area's watch are not those of another's. A store may give a token
// for nothing, but not one each second.
func watched(r *rig) {
	const writes = 50
	two := r.beside()
	ours, err := r.open().Watch(r.context(), "w/")
	if errors.Is(err, errors.ErrUnsupported) {
		r.Skip("it cannot tell")
	}
	must.Succeed(r, err)
	theirs, err := two.open().Watch(two.context(), "w/")
	must.Succeed(r, err)
	began := time.Now()
	var told atomic.Int64
	last := make(chan struct{})
	go func() {
		for range theirs {
			if told.Add(1) == 1 {
				close(last)
			}
		}
	}()
	await := func(tokens <-chan struct{}) {
		r.Helper()
		select {
		case <-tokens:
		case <-time.After(callTime):
			r.Fatal("there is no token")
		}
	}
	for i := range writes {
		r.write(record.Write{Key: "w/a", Value: strconv.AppendInt(nil, int64(i), 10), Tell: true})
		await(ours)
	}
	two.write(record.Write{Key: "w/a", Value: []byte("two"), Tell: true})
	await(last)
	if most := 2 + int64(time.Since(began)/time.Second); told.Load() > most {
		r.Errorf("one change and %d in another area have %d tokens, want %d at most", writes, told.Load(), most)
	}
}

func granted(value string, d time.Duration) record.Write {
	return record.Write{Key: "granted", Value: []byte(value), GrantMS: d.Milliseconds()}
}

// fence has an operator say that the area may have forgotten something, and returns its view then.
func (r *rig) fence() record.View {
	r.Helper()
	must.Succeed(r, r.store.Fence(r.context()))
	v := r.read(record.Ask{})
	if !v.Fence.Doubt || v.Fence.UntilMS < v.Fence.FromMS || v.Floor < v.Fence.FromMS*1000 {
		r.Errorf("the area %s may have forgotten something, and says %+v with the floor %d", r.area.Name, v.Fence, v.Floor)
	}
	return v
}

// lasts is how long the fence does.
func lasts(v record.View) time.Duration {
	return time.Duration(v.Fence.UntilMS-v.Fence.FromMS) * time.Millisecond
}

// same checks that the area is as it was.
func (r *rig) same(before record.View) {
	r.Helper()
	if v := r.read(record.Ask{}); v.Life != before.Life || v.Floor != before.Floor || v.Fence != before.Fence {
		r.Errorf("the area %s has the life %s, the floor %d, the fence %+v; before, %s, %d, %+v",
			r.area.Name, v.Life, v.Floor, v.Fence, before.Life, before.Floor, before.Fence)
	}
}

// fences: an area that may have forgotten something holds back nothing in another one, and
// Init ends the fence of one.
func fences(r *rig) {
	one, two := r, r.beside()
	one.write(granted("one", 12*time.Hour))
	two.write(granted("two", time.Minute))
	oneBefore, twoBefore := one.read(record.Ask{}), two.read(record.Ask{})
	held := two.fence()
	if held.Life == twoBefore.Life || lasts(held) < time.Minute || lasts(held) > time.Hour {
		two.Errorf("after %+v the fence is %+v, want one of a minute to an hour", twoBefore, held)
	}
	one.same(oneBefore)
	heldToo := one.fence()
	if lasts(heldToo) < 12*time.Hour {
		one.Errorf("the fence is %+v, want one of half a day at least", heldToo.Fence)
	}
	two.same(held)
	must.Succeed(r, one.store.Init(r.context()))
	if v := one.read(record.Ask{}); v.Fence != (record.Fence{}) || v.Life != heldToo.Life || v.Floor < heldToo.Floor {
		one.Errorf("after Init the life is %s with %+v and the floor %d, before %s with %d", v.Life, v.Fence, v.Floor, heldToo.Life, heldToo.Floor)
	}
	two.see("granted", "two")
	if v := two.read(record.Ask{}); v.Fence != held.Fence || v.Life != held.Life {
		two.Errorf("after Init of another area the fence is %+v, want %+v", v.Fence, held.Fence)
	}
}

// longest: no write grants for longer than the area's longest, and a fence lasts for so long where
// nothing is known, else at least as long as the longest grant of any process.
func longest(r *rig) {
	for _, one := range []*rig{r, r.beside()} {
		most := time.Duration(one.area.MaxGrantMS) * time.Millisecond
		if v := one.fence(); lasts(v) != most {
			one.Errorf("where nothing was granted the fence of the area %s is %+v, want one of %v", one.area.Name, v.Fence, most)
		}
		must.Succeed(r, one.store.Init(r.context()))
		one.write(granted("short", time.Minute))
		other := *one
		other.store = one.open()
		other.write(granted("long", most))
		_, err := one.store.Change(r.context(), record.Ask{Keys: []string{"granted"}}, func(record.View) ([]record.Write, error) {
			return []record.Write{granted("longer", most+time.Millisecond)}, nil
		})
		if !errors.Is(err, record.ErrInvalid) {
			one.Errorf("a grant that is longer than the longest of the area %s has the error %v, want ErrInvalid", one.area.Name, err)
		}
		one.see("granted", "long")
		idle := granted("idle", 0)
		idle.TermMS = record.MaxTermMS // no holder relies on it
		one.write(idle)
		if v := one.fence(); lasts(v) < most || lasts(v) > 2*most {
			one.Errorf("the fence of the area %s is %+v, want one of %v", one.area.Name, v.Fence, most)
		}
	}
}
