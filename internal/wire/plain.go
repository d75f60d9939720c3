package wire

import "encoding/binary"

// MessagePack's bytes for the parts of plain requests and answers.
const (
	codeArray4 = 0x94
	codeNil    = 0xc0
	codeUint8  = 0xcc
	codeUint16 = 0xcd
	codeUint32 = 0xce
	codeUint64 = 0xcf
	maxFixInt  = 0x7f
	// What follows the msgid of a request for one ID, and of one for as many as the number that
	// follows: the method, and how many parameters there are.
	askForID  = "\xa6NextID\x90"
	askForIDs = "\xa7NextIDs\x91"
)

// ParseNextID recognises the most frequent message at b[0], NextID without options, and returns
// its msgid and length. The length is 0 for a message of any other form, an incomplete one, and
// bytes that are not a message: the Splitter decides on those. That takes a tenth of the time of
// Scan and Parse, which accept every form.
func ParseNextID(b []byte) (id uint32, length int) {
	id, at := plainHead(b)
	end := at + len(askForID)
	if at == 0 || len(b) < end || string(b[at:end]) != askForID {
		return 0, 0
	}
	return id, end
}

// ParseNextIDs does the same with NextIDs without options.
func ParseNextIDs(b []byte) (id, count uint32, length int) {
	id, at := plainHead(b)
	end := at + len(askForIDs)
	if at == 0 || len(b) < end || string(b[at:end]) != askForIDs {
		return 0, 0, 0
	}
	count, size := plainUint(b[end:])
	if size == 0 {
		return 0, 0, 0
	}
	return id, count, end + size
}

// plainHead reads the msgid of the request at b[0], and returns where the method begins; 0 if
// there is something else.
func plainHead(b []byte) (id uint32, method int) {
	if len(b) < 3 || b[0] != codeArray4 || b[1] != byte(TypeRequest) {
		return 0, 0
	}
	id, size := plainUint(b[2:])
	if size == 0 {
		return 0, 0
	}
	return id, 2 + size
}

// plainUint reads an unsigned integer of at most 32 bits, and returns its length in
// bytes; 0 if there is another value or an incomplete one.
func plainUint(b []byte) (v uint32, size int) {
	switch {
	case len(b) == 0:
	case b[0] <= maxFixInt:
		return uint32(b[0]), 1
	case b[0] == codeUint8 && len(b) >= 2:
		return uint32(b[1]), 2
	case b[0] == codeUint16 && len(b) >= 3:
		return uint32(binary.BigEndian.Uint16(b[1:])), 3
	case b[0] == codeUint32 && len(b) >= 5:
		return binary.BigEndian.Uint32(b[1:]), 5
	}
	return 0, 0
}

// appendUint appends an unsigned integer in its shortest form, as the library
// does, up to 32 bits.
func appendUint(b []byte, v uint32) []byte {
	switch {
	case v <= maxFixInt:
		return append(b, byte(v))
	case v <= 0xff:
		return append(b, codeUint8, byte(v))
	case v <= 0xffff:
		return append(b, codeUint16, byte(v>>8), byte(v))
	}
	return append(b, codeUint32, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

// appendRange appends n integers from start on, each in its 9-byte form. b must have
// the room.
func appendRange(b []byte, start uint64, n int) []byte {
	end := len(b) + n*uint64Size
	for to := b[len(b):end]; len(to) >= uint64Size; to = to[uint64Size:] {
		to[0] = codeUint64
		binary.BigEndian.PutUint64(to[1:uint64Size], start)
		start++
	}
	return b[:end]
}
