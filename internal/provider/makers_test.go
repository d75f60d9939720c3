package provider

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
)

func TestLookBack(t *testing.T) {
	const minute = 60_000
	held := Record{Lease: lease.Lease{ID: 1, Created: 100 * minute, Expired: 110 * minute}, End: 120 * minute}
	back := Record{Lease: lease.Lease{ID: 2, Created: 100 * minute, Expired: 110 * minute}, End: 105 * minute, Released: true}
	for name, test := range map[string]struct {
		record Record
		at     int64
		steps  int
		want   int
	}{
		"within":              {held, 105 * minute, 3, 1},
		"a term later":        {held, 120*minute - 1, 3, 1},
		"further than it may": {held, 140 * minute, 3, 0},
		"further":             {held, 140 * minute, 7, 1},
		"before":              {held, 99 * minute, 3, 0},
		"handed back":         {back, 112 * minute, 3, 0},
		"handed back later":   {back, 103 * minute, 3, 1},
	} {
		var asked []int64
		found, err := lookBack(test.at, 10*time.Minute, test.steps, func(atMS int64) ([]Record, error) {
			asked = append(asked, atMS)
			if test.record.Lease.Created <= atMS && atMS < min(test.record.Lease.Expired, test.record.End) {
				return []Record{test.record}, nil
			}
			return nil, nil
		})
		if err != nil || len(found) != test.want || len(asked) > test.steps+1 || !slices.IsSortedFunc(asked, func(a, b int64) int { return int(b - a) }) {
			t.Errorf("%s: %v, %v; asked %v", name, found, err, asked)
		}
	}
	bad := errors.New("gone")
	if _, err := lookBack(0, time.Nanosecond, 5, func(int64) ([]Record, error) { return nil, bad }); !errors.Is(err, bad) {
		t.Error(err)
	}
}
