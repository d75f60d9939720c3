package redis

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

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
	secretsScript  = load("pool", "rings", "grants", "secrets")
	releaseScript  = load("pool", "rings", "grants", "release")
	extendScript   = load("pool", "rings", "grants", "extend")
	verifyScript   = load("pool", "rings", "grants", "verify")
	listScript     = load("pool", "rings", "grants", "list")
	locateScript   = load("pool", "rings", "grants", "locate")
)

// commands is what the scripts and this package run: what an ACL must allow.
const commands = "info time hget hset hmget hgetall hdel hincrby zadd zrem zrange unlink eval evalsha wait"

// load joins the parts of a script.
func load(parts ...string) *redis.Script {
	var b strings.Builder
	for _, part := range parts {
		text, err := sources.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic("redis: a script is missing from the binary: " + err.Error())
		}
		b.Write(text)
	}
	return redis.NewScript(b.String())
}

// arguments is what a script is told, by name.
type arguments []any

func (a *arguments) set(name string, value any) { *a = append(*a, name, value) }

// eval runs a script on the pool's keys: by its hash, and in full where the
// server does not know it.
func (p *Provider) eval(ctx context.Context, conn *redis.Conn, s *redis.Script, pool string, args arguments) (*reply, error) {
	if p.cfg.nowMS != nil {
		args.set("now", p.cfg.nowMS())
	}
	answer, err := s.Run(ctx, conn, []string{p.key(pool, "pool")}, args...).StringSlice()
	if err != nil {
		return nil, err
	}
	if len(answer) == 0 {
		return nil, fmt.Errorf("a script gave no answer")
	}
	return &reply{words: answer}, nil
}

func (p *Provider) key(pool, name string) string { return p.cfg.Prefix + pool + ":" + name }

// reply is the answer of a script: words, read one after the other. What cannot
// be read is reported once, by err.
type reply struct {
	words  []string
	at     int
	broken error
}

func (r *reply) more() bool { return r.broken == nil && r.at < len(r.words) }

func (r *reply) text() string {
	if r.at >= len(r.words) {
		r.fail("it is too short")
		return ""
	}
	r.at++
	return r.words[r.at-1]
}

func (r *reply) number() int64 {
	n, err := strconv.ParseInt(r.text(), 10, 64)
	if err != nil {
		r.fail("a number was expected")
	}
	return n
}

func (r *reply) fail(why string) {
	if r.broken == nil {
		r.broken = fmt.Errorf("the answer of a script cannot be read: %s", why)
	}
}

// refusal is the error for an answer that is none of those that an operation
// knows. The answer's first word has been read.
func (p *Provider) refusal(word string, r *reply, terms provider.Terms) error {
	switch word {
	case "version":
		return fmt.Errorf("%w: its version is %s, and must be 7.0 or later", errServer, r.text())
	case "policy":
		return fmt.Errorf("%w: its maxmemory-policy is %s, which deletes keys when memory is short, and with them who holds which machine ID; "+
			"set it to noeviction", errServer, r.text())
	case "norunid":
		return fmt.Errorf("%w: INFO does not tell its run_id, without which a restart goes unnoticed", errServer)
	case "acl":
		return fmt.Errorf("%w: the user's ACL does not allow %s on the keys %s*; the page on this provider has the rule to set",
			errServer, strings.ToUpper(r.text()), p.cfg.Prefix)
	case "format":
		return fmt.Errorf("%w: another version of kazahana wrote the keys of pool %q (format %s, this version knows 1)", errServer, terms.Pool, r.text())
	case "timeline":
		recorded := snowflake.Timeline{EpochMS: r.number(), BitTS: int(r.number())}
		return provider.TimelineError(terms.Pool, recorded, terms.Timeline)
	case "replicas":
		return fmt.Errorf("%w: %d are connected, and min_replicas=%d must confirm each grant; nothing was granted", ErrUnconfirmed, r.number(), p.cfg.MinReplicas)
	case "inconsistent":
		return fmt.Errorf("%w: machine ID %d (bit_seq %d)", errInconsistent, r.number(), terms.BitSeq)
	case "clock":
		now := r.number()
		if err := terms.CheckClock(now); err != nil {
			return err
		}
		return fmt.Errorf("the server's clock says %s, which is later than can be counted with", snowflake.FormatMS(now))
	case "fenced":
		return &provider.FencedError{UntilMS: r.number(), Reason: fenceReason(r.text(), terms.Pool)}
	case "full":
		return &provider.FullError{Pool: terms.Pool, Slots: terms.Range().Count(), NextEndMS: r.number()}
	case "conflict":
		return provider.ErrConflict
	case "notfound":
		return provider.ErrNotFound
	case "badsignature":
		return provider.ErrBadSignature
	case "skew":
		return provider.ErrTimestampSkew
	}
	return fmt.Errorf("a script gave an answer that this version does not know: %q", word)
}

// fenceReason explains a fence.
func fenceReason(code, pool string) string {
	if code == "missing" {
		return fmt.Sprintf("the Redis server had no record of pool %q: it is new, or it has lost its data and with it who holds which machine ID. "+
			"Where it is new, say so with: kazahanad leases init", pool)
	}
	return fmt.Sprintf("the Redis server was restarted, or another one has taken its place, and it may have lost the latest grants of pool %q", pool)
}

// leases reads what acquire granted: six words each.
func (r *reply) leases(terms provider.Terms) []lease.Lease {
	var all []lease.Lease
	for r.more() {
		bitSeq, id := int(r.number()), r.number()
		created, expired, until := r.number(), r.number(), r.number()
		all = append(all, terms.WithBitSeq(bitSeq).Lease(id, created, expired, until, r.text()))
	}
	return all
}
