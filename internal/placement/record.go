package placement

import (
	"fmt"
)

// Put is what a store does with a Store command: next is what to keep instead of
// stored, whose version is 0 where there is none.
//
// Errors: ErrStale: nothing is changed.
func Put(stored, record Record) (next Record, err error) {
	again := stored.Version == record.Version && stored.Token == record.Token && stored.Owner == record.Owner
	if !again && (stored.Version >= record.Version || stored.Token >= record.Token) {
		return stored, fmt.Errorf("%w: version %d with token %d is stored, version %d with token %d came", ErrStale,
			stored.Version, stored.Token, record.Version, record.Token)
	}
	if again && record.PID == "" {
		record.PID = stored.PID // it comes late, after the one that knew the process
	}
	return record, nil
}

// Drop is what a store does with a Remove command.
func Drop(stored, record Record, keep bool) (next Record) {
	newer := stored.Version > record.Version || stored.Token > record.Token
	if newer || stored.Version == record.Version && stored.Owner != record.Owner {
		return stored
	}
	next = Record{Version: record.Version, Token: record.Token, Snapshot: record.Snapshot, ObservedMS: record.ObservedMS}
	if keep {
		next.Snapshot = stored.Snapshot
	}
	return next
}
