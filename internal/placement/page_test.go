package placement

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Keys are ordered as their names are, and pages of any size give all of them, once.
func TestPagesGiveAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching("[a!/~]{1,3}")
		c := NewCore("a:1", nil)
		for _, text := range rapid.SliceOf(name).Draw(t, "keys") {
			kind, identity, _ := strings.Cut(text, "/")
			key := Key{kind, identity}
			if key == (Key{}) {
				continue
			}
			c.entries[key] = &entry{key: key}
		}
		limit := rapid.IntRange(1, 4).Draw(t, "limit")
		var got []string
		for after := (Key{}); ; {
			page := c.Page(after, limit, Moment{}).Activations
			for _, a := range page {
				got = append(got, a.Key.String())
			}
			if len(page) > limit {
				t.Fatalf("%d on a page of %d", len(page), limit)
			}
			if len(page) < limit {
				break
			}
			after = page[len(page)-1].Key
		}
		var want []string
		for key := range c.entries {
			want = append(want, key.String())
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("pages of %d give %v, want %v", limit, got, want)
		}
		if n := len(c.Page(Key{}, 0, Moment{}).Activations); n != 0 {
			t.Fatalf("a page of none has %d", n)
		}
	})
}
