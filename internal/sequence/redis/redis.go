// Package redis keeps sequences on a Redis server, for all hosts that use it.
//
// # What is promised
//
// A call is one Lua script by Redis's own clock. It is answered when
// min_replicas have confirmed it; one that they do not confirm fails, with its
// values taken, and gets them when it is repeated with its request ID.
//
// # A store that may forget
//
// Redis acknowledges a write before it is on a disk or a replica. After a
// restart or a failover the last values that were handed out may be unknown to
// it, and the next ones would be handed out twice. Nothing tells how many they
// were, so no jump ahead is certain, and no time that passes helps. The store's
// record therefore names the server's incarnation (see package redisconn). Where
// it has changed, or there is no record, a key that was not used since, or is
// not there, is refused with a FencedError, until
//
//   - an operator declares the key's last value (Declare), or that nothing was
//     lost (Init), for example because the server is new;
//   - or the key's TTL has passed since: then it would have started over anyway;
//   - or failover_fence has passed, where the URL has it: the operator says with
//     it that a restart or a failover loses nothing that was answered, because
//     every replica confirms (min_replicas) or every write is on the disk
//     (appendfsync always). It is not for a store's record that is missing.
package redis

import (
	"context"
	"embed"
	"fmt"
	"math"
	"math/bits"
	"strconv"

	"github.com/redis/go-redis/v9"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/sequence"
)

//go:embed lua/*.lua
var sources embed.FS

// The scripts, one for each operation.
var (
	helloScript   = load("hello")
	nextScript    = load("life", "next")
	declareScript = load("life", "declare")
	initScript    = load("life", "init")
)

// commands is what the scripts and this package run: what an ACL must allow.
const commands = "info time hget hset hmget hincrby del pexpire eval evalsha wait"

func load(parts ...string) *redis.Script {
	for i, part := range parts {
		text, err := sources.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic("redis: a script is missing from the binary: " + err.Error())
		}
		parts[i] = string(text)
	}
	return redisconn.NewScript(parts...)
}

// Store is sequences on a Redis server, whose client it does not own.
type Store struct {
	client *redisconn.Client
	cfg    redisconn.Config
}

var (
	_ sequence.Store = (*Store)(nil)
)

// Open reaches out to the server and checks that it can be used. Whoever opened
// the client closes it.
func Open(ctx context.Context, client *redisconn.Client) (*Store, error) {
	s := &Store{client: client, cfg: client.Config()}
	var args redisconn.Args
	args.Set("commands", commands)
	if err := s.operator(ctx, helloScript, s.storeKey(), args); err != nil {
		return nil, err
	}
	return s, nil
}

// Close implements sequence.Store. The client stays open.
func (s *Store) Close() error { return nil }

// storeKey begins with what no pool of leases can be called.
func (s *Store) storeKey() string { return s.cfg.Prefix + "@seq" }

// keyOf is where a sequence is; a tenant has no colon.
func (s *Store) keyOf(tenant, key string) string { return s.storeKey() + ":" + tenant + ":" + key }

// eval runs a script that answers "ok", and waits for replicas where it wrote.
func (s *Store) eval(ctx context.Context, conn *redis.Conn, script *redis.Script, key string, args redisconn.Args) (*redisconn.Reply, error) {
	args.Set("store", s.storeKey())
	args.Set("min_replicas", s.cfg.MinReplicas)
	if s.cfg.FailoverFenceSet {
		args.Set("failover_fence_ms", s.cfg.FailoverFence.Milliseconds())
	}
	r, err := s.client.EvalQuick(ctx, conn, script, key, args)
	if err != nil {
		return nil, err
	}
	word := r.Text()
	if word != "ok" {
		return r, &refusal{word, r}
	}
	if s.cfg.MinReplicas == 0 || script == helloScript {
		return r, nil
	}
	n, err := s.client.Confirmed(ctx, conn)
	if err == nil && n < int64(s.cfg.MinReplicas) {
		err = fmt.Errorf("%w: %d of min_replicas=%d know of it; the same request, repeated, will get the same values", redisconn.ErrUnconfirmed, n, s.cfg.MinReplicas)
	}
	return r, err
}

// refusal is an answer of a script other than "ok", not yet understood.
type refusal struct {
	word  string
	reply *redisconn.Reply
}

func (r *refusal) Error() string { return "refused: " + r.word }

// Next implements sequence.Store.
func (s *Store) Next(ctx context.Context, r sequence.Request) (sequence.Range, error) {
	if err := r.Validate(); err != nil {
		return sequence.Range{}, err
	}
	again := redisconn.Repeatable
	if r.RequestID == "" {
		again = redisconn.Once
	}
	return redisconn.Run(ctx, s.client, again, func(ctx context.Context, conn *redis.Conn) (sequence.Range, error) {
		return s.next(ctx, conn, r)
	})
}

