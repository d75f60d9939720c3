package pool

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
)

// asked is what became of a request so far. Several changes may carry it out, of several
// callers that repeat it.
type asked struct {
	want int // leases; no more than it has got where the pool was full
	got  []named
}

// named names a grant.
type named struct {
	start  int64
	bitSeq int
	nonce  nonce
}

// askedFormat is the first byte of a request's value.
const askedFormat = 2

// mostLeases bounds a request: its record has to fit into one change.
const mostLeases = 4096

// clipped is the same for one run of a rule: what another one adds to it is not seen.
func (a asked) clipped() asked {
	a.got = slices.Clip(a.got)
	return a
}

// over reports whether nothing is left to do.
func (a asked) over() bool { return len(a.got) >= a.want }

func (a asked) value() []byte {
	b := binary.AppendUvarint([]byte{askedFormat}, uint64(a.want))
	for _, g := range a.got {
		b = append(binary.AppendUvarint(b, uint64(g.start)), byte(g.bitSeq))
		b = append(b, g.nonce[:]...)
	}
	return seal(b)
}

// write records the request under its key.
func (a asked) write(key string, t provider.Terms) record.Write {
	return record.Write{Key: key, Value: a.value(), KeepMS: min(t.LongestMS(), record.MaxKeepMS), Unlisted: true}
}

func parseAsked(value []byte) (a asked, err error) {
	r := unseal(value)
	if r.Byte() != askedFormat {
		r.Fail()
	}
	a.want = int(min(r.Number(), record.MaxValue))
	for len(r.Rest()) > 0 && !r.Failed() {
		a.got = append(a.got, named{start: r.Number(), bitSeq: int(r.Byte()), nonce: nonce(r.Bytes(len(nonce{})))})
	}
	if r.Failed() {
		return asked{}, errFormat
	}
	return a, nil
}

// living is the request's grant, as long as it lives.
func (n named) living(grants []grant, nowMS int64) (grant, error) {
	at := find(grants, n.start, n.bitSeq)
	if at < 0 || grants[at].nonce != n.nonce || !grants[at].living(nowMS) {
		return grant{}, provider.ErrConflict
	}
	return grants[at], nil
}

// answer returns the leases of the request. It reads the leases that another call has made: they
// may have ended.
func (a *acquire) answer(ctx context.Context) ([]lease.Lease, error) {
	if len(a.mine) < len(a.asked.got) {
		return a.p.replay(ctx, a.t, a.asked)
	}
	leases := make([]lease.Lease, len(a.mine))
	for i, g := range a.mine {
		leases[i] = a.head.granted(g)
	}
	return leases, nil
}

// readAtOnce is how many blocks a read is asked for beside the head.
const readAtOnce = record.MaxKeys - 1

// replay is the answer to a request that was granted before: the same leases as long as all of
// them live.
func (p *Provider) replay(ctx context.Context, t provider.Terms, a asked) ([]lease.Lease, error) {
	var leases []lease.Lease
	for some := range slices.Chunk(a.got, readAtOnce) {
		s, err := p.read(ctx, t, func(h head) []string {
			var names []string
			for _, g := range some {
				names = add(names, h.keys(t.Pool).block(h.blockOf(g.start)))
			}
			return names
		})
		if err != nil {
			return nil, err
		}
		if s.fenced != nil {
			return nil, s.fenced
		}
		for _, n := range some {
			grants, err := s.grants(s.name.block(s.head.blockOf(n.start)))
			if err != nil {
				return nil, err
			}
			g, err := n.living(grants, s.NowMS)
			if err != nil {
				return nil, err
			}
			leases = append(leases, s.head.granted(g))
		}
	}
	return leases, nil
}

// unconfirmed says what becomes of grants that too few replicas have confirmed. With a request ID
// they stay: a repetition may have been answered with them by now, and the caller's own repetition
// is, once the replicas confirm them. Otherwise no caller has seen them, and they end.
func (a *acquire) unconfirmed(ctx context.Context) string {
	if a.req.RequestID != "" {
		return "the same request gets the leases once they are confirmed"
	}
	for len(a.mine) > 0 {
		block := a.head.blockOf(a.mine[0].start)
		ask := record.Ask{Keys: []string{HeadKey(a.t.Pool), a.head.keys(a.t.Pool).block(block)}}
		_, err := a.p.cfg.Records.Change(record.Upkeep(ctx), ask, func(v record.View) ([]record.Write, error) { return a.unused(v, ask.Keys[1]) })
		if err != nil && !errors.Is(err, record.ErrUnconfirmed) {
			return "the leases end by themselves: " + err.Error()
		}
		a.mine = slices.DeleteFunc(a.mine, func(g grant) bool { return a.head.blockOf(g.start) == block })
	}
	return "the leases were given back"
}

// unused ends the grants of this call in a block, before anything was made under them.
func (a *acquire) unused(v record.View, key string) ([]record.Write, error) {
	s, err := a.p.seePool(v, a.t, a.head)
	if err != nil {
		return nil, err
	}
	grants, err := s.grants(key)
	if err != nil {
		return nil, err
	}
	found := false
	for i := range grants {
		if slices.ContainsFunc(a.mine, func(g grant) bool { return g.nonce == grants[i].nonce }) {
			grants[i].end, grants[i].released, found = grants[i].created, true, true
		}
	}
	if !found {
		return nil, nil
	}
	return append(s.unmarked(), record.Write{Key: key, Value: encode(grants), Frees: true}), nil
}
