package recordtest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// concurrent: callers of several clients count in two records, both of which each change moves on.
// Nothing is lost, no caller starves, the two never differ, and what the last run of a rule decides is
// carried out.
func concurrent(r *rig) {
	const clients, callers, calls = 3, 4, 25
	ask := record.Ask{Keys: []string{"n", "twin"}}
	var mu sync.Mutex
	seen := map[int]bool{}
	var all sync.WaitGroup
	for range clients {
		store := r.open()
		for range callers {
			all.Go(func() {
				last := 0
				for range calls {
					var got int
					_, err := store.Change(r.context(), ask, func(v record.View) ([]record.Write, error) {
						n, _ := strconv.Atoi(string(v.Records["n"].Value))
						twin, _ := strconv.Atoi(string(v.Records["twin"].Value))
						if got = n + 1; n != twin {
							return nil, fmt.Errorf("one is %d, its twin %d", n, twin)
						}
						value := strconv.Itoa(got)
						return []record.Write{text("n", value), text("twin", value)}, nil
					})
					mu.Lock()
					twice := seen[got]
					seen[got] = true
					mu.Unlock()
					if err != nil || got <= last || twice {
						r.Errorf("%d after %d, by another caller too: %v (%v)", got, last, twice, err)
						return
					}
					last = got
				}
			})
		}
	}
	all.Wait()
	r.see("n", strconv.Itoa(clients*callers*calls))
}

