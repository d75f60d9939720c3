package etcd

import (
	"context"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// Records that are due are looked for as new ones are made: twice as many looks as
// records are made, so that the due ones shrink.
const (
	sweepEvery = 16 // records made
	sweepLooks = 32 // records looked at
	// sweepTime is how long one look may take.
	sweepTime = 30 * time.Second
)

// due reports whether the record may be deleted. How long it is kept after its term is
// counted by the clocks of hosts: a clock that is ahead costs the record's memory,
// and nothing that the floor does not know.
func (k known) due(nowMS int64) bool {
	return k.TermMS+k.KeepMS > 0 && (k.over() || k.TermMS == 0) && nowMS >= k.AtMS+k.TermMS+k.KeepMS
}

// made counts a new record, and looks for some that are due, in the background.
func (s *Store) made() {
	if s.created.Add(1)%sweepEvery != 0 || !s.begin() {
		return
	}
	go func() {
		defer s.tasks.Done()
		ctx, cancel := context.WithTimeout(s.lifetime, sweepTime)
		defer cancel()
		_, _ = s.sweep(ctx) // the next sweep does the rest
	}()
}

// sweep deletes the records that are due among the next ones, and reports whether it
// came to the end, where the next one begins anew.
func (s *Store) sweep(ctx context.Context) (end bool, err error) {
	if !s.sweeping.TryLock() {
		return true, nil
	}
	defer s.sweeping.Unlock()
	all, err := s.page(ctx, s.sweepFrom, "", sweepLooks)
	if err != nil {
		return false, err
	}
	looks := 0
	for k, err := range all {
		if err == nil && k.due(s.nowMS()) { // a damaged one stays, for people
			if err := s.remove(ctx, k.key); err != nil {
				return false, err
			}
		}
		s.sweepFrom = k.key + "\x00"
		looks++
	}
	if looks < sweepLooks {
		s.sweepFrom = ""
	}
	return s.sweepFrom == "", nil
}

// remove deletes a record if it is still due.
func (s *Store) remove(ctx context.Context, key string) error {
	c := s.newChange(record.Ask{Keys: []string{key}}, nil)
	c.rule = func(record.View) ([]record.Write, error) {
		if c.seen.records[0].due(s.nowMS()) {
			return []record.Write{{Key: key}}, nil
		}
		return nil, nil
	}
	_, err := c.carryOut(ctx)
	return err
}
