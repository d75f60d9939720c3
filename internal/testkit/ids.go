package testkit

import (
	"slices"

	"github.com/kazahana/kazahana/internal/snowflake"
)

func Ascending(ids []uint64) bool {
	for i := 1; i < len(ids); i++ {
		if ids[i] <= ids[i-1] {
			return false
		}
	}
	return true
}

// Duplicates sorts the IDs and counts repeated ones.
func Duplicates(ids []uint64) (n int, first uint64) {
	slices.Sort(ids)
	for i := 1; i < len(ids); i++ {
		if ids[i] == ids[i-1] {
			if n == 0 {
				first = ids[i]
			}
			n++
		}
	}
	return n, first
}

// IsFallback reads the bit that tells the kinds apart, for IDs on the default
// timeline.
func IsFallback(id uint64) bool { return snowflake.DefaultTimeline().IsFallback(snowflake.ID(id)) }

// UnixMS is the time that an ID on the default timeline embeds.
func UnixMS(id snowflake.ID) int64 { return snowflake.DefaultTimeline().UnixMS(id) }
