package redis

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/lock"
)

//go:embed lua/*.lua
var sources embed.FS

// The scripts, one for each operation.
var (
	helloScript    = load("store", "hello")
	initScript     = load("store", "init")
	acquireScript  = load("store", "record", "acquire")
	changeScript   = load("store", "record", "change")
	giveBackScript = load("record", "giveback")
	getScript      = load("record", "get")
	listScript     = load("record", "list")
)

const (
	// commands is what the scripts and this package run: what an ACL must allow.
	commands = "info time hset hmget hincrby pexpireat zadd zrem zrange zrandmember publish subscribe unsubscribe ping eval evalsha wait"
	// stretch is how many keys of a List one script looks at: Redis serves nobody
	// else meanwhile.
	stretch = 200
)

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

// Options are what the caller's configuration says of locks.
type Options struct {
	// MaxTTL is the longest term that is granted, lock.MinTTL to lock.MaxTTL; 0
	// means lock.MaxTTL. A server that does not know what it granted before grants
	// nothing for so long: all clients of a server should have the same.
	MaxTTL time.Duration
}

// Validate says what is wrong with the options.
func (o Options) Validate() error {
	if o.MaxTTL != 0 && (o.MaxTTL < lock.MinTTL || o.MaxTTL > lock.MaxTTL || o.MaxTTL%time.Millisecond != 0) {
		return fmt.Errorf("max_lock_ttl: the longest term of a lock is %v to %v in whole milliseconds, not %v", lock.MinTTL, lock.MaxTTL, o.MaxTTL)
	}
	return nil
}

// Store is locks on a Redis server, whose client it does not own.
type Store struct {
	client  *redisconn.Client
	cfg     redisconn.Config
	maxTTL  time.Duration
	waiters waiters
}

var (
	_ lock.Store    = (*Store)(nil)
	_ lock.Notifier = (*Store)(nil)
)

// Open reaches out to the server and checks that it can be used. Whoever opened
// the client closes it, after the store.
func Open(ctx context.Context, client *redisconn.Client, o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.MaxTTL = cmp.Or(o.MaxTTL, lock.MaxTTL)
	s := &Store{client: client, cfg: client.Config(), maxTTL: o.MaxTTL}
	s.waiters.client = client
	var args redisconn.Args
	args.Set("commands", commands)
	// Every key and channel begins like this one.
	return s, s.operator(ctx, helloScript, s.storeKey()+":", args)
}

// Init declares that the store is new, or that nobody holds a lease that it does
// not know. It ends the fence.
func (s *Store) Init(ctx context.Context) error {
	return s.operator(ctx, initScript, s.storeKey(), nil)
}

// operator runs a script that answers nothing.
func (s *Store) operator(ctx context.Context, script *redis.Script, key string, args redisconn.Args) error {
	_, err := redisconn.Run(ctx, s.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (struct{}, error) {
		r, err := s.eval(ctx, conn, script, key, args)
		if err != nil {
			return struct{}{}, err
		}
		if word := r.Text(); word != "ok" {
			return struct{}{}, s.refusal(word, r)
		}
		if script == initScript {
			return struct{}{}, s.confirm(ctx, conn)
		}
		return struct{}{}, nil
	})
	return err
}

// Close implements lock.Store: it ends what waits. The client stays open.
func (s *Store) Close() error {
	s.waiters.close()
	return nil
}

// storeKey begins with what no pool of leases can be called.
func (s *Store) storeKey() string { return s.cfg.Prefix + "@lock" }

// keyOf is where a lock is; a tenant has no colon.
func (s *Store) keyOf(tenant, key string) string { return s.storeKey() + ":" + tenant + ":" + key }

func (s *Store) indexOf(tenant string) string { return s.cfg.Prefix + "@locks:" + tenant }

func (s *Store) eval(ctx context.Context, conn *redis.Conn, script *redis.Script, key string, args redisconn.Args) (*redisconn.Reply, error) {
	args.Set("store", s.storeKey())
	args.Set("min_replicas", s.cfg.MinReplicas)
	args.Set("max_ttl_ms", s.maxTTL.Milliseconds())
	if s.cfg.FailoverFenceSet {
		args.Set("failover_fence_ms", s.cfg.FailoverFence.Milliseconds())
	}
	return s.client.EvalQuick(ctx, conn, script, key, args)
}

// Do implements lock.Store.
func (s *Store) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if err := r.Validate(); err != nil {
		return lock.Lease{}, err
	}
	if r.TTL() > s.maxTTL {
		return lock.Lease{}, fmt.Errorf("%w: a term of %v is longer than max_lock_ttl in the URL of the store, %v", lock.ErrInvalid, r.TTL(), s.maxTTL)
	}
	again := redisconn.Repeatable
	if r.RequestID == "" {
		again = redisconn.Once
	}
	return redisconn.Run(ctx, s.client, again, func(ctx context.Context, conn *redis.Conn) (lock.Lease, error) {
		return s.do(ctx, conn, r)
	})
}

