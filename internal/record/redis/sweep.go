package redis

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/turns"
)

const (
	// sweepEvery is how many changes of this process there are to a sweep, which deletes
	// all that is due: as much as they made, on average.
	sweepEvery = 64
	// sweepTime is how long one sweep may take.
	sweepTime = 30 * time.Second
	// putOff is how much later the sweep looks again at a record that cannot be read.
	putOff = time.Hour
)

// sweepNow looks for records that are due, in the background, now and then.
func (s *Store) sweepNow() {
	if s.commits.Add(1)%sweepEvery != 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.sweeping {
		return
	}
	s.sweeping = true
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.lifetime, sweepTime)
		defer cancel()
		for more := true; more; {
			var err error
			if more, err = s.sweep(ctx); err != nil {
				break // the next sweep does the rest
			}
		}
		s.mu.Lock()
		s.sweeping = false
		s.mu.Unlock()
	})
}

// sweep deletes some of the records that are due, and reports whether there were as many
// as it looks at.
func (s *Store) sweep(ctx context.Context) (more bool, err error) {
	keys, err := redisconn.RunAnywhere(ctx, s.client, redisconn.Repeatable, func(ctx context.Context, conn redis.Cmdable) ([]string, error) {
		return conn.ZRangeArgs(ctx, redis.ZRangeArgs{Key: s.dueKey(), Start: "-inf", Stop: s.estimate(), ByScore: true, Count: record.MaxWrites}).Result()
	})
	if err != nil || len(keys) == 0 {
		return false, err
	}
	done, err := s.sweepKeys(ctx, keys)
	if isDamage(err) { // the others are not held up by it
		done, err = true, nil
		for i := 0; err == nil && i < len(keys); i++ {
			if _, err = s.sweepKeys(ctx, keys[i:i+1]); isDamage(err) {
				err = s.putOff(ctx, keys[i])
			}
		}
	}
	return err == nil && (!done || len(keys) == record.MaxWrites), err
}

// isDamage reports whether the error comes from a record that cannot be read.
func isDamage(err error) bool {
	return errors.Is(err, errDamaged) || redis.HasErrorPrefix(err, "WRONGTYPE")
}

// putOff lets the sweep meet the record later. Someone may mend it, so its entry stays.
func (s *Store) putOff(ctx context.Context, key string) error {
	_, err := redisconn.RunAnywhere(ctx, s.client, redisconn.Repeatable, func(ctx context.Context, conn redis.Cmdable) (int64, error) {
		return conn.ZAdd(ctx, s.dueKey(), redis.Z{Score: float64(s.estimate() + putOff.Milliseconds()), Member: key}).Result()
	})
	return err
}

// sweepKeys deletes those of the records that are due.
func (s *Store) sweepKeys(ctx context.Context, keys []string) (done bool, err error) {
	held, err := s.turns.Take(ctx, keys)
	if err != nil {
		return false, err
	}
	defer held.Give()
	for _, key := range keys {
		held.Forget(key)
	}
	c := s.newChange(record.Ask{Keys: keys})
	c.seen = make([]known, len(keys))
	if err := c.look(ctx); err != nil {
		return false, err
	}
	_, outcome, err := c.Commit(ctx, c.overdue())
	return outcome == turns.Done, err
}

// overdue deletes the records that are due, and sets right the entries of records that are not
// due, or not there.
func (c *change) overdue() (writes []record.Write) {
	for i, key := range c.ask.Keys {
		switch k := c.seen[i]; {
		case k.absent(): // it was removed by hand
			c.extra = append(c.extra, []any{"ZREM", c.dueKey(), key}, []any{"ZREM", c.listKey(), key})
		case !k.timed, c.expires(k):
			c.extra = append(c.extra, []any{"ZREM", c.dueKey(), key})
		case k.dueMS() <= c.nowMS:
			writes = append(writes, record.Write{Key: key})
		default:
			c.extra = append(c.extra, []any{"ZADD", c.dueKey(), k.dueMS(), key})
		}
	}
	return writes
}
