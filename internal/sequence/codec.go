package sequence

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/record/receipt"
)

// The flags of a recorded state. What is as in most sequences takes no room.
const (
	hasOptions = 1 << iota // else they are the default
	isResetNot             // OnMax is Fail
	hasUsed
	hasNumber // the life is a number
	hasLife   // the life is another text
	hasMoved  // receipts have moved to windows, or are forgotten
	allFlags  = 1<<iota - 1
)

// encode is the state as records keep it:
//
//	flags last [step start max ttl] [used] [life] [moved forgotten when began] (request last count)...
//
// Numbers are varints; texts come after their length. The time of the last use matters
// only where there is a TTL.
func (s State) encode() []byte {
	o, flags := s.Options.recorded(), byte(0)
	if o != DefaultOptions().recorded() {
		flags |= hasOptions
	}
	if o.OnMax == Fail {
		flags |= isResetNot
	}
	if o.TTL > 0 {
		flags |= hasUsed
	}
	life, err := strconv.ParseUint(s.Life, 10, 63)
	if err == nil && strconv.FormatUint(life, 10) == s.Life {
		flags |= hasNumber
	} else if s.Life != "" {
		flags |= hasLife
	}
	if s.Moved != 0 || s.Forgotten != 0 || s.Began != 0 {
		flags |= hasMoved
	}
	b := append(make([]byte, 0, 64+24*len(s.Receipts)), flags)
	number := func(n int64) { b = binary.AppendUvarint(b, uint64(n)) }
	text := func(t string) {
		number(int64(len(t)))
		b = append(b, t...)
	}
	number(s.Last)
	if flags&hasOptions != 0 {
		number(o.Step)
		number(o.Start)
		number(o.Max)
		number(o.ttlMS())
	}
	if flags&hasUsed != 0 {
		number(s.UsedMS)
	}
	if flags&hasNumber != 0 {
		number(int64(life))
	}
	if flags&hasLife != 0 {
		text(s.Life)
	}
	if flags&hasMoved != 0 {
		number(int64(s.Moved))
		number(int64(s.Forgotten))
		number(s.MovedMS)
		number(s.Began)
	}
	for _, r := range s.Receipts {
		begin := len(b)
		b = append(b, r.RequestID...)
		if r.DoneMS != 0 {
			b[begin] |= idUntimed
		}
		number(r.Last)
		number(int64(r.Count))
		if r.DoneMS != 0 {
			number(r.DoneMS)
		}
	}
	return b
}

// savedID is a request ID as records keep it: 16 bytes where it is a UUID in lower case. It is
// made once for a call, and then copied and compared as it is.
type savedID string

// How a savedID begins: with the length of the request ID, or with one of these.
const (
	idHex     = 0x7f // 16 bytes, written in hexadecimal
	idUUID    = 0x7e // likewise, with hyphens
	idLong    = 0x7d // a byte with the length
	idUntimed = 0x80 // in a recorded state only
)

const (
	uuidBytes = 16
	// receiptBytes is how long most receipts are at least: a UUID, a value and a count.
	receiptBytes = 1 + uuidBytes + 2
)

func saveID(id string) savedID {
	kind, digits := byte(idHex), id
	if receipt.IsUUID(id) {
		kind, digits = idUUID, id[:8]+id[9:13]+id[14:18]+id[19:23]+id[24:]
	}
	if len(digits) == 2*uuidBytes && digits == strings.ToLower(digits) {
		b, err := hex.AppendDecode([]byte{kind}, []byte(digits))
		if err == nil {
			return savedID(b)
		}
	}
	if len(id) >= idLong {
		return savedID([]byte{idLong, byte(len(id))}) + savedID(id)
	}
	return savedID([]byte{byte(len(id))}) + savedID(id)
}

// String is the request ID.
func (s savedID) String() string {
	switch s[0] {
	case idHex, idUUID:
		x := hex.EncodeToString([]byte(s[1:]))
		if s[0] == idHex {
			return x
		}
		return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
	case idLong:
		return string(s[2:])
	}
	return string(s[1:])
}

// madeAt is receipt.MadeAt of the request ID.
func (s savedID) madeAt(latestMS int64) (receipt.Stamp, bool) {
	if s[0] == idHex || s[0] == idUUID {
		return receipt.MadeAtUUID(string(s[1:]), latestMS)
	}
	return receipt.MadeAt(s.String(), latestMS)
}

// savedSize is how long the savedID is with which a text begins.
func savedSize(text string) int {
	switch kind := text[0] &^ idUntimed; {
	case kind >= idUUID:
		return 1 + uuidBytes
	case kind == idLong && len(text) > 1:
		return 2 + int(text[1])
	default:
		return 1 + int(kind)
	}
}

var errDamaged = errors.New("the recorded state is damaged")

// decode reads what encode wrote. Its texts are parts of one string, so that a state with many
// receipts is read with few allocations.
func decode(recorded []byte) (s State, err error) {
	b := string(recorded)
	ok := len(b) > 0 && b[0] <= allFlags
	if !ok {
		return State{}, errDamaged
	}
	flags, rest := b[0], b[1:]
	number := func() int64 {
		n, size := binary.Uvarint(recorded[len(recorded)-len(rest):])
		if size <= 0 || n > math.MaxInt64 {
			ok, rest = false, ""
			return 0
		}
		rest = rest[size:]
		return int64(n)
	}
	taken := func(n int64) string {
		if n > int64(len(rest)) {
			ok, n = false, int64(len(rest))
		}
		t := rest[:n]
		rest = rest[n:]
		return t
	}
	s.Options = DefaultOptions().recorded()
	s.Last = number()
	if flags&hasOptions != 0 {
		s.Options.Step, s.Options.Start, s.Options.Max = number(), number(), number()
		ttl := number()
		ok = ok && ttl <= MaxTTL.Milliseconds()
		s.Options.TTL = time.Duration(ttl) * time.Millisecond
	}
	if flags&isResetNot != 0 {
		s.Options.OnMax = Fail
	}
	if flags&hasUsed != 0 {
		s.UsedMS = number()
	}
	if flags&hasNumber != 0 {
		s.Life = strconv.FormatInt(number(), 10)
	}
	if flags&hasLife != 0 {
		s.Life = taken(number())
	}
	if flags&hasMoved != 0 {
		s.Moved, s.Forgotten, s.MovedMS, s.Began = receipt.Stamp(number()), receipt.Stamp(number()), number(), number()
	}
	if ok && len(rest) > 0 {
		s.Receipts = make([]Receipt, 0, len(rest)/receiptBytes+1)
	}
	for ok && len(rest) > 0 {
		untimed := rest[0]&idUntimed != 0
		id := savedID(taken(int64(savedSize(rest))))
		if untimed && ok {
			id = savedID([]byte{id[0] &^ idUntimed}) + id[1:]
		}
		r := Receipt{RequestID: id, Last: number()}
		count := number()
		ok = ok && count >= 1 && count <= MaxCount
		if r.Count = int(count); untimed {
			r.DoneMS = number()
		}
		s.Receipts = append(s.Receipts, r)
	}
	if !ok || s.Options.Validate() != nil {
		return State{}, errDamaged
	}
	return s, nil
}