// tokens: a number that survives its record. Some callers take tokens, others delete
// the record; no token comes twice, and each caller's ascend.
func tokens(r *rig) {
	const clients, calls = 4, 40
	ask := record.Ask{Keys: []string{"lock"}}
	var mu sync.Mutex
	var seen []int64
	var all sync.WaitGroup
	for c := range clients {
		store := r.open()
		all.Go(func() {
			for i := range calls {
				var token int64
				_, err := store.Change(r.context(), ask, func(v record.View) ([]record.Write, error) {
					token = v.Floor + 1
					if found, ok := v.Records["lock"]; ok {
						n, err := strconv.ParseInt(string(found.Value), 10, 64)
						if token = n + 1; err != nil {
							return nil, err
						}
					}
					if (c+i)%3 == 0 {
						token--
						return []record.Write{{Key: "lock"}}, nil
					}
					return []record.Write{{Key: "lock", Value: strconv.AppendInt(nil, token, 10), Mark: token}}, nil
				})
				if err != nil {
					r.Errorf("token %d: %v", token, err)
					return
				}
				if (c+i)%3 != 0 {
					mu.Lock()
					seen = append(seen, token)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	slices.Sort(seen)
	if twice := len(seen) - len(slices.Compact(slices.Clone(seen))); twice > 0 {
		r.Errorf("%d of %d tokens came twice: %v", twice, len(seen), seen)
	}
}

// interfered runs a rule that writes, and has another client change something after the
// rule's first run on the present. It returns the rule's view of each run from then on,
// as text.
func (r *rig) interfered(ask record.Ask, writes []record.Write, meanwhile func()) (runs []string) {
	r.Helper()
	present := showView(ask, r.read(ask), r.base)
	if _, err := r.store.Change(r.context(), ask, func(v record.View) ([]record.Write, error) {
		seen := showView(ask, v, r.base)
		if len(runs) == 0 && seen != present {
			return nil, nil // an old view, as it turns out
		}
		if runs = append(runs, seen); len(runs) == 1 {
			meanwhile()
		}
		return writes, nil
	}); err != nil {
		r.Errorf("%v", err)
	}
	return runs
}

// between: the rule's view is compared at the commit, all of it.
func between(r *rig) {
	if !r.target.Between {
		r.Skip("its rules run under its lock")
	}
	other := &rig{T: r.T, target: r.target, area: r.area, store: r.open(), base: r.base}
	hour := time.Hour.Milliseconds()
	for _, c := range []struct {
		name      string
		before    []record.Write
		ask       record.Ask
		meanwhile func()
		want      string // the view of the last run
		deletes   bool   // instead of writing
	}{
		{"the version", []record.Write{text("a", "1")}, record.Ask{Keys: []string{"a"}},
			func() { other.write(text("a", "2")) }, "a 2\nfloor 0\n", false},
		{"the version of a record that is only read", []record.Write{text("b", "1")}, record.Ask{Keys: []string{"holder", "b"}},
			func() { other.write(text("b", "2")) }, "holder -\nb 2\nfloor 0\n", false},
		{"the same value written again", []record.Write{termed("c", "1", time.Hour)}, record.Ask{Keys: []string{"holder", "c"}},
			func() { other.write(text("c", "1")) }, "holder -\nc 1\nfloor 0\n", false},
		{"a new record", nil, record.Ask{Keys: []string{"new"}},
			func() { other.write(text("new", "1")) }, "new 1\nfloor 0\n", false},
		{"a deletion", []record.Write{text("d", "1")}, record.Ask{Keys: []string{"holder", "d"}},
			func() { other.write(record.Write{Key: "d"}) }, "holder -\nd -\nfloor 0\n", false},
		{"the end of a term", []record.Write{termed("t", "1", time.Hour)}, record.Ask{Keys: []string{"holder", "t"}},
			func() { r.expire(time.Hour, "t") }, "holder -\nt 1!\nfloor 0\n", false},
		{"a term that begins", []record.Write{termed("u", "1", time.Hour)}, record.Ask{Keys: []string{"u"}},
			func() { r.expire(time.Hour, "u"); other.write(termed("u", "1", time.Hour)) }, "u 1\nfloor 0\n", false},
		{"the floor", []record.Write{{Key: "f", Value: []byte("1"), Mark: r.base + 7}}, record.Ask{Keys: []string{"absent"}},
			func() { other.write(record.Write{Key: "f"}) }, "absent -\nfloor 7\n", false},
		{"the floor that a deletion raises", []record.Write{{Key: "g", Value: []byte("1"), Mark: r.base + 8}, {Key: "h", Value: []byte("1"), Mark: r.base + 9}},
			record.Ask{Keys: []string{"g"}}, func() { other.write(record.Write{Key: "h"}) }, "g 1\nfloor 9\n", true},
	} {
		if c.before != nil {
			other.write(c.before...)
		}
		last := record.Write{Key: c.ask.Keys[0], Value: []byte("by the rule"), KeepMS: hour}
		if c.deletes {
			last = record.Write{Key: c.ask.Keys[0]}
		}
		runs := r.interfered(c.ask, []record.Write{last}, c.meanwhile)
		if len(runs) < 2 || runs[len(runs)-1] != c.want {
			r.Errorf("%s: the rule was shown %q, want %q at last", c.name, runs, c.want)
		}
		other.write(record.Write{Key: c.ask.Keys[0]})
	}
	// A record outside of the ask is not compared.
	if runs := r.interfered(record.Ask{Keys: []string{"holder"}}, []record.Write{text("holder", "")}, func() { other.write(text("beside", "1")) }); len(runs) != 1 {
		r.Errorf("a change of another record was compared: %q", runs)
	}
}

// confirmed: a refusal, and a rule without writes, is of the present, also where a client knows
// an older state.
func confirmed(r *rig) {
	ask := record.Ask{Keys: []string{"a"}}
	other := &rig{T: r.T, target: r.target, area: r.area, store: r.open(), base: r.base}
	for round := range 3 {
		old, now := fmt.Sprint("old", round), fmt.Sprint("new", round)
		r.write(text("a", old))
		other.write(text("a", now))
		for _, refusal := range []error{nil, errRule} {
			var last string
			_, err := r.store.Change(r.context(), ask, func(v record.View) ([]record.Write, error) {
				last = shown(v, "a")
				return nil, refusal
			})
			if err != refusal || last != now {
				r.Errorf("the rule was shown %q at last (%v), want %q", last, err, now)
			}
		}
		other.write(record.Write{Key: "a"})
		if _, err := r.store.Change(context.Background(), ask, func(v record.View) ([]record.Write, error) {
			if shown(v, "a") != "-" {
				return nil, errRule
			}
			return []record.Write{text("a", "")}, nil
		}); err != nil {
			r.Errorf("a deletion by another was not seen: %v", err)
		}
	}
}
