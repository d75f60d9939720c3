package pool

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
)

// listedFor is how long a list of ends counts.
const listedFor = time.Second

// listing is the ends of all blocks, as they were listed and seen since.
type listing struct {
	at    time.Time // by this process
	nowMS int64     // by the store
	base  head      // the head of the blocks

	mu   sync.Mutex
	ends map[int64][]grant
}

// update notes blocks that were seen later. A nil listing does nothing.
func (l *listing) update(seen map[int64][]grant) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(l.ends, seen)
}

// room returns blocks that have something free, from that of a machine ID on. Where there are none,
// nextMS is when the first machine ID is free.
func (l *listing) room(r ring, nowMS, from int64) (blocks []int64, nextMS int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	low, end := r.blocks()
	for i := int64(0); i < end-low && len(blocks) < spread; i++ {
		block := r.nth(from, i)
		all, next := r.freeIn(block, l.ends[block], nowMS)
		if len(all) > 0 {
			blocks = append(blocks, block)
		} else {
			nextMS = earliest(nextMS, next)
		}
	}
	return blocks, nextMS
}

// isRecent reports whether the list counts at a time of the store's.
func (l *listing) isRecent(nowMS int64) bool {
	apart := nowMS - l.nowMS
	return time.Since(l.at) < listedFor && max(apart, -apart) < listedFor.Milliseconds()
}

// ends returns the ends of all blocks of the pool, as of a second before at most. Calls that wait
// for each other share a list.
func (p *Provider) ends(ctx context.Context, t provider.Terms, nowMS int64) (*listing, error) {
	select {
	case p.lister <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-p.lister }()
	base := p.base(t)
	p.mu.Lock()
	l := p.lists[t.Pool]
	p.mu.Unlock()
	if l != nil && l.base.layout == base.layout && l.isRecent(nowMS) {
		return l, nil
	}
	l = &listing{at: time.Now(), nowMS: nowMS, base: base, ends: map[int64][]grant{}}
	heads, err := p.heads(ctx, base.keys(t.Pool))
	if err != nil {
		return nil, err
	}
	for _, one := range heads {
		r := record.NewReader(one.Value)
		grants, whole := decodeEnds(&r)
		switch {
		case whole:
		case len(one.Value) == record.MaxHead:
			grants = nil // it is cut off, and has nearly all slots of all layouts: a change that reads it finds out
		default:
			grants = base.taken(one.block)
		}
		l.ends[one.block] = grants
	}
	p.mu.Lock()
	p.lists[t.Pool] = l
	p.mu.Unlock()
	return l, nil
}

// listedBlock is a block in a list.
type listedBlock struct {
	record.Head
	block int64
}

// heads lists the blocks of a pool. Their values may be cut off.
func (p *Provider) heads(ctx context.Context, name keys) ([]listedBlock, error) {
	prefix := name.blocks()
	var all []listedBlock
	for after := ""; ; {
		page, err := p.cfg.Records.List(ctx, prefix, after, record.MaxPage)
		if err != nil {
			return nil, failure(err)
		}
		for _, one := range page {
			block, err := strconv.ParseInt(strings.TrimPrefix(one.Key, prefix), 16, 64)
			if err != nil {
				return nil, unreadable(p.cfg.Info.URL, one.Key, errFormat)
			}
			all = append(all, listedBlock{one, block})
			after = one.Key
		}
		if len(page) < record.MaxPage {
			return all, nil
		}
	}
}

// List implements provider.Provider. It reads page by page, so that grants are not held up;
// blocks that change meanwhile may be of either state.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	t := p.cfg.Services.Of(service)
	s, err := p.read(ctx, t, nil)
	if err != nil || !s.exists {
		return nil, err
	}
	var all []provider.Record
	err = p.everyGrant(ctx, s.name, func(g grant) { all = append(all, s.head.shown(g)) })
	if err != nil {
		return nil, err
	}
	return all, nil
}

// everyGrant yields the grants of all blocks of a pool.
func (p *Provider) everyGrant(ctx context.Context, name keys, yield func(grant)) error {
	heads, err := p.heads(ctx, name)
	if err != nil {
		return err
	}
	values := map[string][]byte{}
	var cut []string
	for _, one := range heads {
		if values[one.Key] = one.Value; len(one.Value) == record.MaxHead {
			cut = append(cut, one.Key)
		}
	}
	for some := range slices.Chunk(cut, readAtOnce) {
		v, err := p.cfg.Records.Read(ctx, record.Ask{Keys: some})
		if err != nil {
			return failure(err)
		}
		for _, key := range some {
			values[key] = v.Records[key].Value
		}
	}
	for _, one := range heads {
		grants, err := decode(values[one.Key])
		if err != nil {
			return unreadable(p.cfg.Info.URL, one.Key, err)
		}
		for _, g := range grants {
			yield(g)
		}
	}
	return nil
}

// Locate implements provider.Provider.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	t := p.cfg.Services.Of(service)
	if low < 0 || low >= t.Timeline.FallbackBit() {
		return nil, p.begin(ctx)
	}
	s, err := p.read(ctx, t, func(h head) []string {
		return []string{h.keys(t.Pool).block(h.blockOf(low)), h.keys(t.Pool).past(h.blockOf(low))}
	})
	if err != nil || !s.exists {
		return nil, err
	}
	var found []provider.Record
	for _, key := range []string{s.name.block(s.head.blockOf(low)), s.name.past(s.head.blockOf(low))} {
		grants, err := s.grants(key)
		if err != nil {
			return nil, err
		}
		for _, g := range grants {
			if r, slot := s.head.shown(g), g.slot(); slot.Start <= low && low < slot.End && r.HeldAt(atMS) {
				found = append(found, r)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b provider.Record) int { return cmp.Compare(b.Lease.Created, a.Lease.Created) })
	return found, nil
}

// Verify implements provider.Provider.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	t := p.cfg.Services.Of(service)
	for first := 0; first < len(claims) || first == 0; first += readAtOnce {
		some := claims[first:min(first+readAtOnce, len(claims))]
		s, err := p.read(record.Upkeep(ctx), t, func(h head) (names []string) {
			for _, c := range some {
				if h.has(c.ID, c.BitSeq) {
					names = add(names, h.keys(t.Pool).block(h.blockOf(c.ID<<c.BitSeq)))
				}
			}
			return names
		})
		if err != nil {
			return nil, err
		}
		for i, c := range some {
			isLost, err := s.lost(c)
			if err != nil {
				return nil, err
			}
			if isLost {
				lost = append(lost, first+i)
			}
		}
	}
	return lost, nil
}

// lost reports whether the claimed lease is no longer the claimant's.
func (s seenPool) lost(c provider.Claim) (bool, error) {
	if !s.exists || !s.head.has(c.ID, c.BitSeq) {
		return c.Lost(nil, s.fenced != nil), nil
	}
	start := c.ID << c.BitSeq
	grants, err := s.grants(s.name.block(s.head.blockOf(start)))
	if err != nil {
		return false, err
	}
	var latest *provider.Record
	if at := find(grants, start, c.BitSeq); at >= 0 {
		latest = new(s.head.signed(grants[at]))
	}
	return c.Lost(latest, s.fenced != nil), nil
}
