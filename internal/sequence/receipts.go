package sequence

import (
	"bytes"
	"encoding/binary"

	"github.com/kazahana/kazahana/internal/keyname"
)

// MaxReceipts is how many calls with a request ID a key remembers. A repetition of an older one
// is a new call.
const MaxReceipts = 128

// usualReceipt is how long most receipts are at most: a request ID, a step to the next value
// and a count.
const usualReceipt = 1 + keyname.MaxKept + 6

// Receipt is a call that was carried out.
type Receipt struct {
	RequestID string // as it is kept
	Last      int64  // the last value that it got
	Count     int
}

// receipts are the latest calls as records keep them, oldest first: each is its request ID, how
// far its last value is from the last value of the receipt before, and its count. A call adds
// one and does not read the others. A write leaves out receipts that are too many.
type receipts struct {
	text  []byte // of the receipts that were read
	added []byte // of later ones
	count int
	last  int64 // the last value of the newest
}

// receiptsIn are the receipts that a recorded state ends with.
func receiptsIn(text []byte) (all receipts, ok bool) {
	for rest := text; len(rest) > 0; all.count++ {
		if _, rest, ok = cutReceipt(rest, all.last, &all.last); !ok {
			return receipts{}, false
		}
	}
	all.text = text
	return all, all.count <= MaxReceipts
}

// cutReceipt reads the receipt with which a text begins, behind one with the value before.
func cutReceipt(text []byte, before int64, last *int64) (r Receipt, rest []byte, ok bool) {
	size := 1 + int(text[0])
	if size > 1+keyname.MaxKept || size > len(text) {
		return r, nil, false
	}
	id, rest := text[1:size], text[size:]
	further, n := binary.Varint(rest)
	if n <= 0 {
		return r, nil, false
	}
	count, rest := cutNumber(rest[n:])
	*last = before + further
	r = Receipt{RequestID: string(id), Last: *last, Count: int(count)}
	return r, rest, *last >= 0 && count >= 1 && count <= MaxCount
}

// size is how many bytes they have.
func (all receipts) size() int { return len(all.text) + len(all.added) }

// with adds a receipt. The receipts from before stay as they are.
func (all receipts) with(r Receipt) receipts {
	all.added = r.append(append(make([]byte, 0, len(all.added)+usualReceipt), all.added...), all.last)
	all.count++
	all.last = r.Last
	return all
}

// append appends the receipt as records keep it, behind one with the value before.
func (r Receipt) append(b []byte, before int64) []byte {
	b = append(append(b, byte(len(r.RequestID))), r.RequestID...)
	b = binary.AppendVarint(b, r.Last-before)
	return binary.AppendUvarint(b, uint64(r.Count))
}

// each calls yield with the receipts, oldest first, and with what comes after each.
func (all receipts) each(yield func(r Receipt, rest, added []byte) bool) {
	rest, added, last := all.text, all.added, int64(0)
	for len(rest)+len(added) > 0 {
		if len(rest) == 0 {
			rest, added = added, nil
		}
		var r Receipt
		if r, rest, _ = cutReceipt(rest, last, &last); !yield(r, rest, added) {
			return
		}
	}
}

// appendLatest appends the latest MaxReceipts of them.
func (all receipts) appendLatest(b []byte) []byte {
	over := all.count - MaxReceipts
	if over <= 0 {
		return append(append(b, all.text...), all.added...)
	}
	all.each(func(r Receipt, rest, added []byte) bool {
		if over--; over >= 0 {
			return true
		}
		b = append(append(r.append(b, 0), rest...), added...)
		return false
	})
	return b
}

// find finds the receipt of a request by the ID as it is kept.
func (all receipts) find(requestID string) (found Receipt, ok bool) {
	if id := []byte(requestID); !bytes.Contains(all.text, id) && !bytes.Contains(all.added, id) {
		return Receipt{}, false
	}
	over := all.count - MaxReceipts // none of the written ones is older
	all.each(func(r Receipt, _, _ []byte) bool {
		over--
		if ok = over < 0 && r.RequestID == requestID; ok {
			found = r
		}
		return !ok
	})
	return found, ok
}
