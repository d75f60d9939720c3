package sequence

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"time"
)

// The flags of a recorded state. What is as in most sequences takes no room.
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
	if err == nil && strconv.FormatUint(life, 10) == s.Life {
		flags |= hasNumber
	} else if s.Life != "" {
		flags |= hasLife
	}
	b := append(make([]byte, 0, 64), flags)
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
	for _, r := range s.Receipts {
		text(r.RequestID)
		number(r.Last)
		number(int64(r.Count))
	}
	return b
}

var errDamaged = errors.New("the recorded state is damaged")

// decode reads what encode wrote.
func decode(b []byte) (s State, err error) {
	ok := len(b) > 0 && b[0] <= allFlags
	if !ok {
		return State{}, errDamaged
	}
	flags, rest := b[0], b[1:]
	number := func() int64 {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > math.MaxInt64 {
			ok, rest = false, nil
			return 0
		}
		rest = rest[size:]
		return int64(n)
	}
	text := func() string {
		n := number()
		if n > int64(len(rest)) {
			ok, n = false, int64(len(rest))
		}
		t := string(rest[:n])
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
		s.Life = text()
	}
	for len(rest) > 0 {
		r := Receipt{text(), number(), 0}
		count := number()
		ok = ok && count >= 1 && count <= MaxCount
		r.Count = int(count)
		s.Receipts = append(s.Receipts, r)
	}
	if !ok || s.Options.Validate() != nil {
		return State{}, errDamaged
	}
	return s, nil
}
