package lock

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/receipt"
)

// valueFormat is the first byte of a value.
const valueFormat = 1

// Flags of a value, its second byte.
const (
	valueReleased = 1 << iota
	// valueFresh: the lease began a term before the record's end.
	valueFresh
	valueHasLife
	// valueTerm: the latest renewal had another term than the acquire.
	valueTerm
	valueMarks // of owners
	valueNote
)

// Flags of a receipt, beside its Op.
const (
	receiptOwner   = 1 << (iota + 4) // another owner than the latest lease's
	receiptLease                     // another lease
	receiptUntimed                   // the request ID tells no time
)

// How a request ID begins, where it is not its length.
const (
	idIsLease = 0xff // it is the lease ID
	idIsHex   = 0xfe // 16 bytes, written in hexadecimal
	idIsUUID  = 0xfd // likewise, with hyphens
)

// receiptBytes is how long most receipts are at least: that of an acquire, whose request ID is
// the lease's.
const receiptBytes = 22

// usualReceipt is how long most receipts are at most: with another lease, and its token.
const usualReceipt = receiptBytes + 16

// leaseDigits is how long a lease ID is, written in hexadecimal.
const leaseDigits = 32

var errDamaged = errors.New("its record is damaged")

// value is the state as records keep it. The end of a lease is the record's own. fresh:
// the lease is granted by this write.
func (s State) value(fresh bool) []byte {
	b := make([]byte, 0, 128+len(s.Receipts)*usualReceipt)
	var flags byte
	if s.Status == Released {
		flags |= valueReleased
	}
	if fresh {
		flags |= valueFresh
	}
	if s.Life != 0 {
		flags |= valueHasLife
	}
	if s.TermMS != s.TTLMS {
		flags |= valueTerm
	}
	if len(s.Marks) > 0 {
		flags |= valueMarks
	}
	if s.Note != "" {
		flags |= valueNote
	}
	b = append(b, valueFormat, flags)
	b = binary.AppendUvarint(b, uint64(s.Token))
	b = appendLease(b, s.LeaseID)
	b = appendText(b, s.Owner)
	b = binary.AppendUvarint(b, uint64(s.TTLMS))
	b = appendID(b, s.RequestID, s.LeaseID)
	if s.Life != 0 {
		b = binary.BigEndian.AppendUint64(b, s.Life)
	}
	if flags&valueFresh == 0 {
		b = binary.AppendVarint(b, s.AcquiredMS)
	}
	if s.Status == Released {
		b = binary.AppendVarint(b, s.ExpiresMS-s.AcquiredMS)
	}
	if flags&valueTerm != 0 {
		b = binary.AppendUvarint(b, uint64(s.TermMS))
	}
	if s.Note != "" {
		b = append(binary.AppendUvarint(b, uint64(len(s.Note))), s.Note...)
	}
	if flags&valueMarks != 0 {
		b = appendMarks(b, s.Marks)
	}
	for _, r := range s.Receipts {
		b = s.appendReceipt(b, r)
	}
	return b
}

// appendMarks writes each time as its distance from the one before.
func appendMarks(b []byte, marks []Mark) []byte {
	b = append(b, byte(len(marks)))
	var before receipt.Stamp
	for _, m := range marks {
		b = binary.AppendUvarint(b, uint64(m.Owner))
		b = binary.AppendVarint(b, int64(m.Acquire-before))
		b = binary.AppendVarint(b, int64(m.Change-m.Acquire))
		before = m.Change
	}
	return b
}

func (s State) appendReceipt(b []byte, r Receipt) []byte {
	flags := byte(r.Op)
	if r.Owner != s.Owner {
		flags |= receiptOwner
	}
	if r.LeaseID != s.LeaseID {
		flags |= receiptLease
	}
	if r.Untimed {
		flags |= receiptUntimed
	}
	b = append(b, flags)
	if flags&receiptOwner != 0 {
		b = appendText(b, r.Owner)
	}
	if flags&receiptLease != 0 {
		b = appendLease(b, r.LeaseID)
		b = binary.AppendUvarint(b, uint64(r.Token))
	}
	b = appendID(b, r.RequestID, r.LeaseID)
	if r.Untimed || r.Op == Renew {
		b = binary.AppendVarint(b, r.DoneMS)
	}
	if r.Op != Release {
		return binary.AppendUvarint(b, uint64(r.TTLMS))
	}
	b = binary.AppendVarint(b, r.AcquiredMS)
	b = binary.AppendVarint(b, r.ExpiresMS-r.AcquiredMS)
	if !r.Untimed {
		b = binary.AppendVarint(b, r.DoneMS-r.AcquiredMS)
	}
	return b
}

