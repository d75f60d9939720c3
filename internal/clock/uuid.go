package clock

import (
	"crypto/rand"
	"encoding/binary"
	"time"
)

// UUID7 is a UUID of version 7, made now. It tells its time in 4096ths of a ms, so that what
// one host makes is in order.
func UUID7(now time.Time) (id [16]byte) {
	rand.Read(id[:]) // never fails
	ms := now.UnixMilli()
	part := now.Sub(time.UnixMilli(ms)) << 12 / time.Millisecond
	binary.BigEndian.PutUint64(id[:], uint64(ms)<<16|7<<12|uint64(part))
	id[8] = id[8]&0x3f | 0x80
	return id
}
