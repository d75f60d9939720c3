package pool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Init implements provider.Provider, for all pools of the area. Where the service's terms are none
// that its pool grants on, the pool gets another layout, once all of its leases have ended.
func (p *Provider) Init(ctx context.Context, service string) error {
	t := p.cfg.Services.Of(service)
	err := p.checkTerms(ctx, t)
	if errors.Is(err, provider.ErrInvalid) {
		err = p.renew(ctx, t, err)
	}
	if err != nil {
		return err
	}
	if err := p.cfg.Records.Init(ctx); err != nil {
		return failure(err)
	}
	_, err = p.read(ctx, t, nil) // Fenced is up to date
	return err
}

// renewTries is how often a pool is looked at anew because a block changed meanwhile.
const renewTries = 3

// errChanged: a block was written while an Init looked at all of them.
var errChanged = errors.New("leases were granted, extended or released meanwhile: try again")

// renew gives the pool a layout on which the terms grant. It marks the head, sees when all grants
// end, and then writes the new head if the mark is still there: a write of a block in between
// takes it away.
//
// Where the new layout begins, no lease of the old one is used, by the times in the records
// and not by a clock: the head says when that is, and no grant is made before. The blocks of
// the old layout have other keys. They stay, as all records of slots do, and no call reads them.
func (p *Provider) renew(ctx context.Context, t provider.Terms, refusal error) error {
	for range renewTries {
		before, err := p.mark(ctx, t)
		if err != nil {
			return err
		}
		var endMS int64
		if err := p.everyGrant(ctx, before.head.keys(t.Pool), func(g grant) { endMS = max(endMS, g.end) }); err != nil {
			return err
		}
		sinceMS := before.head.unusedFrom(t.Timeline, max(endMS, before.head.sinceMS))
		err = p.begun(ctx, t, before, sinceMS, refusal)
		if err == nil || !errors.Is(err, errChanged) {
			return err
		}
	}
	return fmt.Errorf("pool %q: %w", t.Pool, errChanged)
}

// unusedFrom is when IDs are made on another timeline that are greater than all before: their
// leases end at endMS at the latest.
func (h head) unusedFrom(next snowflake.Timeline, endMS int64) int64 {
	if h.timeline == next {
		return endMS
	}
	ticks := uint64(max(0, min(endMS, h.timeline.EndMS())-h.timeline.EpochMS))
	above := ticks << h.timeline.LowBits() // greater than every ID
	ticks = (above + 1<<next.LowBits() - 1) >> next.LowBits()
	if ticks > math.MaxInt64/2 {
		return never
	}
	return max(endMS, next.EpochMS+int64(ticks))
}

// markedPool is a pool with the mark of this call.
type markedPool struct {
	head head
	life string // of the store
}

// changeHead changes the head of a pool, and returns it.
func (p *Provider) changeHead(ctx context.Context, pool string, rule func(v record.View, h head) (head, error)) (markedPool, error) {
	key := HeadKey(pool)
	last, err := change(ctx, p.cfg.Records, record.Ask{Keys: []string{key}, Fresh: true}, func(v record.View) (m markedPool, writes []record.Write, err error) {
		if fenced := p.note(v); fenced != nil {
			return m, nil, fenced // the end of a grant may be missing
		}
		if v.Records[key].Value == nil {
			return m, nil, errChanged
		}
		h, err := parseHead(v.Records[key].Value)
		if err == nil {
			h, err = rule(v, h)
		}
		if err != nil {
			return m, nil, unreadable(p.cfg.Info.URL, key, err)
		}
		return markedPool{h, v.Life}, []record.Write{{Key: key, Value: h.value()}}, nil
	})
	return last.result, failure(err)
}

// mark marks the head.
func (p *Provider) mark(ctx context.Context, t provider.Terms) (markedPool, error) {
	var ours mark
	rand.Read(ours[:]) // never fails (crypto/rand ends the program instead)
	return p.changeHead(ctx, t.Pool, func(_ record.View, h head) (head, error) {
		h.mark = ours
		return h, nil
	})
}

// begun writes the head of the new layout. The refusal is part of the error where there are leases.
func (p *Provider) begun(ctx context.Context, t provider.Terms, before markedPool, sinceMS int64, refusal error) error {
	next := newHead(t.Timeline, t.BitSeq)
	next.number, next.sinceMS = before.head.number+1, sinceMS
	_, err := p.changeHead(ctx, t.Pool, func(v record.View, h head) (head, error) {
		switch {
		case h != before.head || v.Life != before.life:
			return head{}, errChanged
		case sinceMS == never:
			return head{}, fmt.Errorf("%w; its IDs would repeat", refusal)
		case v.NowMS < sinceMS:
			return head{}, fmt.Errorf("%w; leases init changes that once all leases have ended and no ID would repeat, from %s on", refusal, snowflake.FormatMS(sinceMS))
		}
		return next, nil
	})
	if err == nil {
		p.learn(t.Pool, next.layout)
	}
	return err
}
