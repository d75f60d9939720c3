package pool

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
)

// shards is how many records the counters of a pool have, so that grants of many hosts seldom
// write the same one.
const shards = 16

// counts are counters, in the order of counted. The others are sums of them.
type counts [6]int64

// counted are the counters of seed 001 that are kept.
var counted = [len(counts{})]string{
	provider.CountClients, provider.CountGranted, provider.CountFull,
	provider.CountExtended, provider.CountNotOwner, provider.CountExtendEnded,
}

// Positions in counts.
const (
	clients = iota
	granted
	full
	extended
	notOwner
	extendEnded
)

func (c counts) plus(other counts) counts {
	for i, n := range other {
		c[i] += n
	}
	return c
}

func (c counts) value() []byte {
	b := []byte{format}
	for _, n := range c {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// parseCounts reads a value. A damaged value counts nothing: no decision rests on it.
func parseCounts(value []byte) (c counts) {
	r := record.NewReader(value)
	if r.Byte() != format {
		return counts{}
	}
	for i := range c {
		c[i] = r.Number()
	}
	if r.Failed() {
		return counts{}
	}
	return c
}

// names are all counters by name.
func (c counts) names() map[string]int64 {
	all := map[string]int64{}
	for i, name := range counted {
		all[name] = c[i]
	}
	all[provider.CountAcquires] = c[granted] + c[full]
	all[provider.CountExtends] = c[extended] + c[notOwner] + c[extendEnded]
	return all
}

// count adds to the counts that the next grant or extension of the pool writes.
func (p *Provider) count(pool string, more counts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[pool] = p.counts[pool].plus(more)
}

// uncounted takes the counts that are not written yet. A caller that does not write them gives
// them back with count.
func (p *Provider) uncounted(pool string) counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts[pool]
	p.counts[pool] = counts{}
	return c
}

// keepsCounts reports whether a change that failed with the error has not written its counts: the
// error is that of its rule, or says so. After any other one they are given up: the counters may lack
// a count, and have none twice.
func keepsCounts(err, ofRule error) bool {
	return errors.Is(err, ofRule) || errors.Is(err, record.ErrBusy) || errors.Is(err, record.ErrCrowded)
}

// counted is the write that adds to a shard.
func (s seenPool) counted(shard int64, more counts) record.Write {
	key := s.name.count(shard)
	return record.Write{Key: key, Value: parseCounts(s.Records[key].Value).plus(more).value(), Unlisted: true}
}

// isNew reports whether the request is of a client that the pool has not counted.
func (p *Provider) isNew(pool string, c provider.Client) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c == provider.NewClient || c == provider.OwnClient && !p.joined[pool]
}

// known notes that the client of a request was counted.
func (p *Provider) known(pool string, c provider.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.joined[pool] = p.joined[pool] || c == provider.OwnClient
}

// countExtend counts an extension with this outcome. An error that is no answer is not counted.
func (p *Provider) countExtend(pool string, err error) {
	var c counts
	switch {
	case err == nil:
		c[extended] = 1
	case errors.Is(err, provider.ErrBadSignature):
		c[notOwner] = 1
	case errors.Is(err, provider.ErrConflict):
		c[extendEnded] = 1
	}
	p.count(pool, c)
}

// Counters implements provider.Provider. Counts that this process has not written yet are among
// them.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	t := p.cfg.Services.Of(service)
	var names []string
	for shard := range int64(shards) {
		names = append(names, keys{pool: t.Pool}.count(shard))
	}
	s, err := p.read(ctx, t, func(head) []string { return names })
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	sum := p.counts[t.Pool]
	p.mu.Unlock()
	for _, name := range names {
		sum = sum.plus(parseCounts(s.Records[name].Value))
	}
	return sum.names(), nil
}
