package providertest

import (
	"fmt"

	"github.com/kazahana/kazahana/internal/provider/pool"
)

// CheckLine compares a line that a store keeps with what its records say.
func CheckLine(whole pool.Segment, segments []pool.Segment, marks []pool.Mark) error {
	next := whole.Low
	for _, s := range segments {
		if s.Low != next || s.End <= s.Low {
			return fmt.Errorf("the segment %+v does not follow %d", s, next-1)
		}
		next = s.End
		// No slot begins or ends within a segment but those that others were
		// granted over, so its ends stand for all of it.
		for _, low := range []int64{s.Low, s.End - 1} {
			var end int64
			for _, m := range marks {
				if slot := m.Slot(); slot.Start <= low && low < slot.End {
					end = max(end, m.End)
				}
			}
			if end != s.FreeAt {
				return fmt.Errorf("the segment %+v: %d is free at %d by the records", s, low, end)
			}
		}
	}
	if next != whole.End {
		return fmt.Errorf("the line ends at %d", next-1)
	}
	return nil
}