func appendText(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

func appendLease(b []byte, id string) []byte {
	b, err := hex.AppendDecode(b, []byte(id))
	if err != nil {
		panic("lock: a lease ID was not validated: " + err.Error())
	}
	return b
}

func appendID(b []byte, id, leaseID string) []byte {
	switch {
	case id == leaseID:
		return append(b, idIsLease)
	case leaseIDForm.Matches(id):
		return appendLease(append(b, idIsHex), id)
	case receipt.IsUUID(id):
		if hex := id[:8] + id[9:13] + id[14:18] + id[19:23] + id[24:]; leaseIDForm.Matches(hex) {
			return appendLease(append(b, idIsUUID), hex)
		}
	}
	return appendText(b, id)
}

// inHex is hex.EncodeToString without a second copy.
func inHex(b []byte) string {
	var text strings.Builder
	text.Grow(hex.EncodedLen(len(b)))
	var part [64]byte
	for chunk := range slices.Chunk(b, len(part)/2) {
		text.Write(hex.AppendEncode(part[:0], chunk))
	}
	return text.String()
}

// parseState reads what value wrote, with the record's term as it is now. The marks
// and receipts of a head may be incomplete, and are left out.
func parseState(r record.Record, head bool) (State, error) {
	v := reader{rest: r.Value, text: string(r.Value), digits: inHex(r.Value)}
	format, flags := v.byte(), v.byte()
	if format != valueFormat {
		return State{}, fmt.Errorf("%w: it has the format %d, and this kazahanad knows %d", errDamaged, format, valueFormat)
	}
	s := State{Token: int64(v.uvarint()), LeaseID: v.lease(), Owner: v.name(), TTLMS: int64(v.uvarint()), Status: Active, ExpiresMS: r.EndMS}
	s.RequestID = v.id(s.LeaseID)
	if flags&valueHasLife != 0 {
		s.Life = binary.BigEndian.Uint64(v.take(8))
	}
	if s.AcquiredMS = s.ExpiresMS - s.TTLMS; flags&valueFresh == 0 {
		s.AcquiredMS = v.varint()
	}
	switch {
	case flags&valueReleased != 0:
		s.Status, s.ExpiresMS = Released, s.AcquiredMS+v.varint()
	case r.Over:
		s.Status = Expired
	}
	if s.TermMS = s.TTLMS; flags&valueTerm != 0 {
		s.TermMS = int64(v.uvarint())
	}
	if flags&valueNote != 0 {
		s.Note = v.string(int(min(v.uvarint(), MaxNote+1)))
	}
	if flags&valueMarks != 0 && !head {
		s.Marks = v.marks()
	}
	if !head && len(v.rest) > 0 {
		s.Receipts = make([]Receipt, 0, len(v.rest)/receiptBytes+1)
	}
	for !head && !v.failed && len(v.rest) > 0 {
		s.Receipts = append(s.Receipts, v.receipt(s))
	}
	if v.failed || s.Token < 1 || s.Token > MaxToken {
		return State{}, fmt.Errorf("%w: it is no lock: %.100x", errDamaged, r.Value)
	}
	return s, nil
}

// reader reads a value. Once it has failed it returns zero values. Its texts are parts of
// two strings, so that a value with many receipts is read with few allocations.
type reader struct {
	rest   []byte
	text   string // the value
	digits string // the value in hexadecimal
	failed bool
}

// at is where the rest of the value begins.
func (v *reader) at() int { return len(v.text) - len(v.rest) }

func (v *reader) take(n int) []byte {
	if v.failed = v.failed || len(v.rest) < n; v.failed {
		return make([]byte, n)
	}
	taken := v.rest[:n]
	v.rest = v.rest[n:]
	return taken
}

func (v *reader) byte() byte { return v.take(1)[0] }

func (v *reader) uvarint() uint64 {
	n, size := binary.Uvarint(v.rest)
	v.take(max(size, 0))
	v.failed = v.failed || size <= 0
	return n
}

func (v *reader) varint() int64 {
	n, size := binary.Varint(v.rest)
	v.take(max(size, 0))
	v.failed = v.failed || size <= 0
	return n
}

func (v *reader) name() string { return v.string(int(v.byte())) }

func (v *reader) string(n int) string {
	if v.take(n); v.failed {
		return ""
	}
	return v.text[v.at()-n : v.at()]
}

func (v *reader) lease() string {
	if v.take(leaseDigits / 2); v.failed {
		return ""
	}
	return v.digits[2*v.at()-leaseDigits : 2*v.at()]
}

func (v *reader) id(leaseID string) string {
	switch n := v.byte(); n {
	case idIsLease:
		return leaseID
	case idIsHex:
		return v.lease()
	case idIsUUID:
		x := v.lease()
		if v.failed {
			return ""
		}
		return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
	default:
		return v.string(int(n))
	}
}

func (v *reader) marks() []Mark {
	marks := make([]Mark, v.byte())
	var before receipt.Stamp
	for i := range marks {
		m := &marks[i]
		m.Owner, m.Acquire = uint32(v.uvarint()), before+receipt.Stamp(v.varint())
		m.Change = m.Acquire + receipt.Stamp(v.varint())
		before = m.Change
	}
	return marks
}

func (v *reader) receipt(s State) Receipt {
	flags := v.byte()
	r := Receipt{Op: Op(flags & 0xf), Owner: s.Owner, LeaseID: s.LeaseID, Token: s.Token}
	if flags&receiptOwner != 0 {
		r.Owner = v.name()
	}
	if flags&receiptLease != 0 {
		r.LeaseID, r.Token = v.lease(), int64(v.uvarint())
	}
	r.RequestID = v.id(r.LeaseID)
	if r.Untimed = flags&receiptUntimed != 0; r.Untimed || r.Op == Renew {
		r.DoneMS = v.varint()
	}
	if r.Op != Release {
		r.TTLMS = int64(v.uvarint())
		return r
	}
	r.AcquiredMS = v.varint()
	r.ExpiresMS = r.AcquiredMS + v.varint()
	if !r.Untimed {
		r.DoneMS = r.AcquiredMS + v.varint()
	}
	return r
}
