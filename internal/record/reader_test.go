package record_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/kazahana/kazahana/internal/record"
)

// A value is read as it was written, and a value that is cut anywhere, or has a number that is
// too large, fails and gives zero values from then on.
func TestReader(t *testing.T) {
	value := append([]byte{7}, "text"...)
	value = binary.AppendUvarint(value, math.MaxInt64)
	value = binary.AppendVarint(value, -300)
	value = append(value, 1, 2, 3)
	read := func(value []byte) (r record.Reader, same bool) {
		r = record.NewReader(value)
		same = r.Byte() == 7 && r.Text(4) == "text" && r.Number() == math.MaxInt64 && r.Signed() == -300 && string(r.Bytes(2)) == "\x01\x02"
		return r, same
	}
	if r, same := read(value); !same || r.Failed() || string(r.Rest()) != "\x03" {
		t.Errorf("%x is read as something else: %+v", value, r)
	}
	for n := range len(value) - 1 {
		r, same := read(value[:n])
		if same || !r.Failed() || r.Byte() != 0 || r.Text(1) != "" || r.Number() != 0 || r.Signed() != 0 || len(r.Bytes(3)) != 3 {
			t.Errorf("the first %d bytes of %x are read: %+v", n, value, r)
		}
	}
	r := record.NewReader(binary.AppendUvarint(nil, math.MaxInt64+1))
	if n := r.Number(); n != 0 || !r.Failed() {
		t.Errorf("a number that no int64 has is %d", n)
	}
}
