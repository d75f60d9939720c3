package memory

import (
	"context"
	"strconv"

	"github.com/kazahana/kazahana/internal/record"
)

// fence is a store's knowledge of grants, and the rules that follow when it is fenced. Times are
// Unix ms.
type fence struct {
	lives           int   // how often something may have been lost
	unnoticed       bool  // all was, and no call has used it since
	longestMS       int64 // the longest GrantMS of the areas that have used it
	latestMS        int64 // when all ends that was granted
	fromMS, untilMS int64 // 0: there is no fence
}

// Forget empties the store, as if an empty backup had been put back. The next caller notices
// that, and finds the store fenced.
func (s *Store) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records, s.size = map[string]entry{}, 0
	s.fence.lives, s.fence.unnoticed = s.fence.lives+1, true
	s.floor = max(s.floor, s.nowMS()*1000)
}

// Fence implements record.Store.
func (s *Store) Fence(ctx context.Context) error {
	if err := s.begin(ctx, nil); err != nil {
		return err
	}
	defer s.mu.Unlock()
	fromMS := max(s.nowMS(), s.lastMS)
	s.fence.lives++
	s.fence.hold(fromMS)
	s.floor = max(s.floor, fromMS*1000)
	return nil
}

// hold fences the store for longer than anything lasts that may be missing.
func (f *fence) hold(fromMS int64) {
	f.fromMS, f.unnoticed = fromMS, false
	f.untilMS = max(fromMS+f.longestMS, f.latestMS)
}

// admit notes how long a caller's grants last: earlier ones may be missing.
func (f *fence) admit(nowMS, lastMS int64, area record.Area) {
	f.longestMS = max(f.longestMS, area.Longest())
	if f.unnoticed {
		f.hold(max(nowMS, lastMS))
	}
	if f.fromMS > 0 {
		f.untilMS = max(f.untilMS, f.fromMS+f.longestMS)
	}
}

// granted notes when something ends that is granted.
func (f *fence) granted(endMS int64) { f.latestMS = max(f.latestMS, endMS) }

func (f *fence) shown() record.Fence {
	if f.fromMS == 0 {
		return record.Fence{}
	}
	return record.Fence{Doubt: true, FromMS: f.fromMS, UntilMS: f.untilMS, Reason: "the store may have forgotten something"}
}

// life is "" as long as nothing was lost.
func (f *fence) life() string {
	if f.lives == 0 {
		return ""
	}
	return strconv.Itoa(f.lives)
}
