package redis

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

//go:embed lua/*.lua
var sources embed.FS

// The scripts, one for each operation.
var (
	helloScript    = load("pool", "hello")
	initScript     = load("pool", "init")
	acquireScript  = load("pool", "rings", "grants", "acquire")
	giveBackScript = load("pool", "rings", "grants", "giveback")
	releaseScript  = load("pool", "rings", "grants", "release")
	extendScript   = load("pool", "rings", "grants", "extend")
	slotsScript    = load("pool", "rings", "grants", "slots")
	listScript     = load("pool", "rings", "grants", "list")
	locateScript   = load("pool", "rings", "grants", "locate")
)

// commands is what the scripts and this package run: what an ACL must allow.
const commands = "info time hget hset hmget hgetall hdel hincrby zadd zrem zrange unlink eval evalsha wait"

// load joins the parts of a script.
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

type (
	arguments = redisconn.Args
	reply     = redisconn.Reply
)

// eval runs a script on the pool's keys, and returns what it answered after "ok".
func (p *Provider) eval(ctx context.Context, conn *redis.Conn, s *redis.Script, terms provider.Terms, args arguments) (*reply, error) {
	r, err := p.client.Eval(ctx, conn, s, p.key(terms.Pool, "pool"), args)
	if err != nil {
		return nil, err
	}
	if word := r.Text(); word != "ok" {
		return nil, p.refusal(word, r, terms)
	}
	return r, nil
}

// run runs a script that answers nothing more.
func (p *Provider) run(ctx context.Context, s *redis.Script, terms provider.Terms, args arguments) error {
	_, err := redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (*reply, error) {
		return p.eval(ctx, conn, s, terms, args)
	})
	return err
}

func (p *Provider) key(pool, name string) string { return p.cfg.Prefix + pool + ":" + name }

// refusal is the error for an answer that is none of those that an operation
// knows. The answer's first word has been read.
func (p *Provider) refusal(word string, r *reply, terms provider.Terms) error {
	err := p.refusalOf(word, r, terms)
	if isAnswer(err) {
		return redisconn.Answer(err)
	}
	return err
}

func (p *Provider) refusalOf(word string, r *reply, terms provider.Terms) error {
	switch word {
	case "format":
		return redisconn.FormatError(p.key(terms.Pool, "pool"), r.Text())
	case "timeline":
		recorded := snowflake.Timeline{EpochMS: r.Number(), BitTS: int(r.Number())}
		return provider.TimelineError(terms.Pool, recorded, terms.Timeline)
	case "inconsistent":
		return fmt.Errorf("%w: machine ID %d (bit_seq %d)", errInconsistent, r.Number(), terms.BitSeq)
	case "clock":
		now := r.Number()
		if err := terms.CheckClock(now); err != nil {
			return err
		}
		return fmt.Errorf("the server's clock says %s, which is later than can be counted with", snowflake.FormatMS(now))
	case "fenced":
		return &provider.FencedError{UntilMS: r.Number(), Reason: fenceReason(r.Text(), terms.Pool)}
	case "full":
		return &provider.FullError{Pool: terms.Pool, Slots: terms.Range().Count(), NextEndMS: r.Number()}
	case "conflict":
		return provider.ErrConflict
	case "notfound":
		return provider.ErrNotFound
	case "badsignature":
		return provider.ErrBadSignature
	case "skew":
		return provider.ErrTimestampSkew
	}
	return p.client.Refusal(word, r)
}

// fenceReason explains a fence.
func fenceReason(code, pool string) string {
	if code == "missing" {
		how := "kazahanad leases init"
		if pool != provider.DefaultPool {
			how += ", with pool=" + pool + " in the provider URL"
		}
		return fmt.Sprintf("the Redis server had no record of pool %q: it is new, or it has lost its data and with it who holds which machine ID. "+
			"Where it is new, say so with: %s", pool, how)
	}
	return fmt.Sprintf("the Redis server was restarted, or another one has taken its place, and it may have lost the latest grants of pool %q", pool)
}

// leasesOf reads what acquire granted: six words each.
func leasesOf(r *reply, terms provider.Terms) []lease.Lease {
	var all []lease.Lease
	for r.More() {
		bitSeq, id := int(r.Number()), r.Number()
		created, expired, until := r.Number(), r.Number(), r.Number()
		all = append(all, terms.WithBitSeq(bitSeq).Lease(id, created, expired, until, r.Text()))
	}
	return all
}

// isAnswer reports whether the error is an answer to the caller as package
// provider has them, and not a failure of the server.
func isAnswer(err error) bool {
	var full *provider.FullError
	var fenced *provider.FencedError
	return errors.As(err, &full) || errors.As(err, &fenced) ||
		errors.Is(err, provider.ErrConflict) || errors.Is(err, provider.ErrNotFound) ||
		errors.Is(err, provider.ErrBadSignature) || errors.Is(err, provider.ErrTimestampSkew) || errors.Is(err, provider.ErrInvalid)
}
