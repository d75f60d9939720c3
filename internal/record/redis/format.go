package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/kazahana/kazahana/internal/record"
)

// The flags of a record. A record with times begins with the moment of its commit, six bytes with
// a first bit of 0; then come the flags.
const (
	isUntimed   = 1 << 7 // also tells a record without times from one with them
	isLong      = 1 << 6 // the version has 8 bytes, not 4
	hasMark     = 1 << 0
	isTold      = 1 << 2
	isUnlisted  = 1 << 3
	allFlags    = isUntimed | isLong | hasMark | isTold | isUnlisted
	momentBytes = 6
)

const (
	// tagBytes is how much of a record is compared. A shorter one is compared as a whole,
	// and a longer one by its version and what follows.
	tagBytes = 40
	// shortBytes is how long a record may be that has a version of 4 bytes.
	shortBytes = 32
	// headBytes is the most that comes before a value.
	headBytes = momentBytes + 1 + 8 + 3*binary.MaxVarintLen64
)

var errDamaged = errors.New("is damaged")

func appendMoment(b []byte, ms int64) []byte {
	var all [8]byte
	binary.BigEndian.PutUint64(all[:], uint64(ms))
	return append(b, all[8-momentBytes:]...)
}

// moment reads what appendMoment wrote.
func moment(text string) int64 {
	var all [8]byte
	copy(all[8-momentBytes:], text)
	return int64(binary.BigEndian.Uint64(all[:]))
}

// nonce is the version of a call's writes. Short records have the first half of it.
type nonce [8]byte

// known is a record as it was last seen. Its bytes are never changed.
type known struct {
	tag    []byte // the part that is compared; none: it is absent
	value  []byte
	timed  bool
	atMS   int64 // of the commit, where it is timed
	termMS int64
	keepMS int64
	mark   int64
	told   bool
	listed bool
}

func (k known) absent() bool { return len(k.tag) == 0 }

// endMS is when the record's term ends, 0 where it has none.
func (k known) endMS() int64 {
	if k.termMS == 0 {
		return 0
	}
	return k.atMS + k.termMS
}

func (k known) dueMS() int64 { return k.atMS + k.termMS + k.keepMS }

// vanishes reports whether Redis itself deletes the record when it is due.
func (k known) vanishes() bool {
	return k.timed && k.mark == 0 && !k.told && !k.listed
}

// tagOf is the part of a stored record that is compared.
func tagOf(text []byte) []byte { return text[:min(len(text), tagBytes)] }

// size is about how many bytes the record takes here.
func (k known) size() int { return len(k.tag) + len(k.value) }

// record returns the record that a rule is shown.
func (k known) record(nowMS int64) record.Record {
	return record.WithTerm(slices.Clip(k.value), k.endMS(), nowMS)
}

// encode is the record of a write, and its text as it is stored, apart from the moment of its
// commit:
//
//	flags version [term keep] [mark] value
//
// Numbers are varints.
func encode(w record.Write, n nonce) (k known, stored []byte) {
	k = known{
		timed: w.TermMS+w.KeepMS > 0, termMS: w.TermMS, keepMS: w.KeepMS, mark: w.Mark,
		told: w.Tell, listed: !w.Unlisted,
	}
	var flags byte
	var room [64]byte
	head := room[:0]
	if k.timed {
		head = binary.AppendUvarint(head, uint64(w.TermMS))
		head = binary.AppendUvarint(head, uint64(w.KeepMS))
	} else {
		flags |= isUntimed
	}
	if k.mark != 0 {
		flags |= hasMark
		head = binary.AppendUvarint(head, uint64(w.Mark))
	}
	if k.told {
		flags |= isTold
	}
	if !k.listed {
		flags |= isUnlisted
	}
	version := n[:4]
	if 1+len(version)+len(head)+len(w.Value) > shortBytes {
		flags |= isLong
		version = n[:]
	}
	stored = append(make([]byte, 0, 1+len(version)+len(head)+len(w.Value)), flags)
	stored = append(append(append(stored, version...), head...), w.Value...)
	k.tag, k.value = tagOf(stored), stored[len(stored)-len(w.Value):]
	return k, stored
}

// committed is a record that encode made, with the moment of its commit.
func (k known) committed(atMS int64) known {
	if k.timed {
		k.atMS = atMS
		tag := appendMoment(make([]byte, 0, momentBytes+tagBytes), atMS)
		k.tag = tagOf(append(tag, k.tag...))
	}
	return k
}

// parse reads a record, "" for none. The value may be cut.
func parse(key string, text []byte) (known, error) {
	if len(text) == 0 {
		return known{}, nil
	}
	r := record.NewReader(text)
	k := known{timed: text[0] < isUntimed}
	if k.timed {
		k.atMS = moment(string(r.Bytes(momentBytes)))
	}
	flags := r.Byte()
	version := len(nonce{}) / 2
	if flags&isLong != 0 {
		version = len(nonce{})
	}
	r.Bytes(version)
	if k.timed {
		k.termMS, k.keepMS = r.Number(), r.Number()
	}
	if flags&hasMark != 0 {
		k.mark = r.Number()
	}
	k.told, k.listed = flags&isTold != 0, flags&isUnlisted == 0
	if r.Failed() || flags&^allFlags != 0 || k.timed == (flags&isUntimed != 0) {
		return known{}, fmt.Errorf("record %q %w: %.100q", key, errDamaged, text)
	}
	k.tag, k.value = tagOf(text), r.Rest()
	return k, nil
}
