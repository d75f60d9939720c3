package etcd

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// space is the keys of one pool:
//
//	POOL/pool                        the timeline; written once
//	POOL/level/BB                    a bit_seq that has records; written once
//	POOL/slot/START/BB               the latest grant of a slot; never deleted
//	POOL/history/START/BB/N          an earlier or the latest grant; N goes round
//	POOL/request/HASH                which grants answered a request
//	POOL/cursor/BB/LOW-HIGH          the machine ID assigned last in a ring
//	POOL/last                        written with every change of a slot: its version counts them
//	POOL/clock/HASH                  what a host's clock showed; ends by itself
//	POOL/count/XX                    counters, those of some hosts; see count.go
//
// START is 16 hex digits and BB two decimal ones, so that keys sort like slots.
type space struct{ base string }

func spaceOf(prefix, pool string) space { return space{prefix + pool + "/"} }

func (s space) pool() string { return s.base + "pool" }
func (s space) last() string { return s.base + "last" }

func (s space) levels() string          { return s.base + "level/" }
func (s space) level(bitSeq int) string { return fmt.Sprintf("%s%02d", s.levels(), bitSeq) }

func (s space) slot(k pool.Key) string { return fmt.Sprintf("%s%02d", s.slotsFrom(k.Start), k.BitSeq) }

// slotsFrom is a bound: [slotsFrom(a), slotsFrom(b)) holds the records of all
// slots, of whatever bit_seq, that start in [a, b).
func (s space) slotsFrom(start int64) string { return fmt.Sprintf("%s%016x/", s.slots(), start) }

func (s space) slots() string { return s.base + "slot/" }

func (s space) history(k pool.Key) string {
	return fmt.Sprintf("%shistory/%016x/%02d/", s.base, k.Start, k.BitSeq)
}

// historyOf is the key of the grant with this number, which a later grant of
// the slot overwrites when its number is one round further.
func (s space) historyOf(k pool.Key, number, kept int64) string {
	return s.history(k) + strconv.FormatInt(number%kept, 10)
}

func (s space) requests() string { return s.base + "request/" }
func (s space) clocks() string   { return s.base + "clock/" }

// request is a hash, because a service's name and a request ID may hold
// anything, and because hashes are spread evenly (see trim).
func (s space) request(service, id string) string {
	sum := sha256.Sum256([]byte(service + "\x00" + id))
	return s.requests() + hex.EncodeToString(sum[:16])
}

func (s space) clock(host string) string {
	sum := sha256.Sum256([]byte(host))
	return s.clocks() + hex.EncodeToString(sum[:16])
}

func (s space) cursor(bitSeq int, ids provider.IDRange) string {
	return fmt.Sprintf("%scursor/%02d/%d-%d", s.base, bitSeq, ids.Low, ids.End-1)
}

// after is the end of the range of all keys that begin with a prefix.
func after(prefix string) string {
	b := []byte(prefix)
	b[len(b)-1]++ // a '/', never 0xff
	return string(b)
}

// poolRecord is the value of POOL/pool.
type poolRecord struct {
	EpochMS int64 `json:"epoch_ms"`
	BitTS   int   `json:"bit_ts"`
}

func (r poolRecord) timeline() snowflake.Timeline {
	return snowflake.Timeline{EpochMS: r.EpochMS, BitTS: r.BitTS}
}

// slotRecord is the value of POOL/slot/... and, without its secret, of
// POOL/history/... .
type slotRecord struct {
	ID       int64             `json:"id"`
	BitSeq   int               `json:"bit_seq"`
	Created  int64             `json:"created"`
	Expired  int64             `json:"expired"`
	End      int64             `json:"end"`
	Released bool              `json:"released,omitempty"`
	Secret   string            `json:"secret,omitempty"`
	Service  string            `json:"service,omitempty"`
	Meta     map[string]string `json:"meta,omitempty"`
	Number   int64             `json:"number"` // how many grants of the slot came before
	Kept     int64             `json:"kept"`   // how many of them the history has room for
}

func (r slotRecord) key() pool.Key { return pool.Key{Start: r.ID << r.BitSeq, BitSeq: r.BitSeq} }

// record is the record as package pool has it.
func (r slotRecord) record(timeline snowflake.Timeline) pool.Record {
	return pool.Record{
		Lease: provider.Terms{Timeline: timeline}.WithBitSeq(r.BitSeq).Lease(r.ID, r.Created, r.Expired, r.End, r.Secret),
		End:   r.End, Released: r.Released, Service: r.Service, Meta: r.Meta, Number: r.Number,
	}
}

