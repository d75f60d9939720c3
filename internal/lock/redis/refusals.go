package redis

import (
	"fmt"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/lock"
)

// answer is the error for what a script answers instead of "ok".
func (s *Store) answer(word string, reply *redisconn.Reply, r lock.Request) error {
	var err error
	switch word {
	case "held":
		held := &lock.HeldError{Key: r.Key, Owner: reply.Text(), Token: reply.Number(), ExpiresMS: reply.Number()}
		held.RemainingMS = held.ExpiresMS - reply.Number()
		held.RequestID = reply.Text()
		err = held
	case "fenced":
		fenced := &lock.FencedError{UntilMS: reply.Number()}
		fenced.RemainingMS = fenced.UntilMS - reply.Number()
		fenced.Reason = fenceReason(reply.Text())
		err = fenced
	case "usedup":
		err = fmt.Errorf("%w: key %q is at %d", lock.ErrTokensUsedUp, r.Key, reply.Number())
	case "reused":
		err = reused(reply)
	case "notowned":
		err = fmt.Errorf("%w: %s", lock.ErrNotOwned, notOwned[reply.Text()])
	case "expired":
		err = lock.ErrExpired
		if reply.Text() == "renewed" {
			err = fmt.Errorf("%w: since it was renewed by this request", err)
		}
	default:
		return s.refusal(word, reply)
	}
	if reply.Err() != nil {
		return reply.Err()
	}
	return redisconn.Answer(err)
}

var notOwned = map[string]string{
	"none":     "nobody holds the lock",
	"owner":    "the latest lease is another owner's",
	"lease":    "the latest lease is another one",
	"released": "it was released",
	"renewed":  "the lease that this request renewed has ended",
}

func reused(reply *redisconn.Reply) error {
	if reply.Text() == "ended" {
		return fmt.Errorf("%w: the lease that it was granted has ended", lock.ErrRequestReused)
	}
	return fmt.Errorf("%w: it stands for the %s by %q", lock.ErrRequestReused, reply.Text(), reply.Text())
}

func fenceReason(code string) string {
	if code == "missing" {
		return "the Redis server had no record of locks: it is new, or it has lost its data and with it who holds which lock; " +
			"where it is new, say so with: kazahanad leases init"
	}
	return "the Redis server was restarted, or another one has taken its place, and it may have lost the latest locks; " +
		"where nothing was lost, say so with: kazahanad leases init"
}

// refusal is the error for an answer that no operation knows.
func (s *Store) refusal(word string, reply *redisconn.Reply) error {
	if word == "format" {
		return redisconn.FormatError(s.storeKey(), reply.Text())
	}
	return s.client.Refusal(word, reply)
}