func (s *Store) do(ctx context.Context, conn *redis.Conn, r lock.Request) (lock.Lease, error) {
	script := changeScript
	if r.Op == lock.Acquire {
		script = acquireScript
	}
	reply, err := s.eval(ctx, conn, script, s.keyOf(r.Tenant, r.Key), s.args(r))
	if err != nil {
		return lock.Lease{}, err
	}
	word := reply.Text()
	if word != "ok" {
		return lock.Lease{}, s.answer(word, reply, r)
	}
	l := leaseOf(reply, r.Tenant, r.Key)
	if reply.Err() != nil {
		return lock.Lease{}, reply.Err()
	}
	if err := s.confirm(ctx, conn); err != nil {
		if errors.Is(err, redisconn.ErrUnconfirmed) && r.Op == lock.Acquire && !l.Repeated {
			err = fmt.Errorf("%w; %s", err, s.giveBack(ctx, conn, r, l))
		}
		return lock.Lease{}, err
	}
	return l, nil
}

func (s *Store) args(r lock.Request) redisconn.Args {
	var a redisconn.Args
	a.Set("op", r.Op.String())
	a.Set("key", r.Key)
	a.Set("index", s.indexOf(r.Tenant))
	a.Set("owner", r.Owner)
	a.Set("request", r.RequestID)
	a.Set("lease", r.LeaseID)
	a.Set("ttl_ms", r.TTLMS)
	a.Set("keep_ms", lock.KeepIdle.Milliseconds())
	a.Set("max_receipts", lock.MaxReceipts)
	a.Set("max_token", int64(lock.MaxToken))
	return a
}

// confirm waits until replicas know of what was written.
func (s *Store) confirm(ctx context.Context, conn *redis.Conn) error {
	if s.cfg.MinReplicas == 0 {
		return nil
	}
	n, err := s.client.Confirmed(ctx, conn)
	if err == nil && n < int64(s.cfg.MinReplicas) {
		err = fmt.Errorf("%w: %d of min_replicas=%d know of it", redisconn.ErrUnconfirmed, n, s.cfg.MinReplicas)
	}
	return err
}

// giveBack ends a lease that nobody was told of, and says what became of it.
func (s *Store) giveBack(ctx context.Context, conn *redis.Conn, r lock.Request, l lock.Lease) string {
	args := s.args(r)
	args.Set("lease", l.LeaseID) // the latter of two counts
	reply, err := s.eval(ctx, conn, giveBackScript, s.keyOf(r.Tenant, r.Key), args)
	switch {
	case err != nil:
		return fmt.Sprintf("the lease could not be given back (%v), and may last until its end", err)
	case reply.Text() != "ok":
		return "the lease stays, because the same request was answered twice"
	}
	return "the lease was given back"
}

// Get implements lock.Store.
func (s *Store) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	if err := lock.CheckKey(tenant, key); err != nil {
		return lock.Lease{}, err
	}
	return redisconn.Run(ctx, s.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (lock.Lease, error) {
		reply, err := s.eval(ctx, conn, getScript, s.keyOf(tenant, key), nil)
		if err != nil {
			return lock.Lease{}, err
		}
		switch word := reply.Text(); word {
		case "ok":
			l := leaseOf(reply, tenant, key)
			return l, reply.Err()
		case "none":
			return lock.Lease{}, redisconn.Answer(lock.ErrNotFound)
		default:
			return lock.Lease{}, s.refusal(word, reply)
		}
	})
}

// List implements lock.Store.
func (s *Store) List(ctx context.Context, tenant, after string, limit int) ([]lock.Lease, error) {
	if err := lock.CheckPage(tenant, after, limit); err != nil {
		return nil, err
	}
	return redisconn.Run(ctx, s.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) ([]lock.Lease, error) {
		var page []lock.Lease
		for from := after; ; {
			var args redisconn.Args
			args.Set("index", s.indexOf(tenant))
			args.Set("after", from)
			args.Set("stretch", stretch)
			reply, err := s.eval(ctx, conn, listScript, s.keyOf(tenant, ""), args)
			if err != nil {
				return nil, err
			}
			if word := reply.Text(); word != "ok" {
				return nil, s.refusal(word, reply)
			}
			from = reply.Text()
			more := reply.Text() == "1"
			for reply.More() {
				key := reply.Text()
				_ = reply.Text() // "ok"
				page = append(page, leaseOf(reply, tenant, key))
			}
			if err := reply.Err(); err != nil {
				return nil, err
			}
			if !more || len(page) >= limit {
				return page[:min(limit, len(page))], nil
			}
		}
	})
}

// leaseOf reads what shown (record.lua) tells, after "ok".
func leaseOf(r *redisconn.Reply, tenant, key string) lock.Lease {
	l := lock.Lease{Tenant: tenant, Key: key, Repeated: r.Text() == "1"}
	l.LeaseID, l.Owner, l.Token, l.State = r.Text(), r.Text(), r.Number(), lock.Status(r.Text())
	l.AcquiredMS, l.ExpiresMS = r.Number(), r.Number()
	if now := r.Number(); l.State == lock.Active {
		l.RemainingMS = l.ExpiresMS - now
	}
	return l
}
