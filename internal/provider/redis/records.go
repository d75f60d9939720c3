package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
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

// Verify implements provider.Provider.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	terms := p.cfg.Services.Of(service)
	at := 0
	for page := range slices.Chunk(claims, verifyPage) {
		more, err := redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) ([]int, error) {
			return p.verify(ctx, conn, terms, page)
		})
		if err != nil {
			return nil, err
		}
		for _, i := range more {
			lost = append(lost, at+i)
		}
		at += len(page)
	}
	return lost, ctx.Err()
}

func (p *Provider) verify(ctx context.Context, conn *redis.Conn, terms provider.Terms, claims []provider.Claim) (lost []int, err error) {
	var names []slotName
	for _, c := range claims {
		if terms.HasSlot(c.ID, c.BitSeq) {
			names = append(names, slotName{c.ID, c.BitSeq})
		}
	}
	fenced, found, err := p.slots(ctx, conn, terms, names)
	if err != nil {
		return nil, err
	}
	for i, c := range claims {
		var f recorded // of what is no slot there is no record
		if terms.HasSlot(c.ID, c.BitSeq) {
			f, found = found[0], found[1:]
		}
		if f.isLost(c, fenced) {
			lost = append(lost, i)
		}
	}
	return lost, nil
}

// slotName is a machine ID in a layout, or in all (provider.AnyBitSeq).
type slotName struct {
	id     int64
	bitSeq int
}

// recorded is what is recorded of a slot. Without a record all texts are "".
type recorded struct {
	bitSeq                    int
	secret, released, created string
}

// slots asks for the records of one machine ID in any layout, or of several slots, each of
// which has one answer. fenced says that a record may be missing of a lease that is alive.
func (p *Provider) slots(ctx context.Context, conn *redis.Conn, terms provider.Terms, names []slotName) (fenced bool, all []recorded, err error) {
	var args arguments
	args.Set("count", len(names))
	for i, n := range names {
		args.Set(fmt.Sprintf("bit_seq%d", i+1), n.bitSeq)
		args.Set(fmt.Sprintf("id%d", i+1), n.id)
	}
	if len(names) == 1 && names[0].bitSeq == provider.AnyBitSeq {
		args.Set("any", 1)
	}
	p.setFenceArgs(&args, terms)
	r, err := p.eval(ctx, conn, slotsScript, terms, args)
	if err != nil {
		return false, nil, err
	}
	fenced = r.Text() == "1"
	for r.More() {
		all = append(all, recorded{int(r.Number()), r.Text(), r.Text(), r.Text()})
	}
	return fenced, all, r.Err()
}

// isLost judges a claim by what is recorded of its slot.
func (f recorded) isLost(c provider.Claim, fenced bool) bool {
	createdMS, err := strconv.ParseInt(f.created, 10, 64)
	switch {
	case f.secret != "" && c.Signed(f.secret):
		return f.released != "0"
	case err == nil && createdMS >= c.CreatedMS:
		return true // taken over
	}
	return !fenced // the record is gone, or an older one is back
}

// List implements provider.Provider. It reads page by page, so that grants are
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
			r, err := p.eval(ctx, conn, listScript, terms, args)
			if err != nil {
				return nil, err
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

// Extend implements provider.Provider.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	terms := p.cfg.Services.Of(req.Service)
	if !terms.HasSlot(req.ID, req.BitSeq) {
		return lease.Lease{}, provider.ErrNotFound
	}
	return redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (lease.Lease, error) {
		l, err := p.extend(ctx, conn, terms, req)
		if err != nil {
			return l, err
		}
		// Where it is not confirmed, it is not taken back: the record is on the safe side.
		return l, p.client.Confirm(ctx, conn)
	})
}

// extend checks the signature with the record's secret. The script, which counts,
// refuses a request that is not signed for what the record has: no secret is "".
func (p *Provider) extend(ctx context.Context, conn *redis.Conn, terms provider.Terms, req provider.ExtendRequest) (lease.Lease, error) {
	_, found, err := p.slots(ctx, conn, terms, []slotName{{req.ID, req.BitSeq}})
	if err != nil {
		return lease.Lease{}, err
	}
	signedWith := ""
	if len(found) > 0 && req.Signed(found[0].secret) {
		signedWith = found[0].secret
	}
	args := timelineArgs(terms)
	args.Set("id", req.ID)
	args.Set("bit_seq", req.BitSeq)
	args.Set("secret", signedWith)
	args.Set("expired", req.ExpiredMS)
	args.Set("term_ms", terms.Term.Milliseconds())
	args.Set("quarantine_ms", terms.Quarantine.Milliseconds())
	p.setFenceArgs(&args, terms)
	r, err := p.eval(ctx, conn, extendScript, terms, args)
	if err != nil {
		return lease.Lease{}, err
	}
	l := terms.WithBitSeq(req.BitSeq).Lease(req.ID, r.Number(), r.Number(), r.Number(), "")
	return l, r.Err()
}

// Locate implements provider.Provider. It knows grants for 24 hours after their
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
		r, err := p.eval(ctx, conn, locateScript, terms, args)
		if err != nil {
			return nil, err
		}
		timeline := snowflake.Timeline{EpochMS: r.Number(), BitTS: int(r.Number())}
		return recordsOf(r, terms.Pool, timeline)
	})
	slices.SortStableFunc(all, func(a, b provider.Record) int { return cmp.Compare(b.Lease.Created, a.Lease.Created) })
	return all, err
}

// Init implements provider.Provider.
func (p *Provider) Init(ctx context.Context, service string) error {
	terms := p.cfg.Services.Of(service)
	args := timelineArgs(terms)
	p.setFenceArgs(&args, terms)
	return p.run(ctx, initScript, terms, args)
}

// countFenced is how often the fence refused.
const countFenced = "get_id_fenced"

// Counters implements provider.Provider.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	terms := p.cfg.Services.Of(service)
	return redisconn.Run(ctx, p.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (map[string]int64, error) {
		all := provider.NoCounts()
		all[countFenced] = 0
		stored, err := conn.HGetAll(ctx, p.key(terms.Pool, "stats")).Result()
		for name, text := range stored {
			if all[name], err = strconv.ParseInt(text, 10, 64); err != nil {
				return nil, fmt.Errorf("the counter %q is damaged", name)
			}
		}
		return all, err
	})
}
