package sequence

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/kazahana/kazahana/internal/record/receipt"
)

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
	// receiptBytes is how long most receipts are at most: a UUID, a value and a count.
	receiptBytes = 1 + uuidBytes + 12
)

func saveID(id string) savedID {
	kind, digits := byte(0), make([]byte, 0, 2*uuidBytes)
	switch {
	case receipt.IsUUID(id):
		kind, digits = idUUID, append(append(append(append(append(digits, id[:8]...), id[9:13]...), id[14:18]...), id[19:23]...), id[24:]...)
	case len(id) == 2*uuidBytes:
		kind, digits = idHex, append(digits, id...)
	}
	if kind != 0 && !bytes.ContainsAny(digits, "ABCDEF") {
		b := [1 + uuidBytes]byte{kind}
		if _, err := hex.Decode(b[1:], digits); err == nil {
			return savedID(b[:])
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
func savedSize(text []byte) int {
	switch kind := text[0] &^ idUntimed; {
	case kind >= idUUID:
		return 1 + uuidBytes
	case kind == idLong && len(text) > 1:
		return 2 + int(text[1])
	default:
		return 1 + int(kind)
	}
}

// receipts are receipts as records keep them, oldest first: request last count [done]. A call
// adds one and does not read the others.
type receipts struct {
	text  []byte // of those that were read
	added []byte // of later ones
	timed int    // how many are of IDs that tell a time
	// firstMS is the earliest DoneMS of the others, 0 where there are none.
	firstMS int64
}

// size is how many bytes they have.
func (all receipts) size() int { return len(all.text) + len(all.added) }

// receiptsIn are the receipts that a recorded state ends with.
func receiptsIn(text []byte) (all receipts, ok bool) {
	for rest := text; len(rest) > 0; {
		var r Receipt
		if _, rest, ok = r.cut(rest); !ok {
			return receipts{}, false
		}
		all.count(r.DoneMS)
	}
	all.text = text
	return all, true
}

// receiptsOf is the opposite of list.
func receiptsOf(list []Receipt) (all receipts) {
	all.text = make([]byte, 0, receiptBytes*len(list))
	for _, r := range list {
		all.text = r.append(all.text)
		all.count(r.DoneMS)
	}
	return all
}

// cut reads the receipt with which a text begins; its savedID, as it is recorded, is apart.
func (r *Receipt) cut(text []byte) (id, rest []byte, ok bool) {
	size := savedSize(text)
	if size > len(text) {
		return nil, nil, false
	}
	id, rest = text[:size], text[size:]
	var count int64
	r.Last, rest = cutNumber(rest)
	count, rest = cutNumber(rest)
	if r.Count = int(count); id[0]&idUntimed != 0 {
		r.DoneMS, rest = cutNumber(rest)
	}
	return id, rest, r.Last >= 0 && count >= 1 && count <= MaxCount && r.DoneMS >= 0 && (r.DoneMS > 0) == (id[0]&idUntimed != 0)
}

func (all *receipts) count(doneMS int64) {
	switch {
	case doneMS == 0:
		all.timed++
	case all.firstMS == 0 || doneMS < all.firstMS:
		all.firstMS = doneMS
	}
}

// with adds a receipt. The receipts from before stay as they are.
func (all receipts) with(r Receipt) receipts {
	all.added = r.append(append(make([]byte, 0, len(all.added)+receiptBytes), all.added...))
	all.count(r.DoneMS)
	return all
}

// append appends the receipt as records keep it.
func (r Receipt) append(b []byte) []byte {
	begin := len(b)
	b = append(b, r.RequestID...)
	if r.DoneMS != 0 {
		b[begin] |= idUntimed
	}
	b = binary.AppendUvarint(b, uint64(r.Last))
	b = binary.AppendUvarint(b, uint64(r.Count))
	if r.DoneMS != 0 {
		b = binary.AppendUvarint(b, uint64(r.DoneMS))
	}
	return b
}

// list reads all of them. Their request IDs are parts of one text.
func (all receipts) list() []Receipt {
	text := slices.Concat(all.text, all.added)
	list := make([]Receipt, 0, len(text)/(1+uuidBytes)+1)
	whole := savedID(text)
	for rest := text; len(rest) > 0; {
		begin := len(whole) - len(rest)
		var r Receipt
		id, after, _ := r.cut(rest)
		if r.RequestID = whole[begin : begin+len(id)]; r.DoneMS != 0 {
			r.RequestID = savedID([]byte{id[0] &^ idUntimed}) + r.RequestID[1:]
		}
		list, rest = append(list, r), after
	}
	return list
}

// find finds the receipt of a request.
func (all receipts) find(request savedID) (Receipt, bool) {
	if id := []byte(request[1:]); !bytes.Contains(all.text, id) && !bytes.Contains(all.added, id) {
		return Receipt{}, false
	}
	for _, r := range all.list() {
		if r.RequestID == request {
			return r, true
		}
	}
	return Receipt{}, false
}
