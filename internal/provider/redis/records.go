package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/redisconn"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// listPage is how many records are read at a time, and verifyPage how many
	// leases are asked about: some milliseconds in which no lease is granted.
	// A page must hold all slots with one start, of which each bit_seq has one.
	listPage   = 500
	verifyPage = 500
	// locateLimit is how many grants of one slot are looked at: the right one is
	// the first, unless some that were given back at once follow it.
	locateLimit = 16
)

// Verify implements provider.Verifier.
func (p *Provider) Verify(ctx context.Context, service string, leases []lease.Lease) ([]lease.Lease, error) {
	terms := p.cfg.Services.Of(service)
	var lost []lease.Lease
	for page := range slices.Chunk(append([]lease.Lease{}, leases...), verifyPage) {
		more, err := redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) ([]lease.Lease, error) {
			return p.verify(ctx, conn, terms, page)
		})
		if err != nil {
			return nil, err
		}
		lost = append(lost, more...)
	}
	return lost, ctx.Err()
}

func (p *Provider) verify(ctx context.Context, conn *redis.Conn, terms provider.Terms, leases []lease.Lease) ([]lease.Lease, error) {
	var args arguments
	args.Set("count", len(leases))
	for i, l := range leases {
		args.Set(fmt.Sprintf("bit_seq%d", i+1), l.BitSeq)
		args.Set(fmt.Sprintf("id%d", i+1), l.ID)
		args.Set(fmt.Sprintf("secret%d", i+1), l.Secret)
		args.Set(fmt.Sprintf("created%d", i+1), l.Created)
	}
	if p.cfg.FailoverFenceSet {
		args.Set("failover_fence_ms", p.cfg.FailoverFence.Milliseconds())
	}
	r, err := p.eval(ctx, conn, verifyScript, terms.Pool, args)
	if err != nil {
		return nil, err
	}
	if word := r.Text(); word != "ok" {
		return nil, p.refusal(word, r, terms)
	}
	var lost []lease.Lease
	for r.More() {
		i := r.Number()
		if r.Err() != nil || i < 1 || i > int64(len(leases)) {
			return nil, fmt.Errorf("a script named a lease that was not asked about")
		}
		lost = append(lost, leases[i-1])
	}
	return lost, r.Err()
}

// List implements provider.Lister. It reads page by page, so that grants are
// not held up; records that change meanwhile may be of either state.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	terms := p.cfg.Services.Of(service)
	var all []provider.Record
	start, bitSeq := int64(0), -1
	for more := true; more; {
		page, err := redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (page []provider.Record, err error) {
			var args arguments
			args.Set("start", start)
			args.Set("bit_seq", bitSeq)
			args.Set("limit", listPage)
			r, err := p.eval(ctx, conn, listScript, terms.Pool, args)
			if err != nil {
				return nil, err
			}
			if word := r.Text(); word != "ok" {
				return nil, p.refusal(word, r, terms)
			}
			timeline := snowflake.Timeline{EpochMS: r.Number(), BitTS: int(r.Number())}
			more = r.Number() == 1
			return recordsOf(r, terms.Pool, timeline)
		})
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		all = append(all, page...)
		last := page[len(page)-1].Lease
		start, bitSeq = last.Slot().Start, last.BitSeq
	}
	return all, nil
}

// recordsOf reads records of eight words each.
func recordsOf(r *reply, pool string, timeline snowflake.Timeline) ([]provider.Record, error) {
	var all []provider.Record
	for r.More() {
		bitSeq, id := int(r.Number()), r.Number()
		created, expired, end := r.Number(), r.Number(), r.Number()
		rec := provider.Record{End: end, Released: r.Text() == "1", Service: r.Text()}
		if err := json.Unmarshal([]byte(r.Text()), &rec.Meta); err != nil && r.Err() == nil {
			return nil, fmt.Errorf("the meta of machine ID %d (bit_seq %d) is damaged: %w", id, bitSeq, err)
		}
		rec.Lease = provider.Terms{Pool: pool, Timeline: timeline}.WithBitSeq(bitSeq).Lease(id, created, expired, end, "")
		all = append(all, rec)
	}
	return all, r.Err()
}

