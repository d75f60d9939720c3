package sequence

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// The flags of a recorded state. The usual values of sequences take no room.
const (
	hasOptions = 1 << iota // else they are the default
	isResetNot             // OnMax is Fail
	hasUsed
	hasNumber // the life is a number
	hasLife   // the life is another text
	allFlags  = 1<<iota - 1
)

// encode is the state as records keep it:
//
//	flags last [step start max ttl] [used] [life] (request last count)...
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
	if err == nil && (s.Life == "0" || s.Life[0] != '0') { // it is written in one way only
		flags |= hasNumber
	} else if s.Life != "" {
		flags |= hasLife
	}
	b := append(make([]byte, 0, 64+s.Receipts.size()), flags)
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
	return s.Receipts.appendLatest(b)
}

var errDamaged = errors.New("the recorded state is damaged")

// decode reads what encode wrote. The state's receipts are a part of recorded.
func decode(recorded []byte) (s State, err error) {
	r := record.NewReader(recorded)
	flags := r.Byte()
	s.Options = DefaultOptions().recorded()
	s.Last = r.Number()
	if flags&hasOptions != 0 {
		s.Options.Step, s.Options.Start, s.Options.Max = r.Number(), r.Number(), r.Number()
		ttl := r.Number()
		if ttl > MaxTTL.Milliseconds() {
			return State{}, errDamaged
		}
		s.Options.TTL = time.Duration(ttl) * time.Millisecond
	}
	if flags&isResetNot != 0 {
		s.Options.OnMax = Fail
	}
	if flags&hasUsed != 0 {
		s.UsedMS = r.Number()
	}
	if flags&hasNumber != 0 {
		s.Life = strconv.FormatInt(r.Number(), 10)
	}
	if flags&hasLife != 0 {
		s.Life = r.Text(int(min(r.Number(), int64(len(recorded)))))
	}
	var whole bool
	s.Receipts, whole = receiptsIn(r.Rest())
	if r.Failed() || flags > allFlags || !whole || s.Options.Validate() != nil {
		return State{}, errDamaged
	}
	return s, nil
}

// cutNumber reads the number with which b begins. A negative one: there is none.
func cutNumber(b []byte) (n int64, rest []byte) {
	if len(b) > 0 && b[0] < 0x80 { // most are short
		return int64(b[0]), b[1:]
	}
	u, size := binary.Uvarint(b)
	if size <= 0 || u > math.MaxInt64 {
		return -1, nil
	}
	return int64(u), b[size:]
}
