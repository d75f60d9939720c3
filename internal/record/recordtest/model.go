package recordtest

import (
	"fmt"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/record"
)

// naive is a record store as one would write it without thinking of speed.
type naive struct {
	now     time.Duration
	records map[string]naiveRecord
	floor   int64
}

type naiveRecord struct {
	record.Write
	ends, due time.Duration // 0: never
}

func (n *naive) apply(writes []record.Write) {
	for _, w := range writes {
		if w.Value == nil {
			n.remove(w.Key, w.Mark)
			continue
		}
		kept := naiveRecord{Write: w}
		if w.TermMS > 0 {
			kept.ends = n.now + time.Duration(w.TermMS)*time.Millisecond
		}
		if w.TermMS+w.KeepMS > 0 {
			kept.due = n.now + time.Duration(w.TermMS+w.KeepMS)*time.Millisecond
		}
		n.records[w.Key] = kept
	}
}

func (n *naive) remove(key string, mark int64) {
	if before, ok := n.records[key]; ok {
		n.floor = max(n.floor, before.Mark, mark)
		delete(n.records, key)
	}
}

// show returns the right view, as text. A due record may be gone: seen says which of them there
// still were.
func (n *naive) show(ask record.Ask, seen record.View) string {
	var b strings.Builder
	for key, kept := range n.records {
		if _, there := seen.Records[key]; kept.due > 0 && n.now >= kept.due && !there {
			n.remove(key, 0)
		}
	}
	for _, key := range ask.Keys {
		kept, ok := n.records[key]
		switch {
		case !ok:
			fmt.Fprintf(&b, "%s -\n", key)
		case kept.ends > 0 && n.now >= kept.ends:
			fmt.Fprintf(&b, "%s %s!\n", key, kept.Value)
		default:
			fmt.Fprintf(&b, "%s %s\n", key, kept.Value)
		}
	}
	fmt.Fprintln(&b, "floor", n.floor)
	return b.String()
}

// showView is a view as text, with the floor above base.
func showView(ask record.Ask, v record.View, base int64) string {
	var b strings.Builder
	for _, key := range ask.Keys {
		fmt.Fprintf(&b, "%s %s\n", key, shown(v, key))
	}
	fmt.Fprintln(&b, "floor", v.Floor-base)
	return b.String()
}

// model compares the store with the naive one, over two clients of it. Every change
// asks for all keys, so that each rule is shown the whole state.
func model(r *rig) {
	stores := []record.Store{r.store, r.open()}
	run := 0
	rapid.Check(r.T, func(t *rapid.T) {
		run++
		base := r.read(record.Ask{}).Floor
		n := &naive{now: 1, records: map[string]naiveRecord{}, floor: base}
		var ask record.Ask
		for _, name := range []string{"x", "y", "z"} {
			ask.Keys = append(ask.Keys, fmt.Sprintf("%d/%s", run, name))
		}
		for range rapid.IntRange(1, 25).Draw(t, "changes") {
			n.pass(t, r)
			var writes []record.Write
			for _, key := range ask.Keys {
				if rapid.IntRange(0, 2).Draw(t, "touch") == 0 {
					writes = append(writes, drawWrite(t, key, base, r.target.Advance != nil))
				}
			}
			var last record.View
			if _, err := rapid.SampledFrom(stores).Draw(t, "store").Change(r.context(), ask, func(v record.View) ([]record.Write, error) {
				last = v
				return writes, nil
			}); err != nil {
				t.Fatal(err)
			}
			// A rule that writes may run on an old view, but the last run is on the present one.
			if got, want := showView(ask, last, 0), n.show(ask, last); got != want {
				t.Fatalf("the rule was shown\n%swant\n%s", got, want)
			}
			n.apply(writes)
		}
		for _, key := range ask.Keys {
			r.write(record.Write{Key: key}) // so that none raises the floor of the next run
		}
	})
}

// pass lets time pass now and then.
func (n *naive) pass(t *rapid.T, r *rig) {
	if rapid.IntRange(0, 3).Draw(t, "time") > 0 {
		return
	}
	if r.target.Advance != nil {
		d := time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond
		r.target.Advance(d)
		n.now += d
		return
	}
	for key, kept := range n.records {
		if n.now >= kept.ends {
			continue
		}
		r.target.Expire(key)
		kept.ends = n.now
		if kept.KeepMS == 0 {
			kept.due = n.now
		}
		n.records[key] = kept
	}
}

func drawWrite(t *rapid.T, key string, base int64, clock bool) record.Write {
	w := record.Write{Key: key}
	w.Mark = rapid.SampledFrom([]int64{0, 0, base + 1, base + 2, base + 3}).Draw(t, "mark")
	if rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
		return w
	}
	// Where the clock cannot be set, none of these times passes by itself.
	ms := rapid.Int64Range(1, 4000)
	if !clock {
		ms = rapid.Int64Range(1_000_000, 4_000_000)
	}
	w.Value = []byte(rapid.StringMatching(`[a-z]{0,4}`).Draw(t, "value"))
	if rapid.Bool().Draw(t, "with a term") {
		w.TermMS = ms.Draw(t, "term")
	}
	if rapid.Bool().Draw(t, "kept") {
		w.KeepMS = ms.Draw(t, "keep")
	}
	return w
}
