package pool

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// blockBits says how many slots of a pool's own layout a block has. No slot of a service is wider
// than a block, since its bit_seq is near that of the pool.
const blockBits = provider.MaxApart

// layout says how a pool's blocks are cut, and from when on they count.
type layout struct {
	bitSeq int   // from which that of all leases differs by provider.MaxApart at most
	number int64 // of the layout, which is in the keys of the blocks; Init begins another one
	// sinceMS is when all grants had ended that were made before the layout. It is as if they had
	// all been of every slot.
	sinceMS int64
}

// head is a pool's record of itself. It is written with the first grant, and changes when Init
// begins another layout.
type head struct {
	timeline snowflake.Timeline
	layout
	key [32]byte // makes the secrets of leases
	// mark is the Init that looks at the blocks. Each write of a block takes it away, and so
	// the Init learns of that. Zero: there is none.
	mark mark
}

type mark [16]byte

// newHead is the head of a pool that does not exist yet.
func newHead(timeline snowflake.Timeline, bitSeq int) head {
	h := head{timeline: timeline, layout: layout{bitSeq: bitSeq}}
	rand.Read(h.key[:]) // never fails (crypto/rand ends the program instead)
	return h
}

func (h head) value() []byte {
	b := binary.AppendVarint([]byte{format}, h.timeline.EpochMS)
	b = append(b, byte(h.timeline.BitTS), byte(h.bitSeq))
	b = binary.AppendUvarint(b, uint64(h.number))
	b = binary.AppendUvarint(b, uint64(h.sinceMS))
	return seal(append(append(b, h.key[:]...), h.mark[:]...))
}

func parseHead(value []byte) (h head, err error) {
	r := unseal(value)
	if r.Byte() != format {
		r.Fail()
	}
	h.timeline.EpochMS = r.Signed()
	h.timeline.BitTS, h.bitSeq = int(r.Byte()), int(r.Byte())
	h.number, h.sinceMS = r.Number(), r.Number()
	h.key = [32]byte(r.Bytes(len(h.key)))
	h.mark = mark(r.Bytes(len(h.mark)))
	if r.Failed() || len(r.Rest()) > 0 || h.timeline.Validate() != nil || h.bitSeq >= h.timeline.LowBits() {
		return head{}, errFormat
	}
	return h, nil
}

// HeadKey is the key of a pool's head.
func HeadKey(pool string) string { return keys{pool: pool}.head() }

// Check reports, wrapping provider.ErrInvalid, that a pool with this head does not grant on
// these terms. No value, no pool. place names the store in errors.
func Check(place string, value []byte, t provider.Terms) error {
	if value == nil {
		return nil
	}
	h, err := parseHead(value)
	if err != nil {
		return unreadable(place, HeadKey(t.Pool), err)
	}
	return h.check(t)
}

func (h head) check(t provider.Terms) error {
	if h.timeline != t.Timeline {
		return provider.TimelineError(t.Pool, h.timeline, t.Timeline)
	}
	if t.BitSeq < h.bitSeq-provider.MaxApart || t.BitSeq > h.bitSeq+provider.MaxApart {
		return fmt.Errorf("%w: pool %q began with bit_seq %d, and %d was asked for: all layouts of a pool differ from that by at most %d; "+
			"choose another pool", provider.ErrInvalid, t.Pool, h.bitSeq, t.BitSeq, provider.MaxApart)
	}
	return nil
}

// shift is how many bits of a machine ID of that bit_seq say which of a block's it is.
func (h head) shift(bitSeq int) int { return h.bitSeq + blockBits - bitSeq }

// blockOf is the number of the block that has the low bits.
func (h head) blockOf(low int64) int64 { return low >> (h.bitSeq + blockBits) }

// has reports whether the pool may have granted the machine ID.
func (h head) has(id int64, bitSeq int) bool {
	if apart := bitSeq - h.bitSeq; max(apart, -apart) > provider.MaxApart || bitSeq < 0 || bitSeq >= h.timeline.LowBits() {
		return false
	}
	return provider.Terms{Timeline: h.timeline}.WithBitSeq(bitSeq).Range().Contains(id)
}

// secret returns the secret of a grant.
func (h head) secret(g grant) string {
	mac := hmac.New(sha256.New, h.key[:])
	mac.Write(g.nonce[:])
	b := binary.BigEndian.AppendUint64(nil, uint64(g.start))
	mac.Write(append(b, byte(g.bitSeq)))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// lease is the grant as its holder has it, without the secret.
func (h head) lease(g grant) lease.Lease {
	t := provider.Terms{Timeline: h.timeline}.WithBitSeq(g.bitSeq)
	return t.Lease(g.id(), g.created, g.expired, max(g.end, g.expired), "")
}

// granted is the lease with its secret.
func (h head) granted(g grant) lease.Lease {
	l := h.lease(g)
	l.Secret = h.secret(g)
	return l
}

// signed is the grant as the rules of leases see it, with its secret.
func (h head) signed(g grant) provider.Record {
	return provider.Record{Lease: h.granted(g), End: g.end, Released: g.released}
}

// shown is the grant as others may see it.
func (h head) shown(g grant) provider.Record {
	return provider.Record{Lease: h.lease(g), Service: g.service, Meta: decodeMeta(g.meta), End: g.end, Released: g.released}
}

// keys are the names of a pool's records, of the blocks of one layout.
type keys struct {
	pool   string
	layout int64
}

func (h head) keys(pool string) keys { return keys{pool, h.number} }

func (k keys) head() string { return "head/" + k.pool }

func (k keys) blocks() string { return fmt.Sprintf("block/%s/%x/", k.pool, k.layout) }

func (k keys) block(number int64) string { return fmt.Sprintf("%s%012x", k.blocks(), number) }

func (k keys) past(number int64) string {
	return fmt.Sprintf("past/%s/%x/%012x", k.pool, k.layout, number)
}

func (k keys) count(shard int64) string { return fmt.Sprintf("count/%s/%x", k.pool, shard) }

// requestKey is where a request is remembered: of all pools, since a service may move to
// another one.
func requestKey(service, request string) string {
	sum := sha256.Sum256([]byte(service + "\x00" + request))
	return "request/" + hex.EncodeToString(sum[:16])
}