// Extend implements provider.Extender.
func (p *Provider) Extend(ctx context.Context, service string, l lease.Lease) (lease.Lease, error) {
	terms := p.cfg.Services.Of(service)
	return redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (lease.Lease, error) {
		var args arguments
		args.Set("id", l.ID)
		args.Set("bit_seq", l.BitSeq)
		args.Set("secret", l.Secret)
		args.Set("term_ms", terms.Term.Milliseconds())
		args.Set("quarantine_ms", terms.Quarantine.Milliseconds())
		p.setFenceArgs(&args, terms)
		r, err := p.eval(ctx, conn, extendScript, terms.Pool, args)
		if err != nil {
			return lease.Lease{}, err
		}
		if word := r.Text(); word != "ok" {
			return lease.Lease{}, p.refusal(word, r, terms)
		}
		l.Created, l.Expired, l.ReservedUntil = r.Number(), r.Number(), r.Number()
		if r.Err() != nil || p.cfg.MinReplicas == 0 {
			return l, r.Err()
		}
		n, err := p.client.Confirmed(ctx, conn)
		if err == nil && n < int64(p.cfg.MinReplicas) {
			// Not taken back: the record is on the safe side.
			err = fmt.Errorf("%w: %d of min_replicas=%d know of the extension", redisconn.ErrUnconfirmed, n, p.cfg.MinReplicas)
		}
		return l, err
	})
}

// Locate implements provider.Locator. It knows grants for 24 hours after their
// end, and of those the last 100,000.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	terms := p.cfg.Services.Of(service)
	all, err := redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) ([]provider.Record, error) {
		if low < 0 || low >= terms.Timeline.FallbackBit() || atMS < 0 || atMS > maxClockMS {
			return nil, nil // outside everything that was ever granted
		}
		var args arguments
		args.Set("low", low)
		args.Set("at_ms", atMS)
		args.Set("limit", locateLimit)
		r, err := p.eval(ctx, conn, locateScript, terms.Pool, args)
		if err != nil {
			return nil, err
		}
		if word := r.Text(); word != "ok" {
			return nil, p.refusal(word, r, terms)
		}
		timeline := snowflake.Timeline{EpochMS: r.Number(), BitTS: int(r.Number())}
		return recordsOf(r, terms.Pool, timeline)
	})
	slices.SortStableFunc(all, func(a, b provider.Record) int {
		return int(min(max(b.Lease.Created-a.Lease.Created, -1), 1))
	})
	return all, err
}

// Init implements provider.Initializer.
func (p *Provider) Init(ctx context.Context, service string) error {
	terms := p.cfg.Services.Of(service)
	_, err := redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (struct{}, error) {
		args := timelineArgs(terms)
		p.setFenceArgs(&args, terms)
		return struct{}{}, p.expectOK(p.eval(ctx, conn, initScript, terms.Pool, args))(terms)
	})
	return err
}

// counters are those of seed 001 that only the store can count, and how often
// the fence refused.
var counters = []string{
	"client_id_count", "client_get_id_count", "client_get_id_success", "get_id_no_available_id", "get_id_fenced",
	"extend_ttl_count", "extend_ttl_success", "extend_ttl_ownership_error", "extend_ttl_expire_warning",
}

// Counters implements provider.Counter. All names are there.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	terms := p.cfg.Services.Of(service)
	return redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (map[string]int64, error) {
		all := map[string]int64{}
		for _, name := range counters {
			all[name] = 0
		}
		var stored map[string]int64
		stored, err := hashOfNumbers(conn.HGetAll(ctx, p.key(terms.Pool, "stats")))
		for name, n := range stored {
			all[name] = n
		}
		return all, err
	})
}

func hashOfNumbers(cmd *redis.MapStringStringCmd) (map[string]int64, error) {
	text, err := cmd.Result()
	if err != nil {
		return nil, err
	}
	all := make(map[string]int64, len(text))
	for name, v := range text {
		n, err := strconv.ParseInt(v, 10, 64)
		if all[name] = n; err != nil {
			return nil, fmt.Errorf("the counter %q is damaged", name)
		}
	}
	return all, nil
}