// stored is what is kept of a record, of a slot whose history has room for `kept`.
func storedOf(r pool.Record, kept int64) slotRecord {
	return slotRecord{
		ID: r.Lease.ID, BitSeq: r.Lease.BitSeq, Created: r.Lease.Created, Expired: r.Lease.Expired, End: r.End, Released: r.Released,
		Secret: r.Lease.Secret, Service: r.Service, Meta: r.Meta, Number: r.Number, Kept: kept,
	}
}

// requestRecord is the value of POOL/request/... .
type requestRecord struct {
	// Created is when the request was first answered, in Unix ms, and End when
	// the last of its grants would have ended, had none been extended.
	Created int64 `json:"created"`
	End     int64 `json:"end"`
	// Open says that its first caller has not finished: a request for many
	// leases is granted in several steps. Whoever repeats the request closes
	// it, and what was granted by then is the answer.
	Open   bool          `json:"open,omitempty"`
	Grants []grantRecord `json:"grants"`
}

// grantRecord points at a slot's record as it was when it was granted.
type grantRecord struct {
	ID     int64  `json:"id"`
	BitSeq int    `json:"bit_seq"`
	Secret string `json:"secret"`
}

func (g grantRecord) slot() pool.Key { return pool.Key{Start: g.ID << g.BitSeq, BitSeq: g.BitSeq} }

// clockRecord is the value of POOL/clock/... .
type clockRecord struct {
	Host  string `json:"host"`
	NowMS int64  `json:"now"`
	TTLMS int64  `json:"ttl"` // how long etcd keeps it
}

// encode never fails: every type above can be written as JSON.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("etcd: a record cannot be encoded: %v", err))
	}
	return string(b)
}

func decode[T any](key, value []byte) (v T, err error) {
	if err := json.Unmarshal(value, &v); err != nil {
		return v, fmt.Errorf("the value of the key %q is damaged, and nothing is granted past it: %w", key, err)
	}
	return v, nil
}

// stored is a slot's record with its mod revision, 0 when there is none.
type stored struct {
	record slotRecord
	rev    int64
}

// slotsOf reads keys and values of POOL/slot/... . The key says which slot it is: a value
// that disagrees was put there by somebody else.
func (p *Provider) slotsOf(s space, kvs []*mvccpb.KeyValue) ([]stored, error) {
	all := make([]stored, 0, len(kvs))
	for _, kv := range kvs {
		r, err := decode[slotRecord](kv.Key, kv.Value)
		if err == nil && (r.BitSeq < 0 || r.BitSeq >= snowflake.ValueBits || s.slot(r.key()) != string(kv.Key)) {
			err = fmt.Errorf("the value of the key %q is of machine ID %d (bit_seq %d): somebody else wrote it, and nothing is granted past it",
				kv.Key, r.ID, r.BitSeq)
		}
		if err != nil {
			return nil, p.explain(err)
		}
		all = append(all, stored{r, kv.ModRevision})
	}
	return all, nil
}

// mark is as much of a slot's record as finding a free slot needs.
type mark struct {
	pool.Mark
	number int64
	rev    int64 // the key's mod revision
}

func (s stored) mark() mark {
	return mark{pool.Mark{Key: s.record.key(), Created: s.record.Created, End: s.record.End}, s.record.Number, s.rev}
}

func compareMarks(a, b mark) int { return a.Key.Compare(b.Key) }

// poolMarks is the marks as package pool has them.
func poolMarks(marks []mark) []pool.Mark {
	all := make([]pool.Mark, len(marks))
	for i, m := range marks {
		all[i] = m.Mark
	}
	return all
}

// levelsOf reads the keys of POOL/level/... .
func levelsOf(kvs []*mvccpb.KeyValue) (levels []int, err error) {
	for _, kv := range kvs {
		text := string(kv.Key[strings.LastIndexByte(string(kv.Key), '/')+1:])
		level, err := strconv.Atoi(text)
		if err != nil || level < 0 || level >= snowflake.ValueBits {
			return nil, fmt.Errorf("the key %q names no bit_seq: somebody else wrote it", kv.Key)
		}
		levels = append(levels, level)
	}
	return levels, nil
}
