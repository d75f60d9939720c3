package pool

import (
	"encoding/binary"
	"slices"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
)

// asked is what became of a request so far. Several changes may carry it out, of several
// callers that repeat it.
type asked struct {
	want int  // leases
	done bool // it gets no more
	got  []named
}

// named names a grant.
type named struct {
	start  int64
	bitSeq int
	nonce  nonce
}

// mostLeases bounds a request: its record has to fit into one change.
const mostLeases = 4096

// clipped is the same for one run of a rule: what another one adds to it is not seen.
func (a asked) clipped() asked {
	a.got = slices.Clip(a.got)
	return a
}

// over reports whether nothing is left to do.
func (a asked) over() bool { return a.done || len(a.got) >= a.want }

func (a asked) value() []byte {
	b := binary.AppendUvarint([]byte{format, flag(a.done)}, uint64(a.want))
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
	if r.Byte() != format {
		r.Fail()
	}
	a.done = r.Byte() != 0
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