func (s *Store) next(ctx context.Context, conn *redis.Conn, r sequence.Request) (sequence.Range, error) {
	count := r.Count
	for {
		reply, err := s.eval(ctx, conn, nextScript, s.keyOf(r.Tenant, r.Key), nextArgs(r, count))
		refused, ok := err.(*refusal)
		if ok && refused.word == "partial" {
			// Scripts cannot divide such numbers. Another call may come in between,
			// and there are fewer each time.
			count = int(left(r.Options, reply.Number()))
			if err := reply.Err(); err != nil || count < 1 {
				return sequence.Range{}, fmt.Errorf("sequence %q: its last value cannot be read: %w", r.Key, err)
			}
			continue
		}
		if ok {
			return sequence.Range{}, s.explain(refused, r)
		}
		if err != nil {
			return sequence.Range{}, err
		}
		last, n := reply.Number(), reply.Number()
		return sequence.Range{First: last - (n-1)*r.Options.Step, Step: r.Options.Step, Count: int(n)}, reply.Err()
	}
}

// left is how many values there are after last.
func left(o sequence.Options, last int64) int64 { return (o.Limit() - last) / o.Step }

// nextArgs is a request for count values, of the r.Count that the caller asked
// for. What scripts cannot calculate comes ready.
func nextArgs(r sequence.Request, count int) redisconn.Args {
	o, least := r.Options, r.Least()
	fresh := sequence.FreshCount(r)
	var a redisconn.Args
	a.Set("options", o.Text())
	a.Set("ttl", o.TTL.Milliseconds())
	a.Set("request", r.RequestID)
	a.Set("asked", r.Count)
	a.Set("count", count)
	a.Set("at_least", least)
	a.Set("limit", lastBefore(o, count))
	a.Set("limit_least", lastBefore(o, least))
	a.Set("add", strconv.FormatUint(uint64(count)*uint64(o.Step), 10)) // not used where it is too large: see limit
	a.Set("fresh_last", o.First()+int64(fresh-1)*o.Step)
	a.Set("fresh_count", fresh)
	reset := "0"
	if o.Max != 0 && o.OnMax == sequence.Reset {
		reset = "1"
	}
	a.Set("reset", reset)
	a.Set("max_receipts", sequence.MaxReceipts)
	return a
}

// lastBefore is the greatest last value after which count values fit; -1 where
// that is never so.
func lastBefore(o sequence.Options, count int) int64 {
	high, low := bits.Mul64(uint64(count), uint64(o.Step))
	if high != 0 || low > math.MaxInt64 || int64(low) > o.Limit() {
		return -1
	}
	return o.Limit() - int64(low)
}

// Declare implements sequence.Store.
func (s *Store) Declare(ctx context.Context, d sequence.Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	var args redisconn.Args
	args.Set("options", d.Options.Text())
	args.Set("ttl", d.Options.TTL.Milliseconds())
	args.Set("last", d.Last)
	return s.operator(ctx, declareScript, s.keyOf(d.Tenant, d.Key), args)
}

// Init ends the fence of all keys.
func (s *Store) Init(ctx context.Context) error {
	return s.operator(ctx, initScript, s.storeKey(), nil)
}

// operator runs a script that answers nothing.
func (s *Store) operator(ctx context.Context, script *redis.Script, key string, args redisconn.Args) error {
	_, err := redisconn.Run(ctx, s.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (struct{}, error) {
		_, err := s.eval(ctx, conn, script, key, args)
		if refused, ok := err.(*refusal); ok {
			err = s.explain(refused, sequence.Request{})
		}
		return struct{}{}, err
	})
	return err
}

// explain is the error for a refusal.
func (s *Store) explain(refused *refusal, r sequence.Request) error {
	reply := refused.reply
	var err error
	switch refused.word {
	case "options":
		err = &sequence.MismatchError{Key: r.Key, Recorded: reply.Text(), Asked: r.Options.Text()}
	case "reused":
		err = sequence.ErrRequestReused
	case "exhausted":
		err = &sequence.ExhaustedError{Key: r.Key, Max: r.Options.Limit(), Left: left(r.Options, reply.Number())}
	case "fenced":
		err = &sequence.FencedError{Key: r.Key, UntilMS: reply.Number(), Reason: fenceReason(reply.Text())}
	case "format":
		return redisconn.FormatError(s.storeKey(), reply.Text())
	default:
		return s.client.Refusal(refused.word, reply)
	}
	if reply.Err() != nil {
		return reply.Err()
	}
	return redisconn.Answer(err)
}

func fenceReason(code string) string {
	if code == "missing" {
		return "the Redis server had no record of sequences: it is new, or it has lost its data and with it the values that were handed out"
	}
	return "the Redis server was restarted, or another one has taken its place, and it may have lost the latest values that were handed out"
}
