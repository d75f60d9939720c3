package pool

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// format is the format of all values. Another one is refused.
const format = 1

// errFormat: a record cannot be read. Nothing is granted from its block.
var errFormat = errors.New("cannot be read: it was damaged, or another version of kazahana wrote it")

// unreadable is an error about a record of a pool: where it is, and what an operator does where it
// cannot be read.
func unreadable(place, key string, err error) error {
	if !errors.Is(err, errFormat) {
		return err
	}
	return fmt.Errorf("%s: the record %q %w; run that version, restore the store from a backup, or wait until every lease of the pool "+
		"has ended and choose another pool", place, key, err)
}

type nonce [16]byte

// grant is one grant of a slot. Times are Unix ms.
type grant struct {
	start    int64 // the slot's first low-bit value
	bitSeq   int
	created  int64
	expired  int64
	end      int64 // from then on the slot can be granted again
	released bool
	nonce    nonce
	service  string
	meta     []byte // as encodeMeta makes it; nil in a past
}

// slot returns the slot of a grant.
func (g grant) slot() snowflake.Slot {
	return snowflake.Slot{Start: g.start, End: g.start + 1<<g.bitSeq}
}

func (g grant) id() int64 { return g.start >> g.bitSeq }

// of reports whether the grant is of the same slot as another.
func (g grant) of(start int64, bitSeq int) bool { return g.start == start && g.bitSeq == bitSeq }

// living reports whether the holder may use the lease at that time.
func (g grant) living(nowMS int64) bool { return !g.released && nowMS < g.expired }

// with is the grant as a release or an extension leaves it.
func (g grant) with(after provider.Record) grant {
	g.expired, g.end, g.released = after.Lease.Expired, after.End, after.Released
	return g
}

// find is the position of a slot's grant, -1 where there is none.
func find(grants []grant, start int64, bitSeq int) int {
	return slices.IndexFunc(grants, func(g grant) bool { return g.of(start, bitSeq) })
}

// until is when a slot can be granted: the greatest end of all grants that overlap it.
func until(grants []grant, slot snowflake.Slot) int64 { return untilWithout(grants, slot, -1) }

// untilWithout is until, but for the grant at one position.
func untilWithout(grants []grant, slot snowflake.Slot, own int) (end int64) {
	for i, g := range grants {
		if i != own && g.slot().Overlaps(slot) {
			end = max(end, g.end)
		}
	}
	return end
}

// never is the end of what cannot be granted.
const never = math.MaxInt64

// taken stands for a block that cannot be read.
func (h head) taken(block int64) []grant {
	bitSeq := h.bitSeq + blockBits
	return []grant{{start: block << bitSeq, bitSeq: bitSeq, end: never}}
}

func compareGrants(a, b grant) int {
	return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.bitSeq, b.bitSeq))
}

// castagnoli is the polynomial of checksums.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal ends a value with its checksum. A value that is damaged must not be read as another one, in
// which a slot looks free.
func seal(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) }

// unseal reads what seal has made.
func unseal(value []byte) record.Reader {
	size := len(value) - crc32.Size
	if size < 0 || binary.BigEndian.Uint32(value[size:]) != crc32.Checksum(value[:size], castagnoli) {
		r := record.NewReader(nil)
		r.Fail()
		return r
	}
	return record.NewReader(value[:size])
}

// encode makes the value of grants. The fields for a choice come first, since lists cut values
// off, and meta comes last.
func encode(grants []grant) []byte {
	b := binary.AppendUvarint([]byte{format}, uint64(len(grants)))
	for _, g := range grants {
		b = binary.AppendUvarint(b, uint64(g.start))
		b = append(b, byte(g.bitSeq))
		b = binary.AppendUvarint(b, uint64(g.end))
	}
	for _, g := range grants {
		b = binary.AppendUvarint(b, uint64(g.created))
		b = binary.AppendUvarint(b, uint64(g.expired))
		b = append(b, flag(g.released))
		b = append(b, g.nonce[:]...)
		b = appendText(b, g.service)
	}
	for _, g := range grants {
		b = binary.AppendUvarint(b, uint64(len(g.meta)))
		b = append(b, g.meta...)
	}
	return seal(b)
}

// decodeEnds reads the first fields: slots and ends. whole is false where the value was cut
// off before.
func decodeEnds(r *record.Reader) (grants []grant, whole bool) {
	if r.Byte() != format {
		r.Fail()
	}
	n := r.Number()
	grants = make([]grant, 0, min(n, 1<<(2*blockBits)))
	for i := int64(0); i < n && !r.Failed(); i++ {
		g := grant{start: r.Number(), bitSeq: int(r.Byte()), end: r.Number()}
		if slot := g.slot(); slot.End <= slot.Start { // it would overlap nothing
			r.Fail()
		}
		grants = append(grants, g)
	}
	return grants, !r.Failed()
}

// decode is the inverse of encode. No value, no grants.
func decode(value []byte) ([]grant, error) {
	if value == nil {
		return nil, nil
	}
	r := unseal(value)
	grants, _ := decodeEnds(&r)
	for i := range grants {
		g := &grants[i]
		g.created, g.expired = r.Number(), r.Number()
		g.released = r.Byte() != 0
		g.nonce = nonce(r.Bytes(len(nonce{})))
		g.service = r.Text(int(min(r.Number(), record.MaxValue)))
	}
	for i := range grants {
		grants[i].meta = r.Bytes(int(min(r.Number(), record.MaxValue)))
	}
	if r.Failed() || len(r.Rest()) > 0 {
		return nil, errFormat
	}
	return grants, nil
}

// maxMeta bounds the meta of a block. Where all together have more, the oldest grants lose
// theirs: it is for people.
const maxMeta = 16 * provider.MaxMetaBytes

func boundMeta(grants []grant) {
	size := 0
	for _, g := range grants {
		size += len(g.meta)
	}
	for size > maxMeta {
		oldest := -1
		for i, g := range grants {
			if len(g.meta) > 0 && (oldest < 0 || g.created < grants[oldest].created) {
				oldest = i
			}
		}
		size -= len(grants[oldest].meta)
		grants[oldest].meta = nil
	}
}

const (
	// keptPast is how many grants of a slot are remembered beside the latest.
	keptPast = provider.KeptGrants - 1
	// maxPast bounds the past of a block, where it has many layouts and services with long
	// names: the oldest grants are forgotten. Two blocks, their pasts and a request have to
	// fit into one change.
	maxPast = 128 << 10
	// mostGrant is the most that a grant takes without its service and meta.
	mostGrant = 64
)

// remember adds a grant that is replaced to a past, which has the latest first.
func remember(past []grant, replaced grant) []grant {
	replaced.meta = nil
	out, kept, size := []grant{replaced}, 1, 0
	for _, g := range past {
		if g.of(replaced.start, replaced.bitSeq) {
			if kept++; kept > keptPast {
				continue
			}
		}
		if size += mostGrant + len(g.service); size > maxPast {
			break
		}
		out = append(out, g)
	}
	return out
}

func encodeMeta(meta map[string]string) []byte {
	var b []byte
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		b = appendText(appendText(b, key), meta[key])
	}
	return b
}

func decodeMeta(b []byte) map[string]string {
	var meta map[string]string
	for r := record.NewReader(b); len(r.Rest()) > 0 && !r.Failed(); {
		if meta == nil {
			meta = map[string]string{}
		}
		key := r.Text(int(min(r.Number(), record.MaxValue)))
		meta[key] = r.Text(int(min(r.Number(), record.MaxValue)))
	}
	return meta
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}
