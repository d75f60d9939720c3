package placement

import (
	"fmt"
)

// Put is a store's rule for a Store command: next is the record to keep instead of stored, which
// has version 0 where there is none.
//
// Errors: ErrStale: nothing is changed.
func Put(stored, record Record) (next Record, err error) {
	again := stored.Version == record.Version && stored.Token == record.Token && stored.Owner == record.Owner
	if !again && (stored.Version >= record.Version || stored.Token >= record.Token) {
		return stored, fmt.Errorf("%w: version %d with token %d is stored, version %d with token %d came", ErrStale,
			stored.Version, stored.Token, record.Version, record.Token)
	}
	if again && record.PID == "" {
		record.PID = stored.PID // it comes late, after the record that knew the process
	}
	return record, nil
}

// Drop is a store's rule for a Remove command.
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
