package load

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// answer is what the daemon's own encoder makes of the IDs.
func answer(number uint32, ids ...uint64) []byte {
	out := wire.NewOutbox(nil)
	if len(ids) == 1 {
		out.ReplyUint64(number, ids[0])
	} else {
		out.BeginArray(number, len(ids))
		for _, id := range ids {
			out.AppendRange(id, 1)
		}
	}
	return bytes.Clone(out.Unsent())
}

func ascendingFrom(first uint64, n int) []uint64 {
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = first + uint64(i)
	}
	return ids
}

func TestRequestsAreReadable(t *testing.T) {
	for _, c := range []struct {
		count, size int
		method      string
	}{{1, 15, "NextID"}, {100, 17, "NextIDs"}, {1000, 19, "NextIDs"}} {
		for _, number := range []uint32{firstNumber, 1<<32 - 1} {
			b := newRPC(c.count, "").appendRequest([]byte("before"), number)
			b = bytes.TrimPrefix(b, []byte("before"))
			var r wire.Request
			must.Succeed(t, r.Parse(b))
			if len(b) != c.size || r.ID != number || string(r.Method) != c.method {
				t.Errorf("request for %d: %d bytes, number %d, method %s", c.count, len(b), r.ID, r.Method)
			}
			if c.count > 1 {
				if n, err := r.Int64(); err != nil || n != int64(c.count) {
					t.Errorf("request for %d asks for %d (%v)", c.count, n, err)
				}
			}
		}
	}
}

// TestAnswersInPieces: however the stream is cut, each answer is found once.
func TestAnswersInPieces(t *testing.T) {
	for _, count := range []int{1, 2, 15, 16, 100, 1000, 65_536} {
		first, second := answer(firstNumber, ascendingFrom(1<<60, count)...), answer(firstNumber+1, ascendingFrom(1<<61, count)...)
		stream := slices.Concat(first, second)
		for _, cut := range []int{0, 1, 7, 8, 9, 10, len(first) - 1} {
			d := newRPC(count, "")
			if n, err := d.take(stream[:cut], firstNumber); n != 0 || err != nil {
				t.Fatalf("count %d: %d of %d bytes were taken as an answer of %d (%v)", count, cut, len(first), n, err)
			}
			if n, err := d.take(stream, firstNumber); n != len(first) || err != nil {
				t.Fatalf("count %d: the first answer has %d bytes, not %d (%v)", count, len(first), n, err)
			}
			if n, err := d.take(stream[len(first):], firstNumber+1); n != len(second) || err != nil {
				t.Fatalf("count %d: the second answer has %d bytes, not %d (%v)", count, len(second), n, err)
			}
		}
	}
}

func TestWrongAnswers(t *testing.T) {
	refusal := wire.NewOutbox(nil)
	refusal.ReplyError(firstNumber, wire.Errorf(wire.CodeOverloaded, "too much"))
	request, err := msgpack.Marshal([]any{0, uint32(firstNumber), "NextID", []any{}})
	must.Succeed(t, err)
	repeated := ascendingFrom(100, 100)
	repeated[50] = repeated[49]
	for name, c := range map[string]struct {
		count  int
		answer []byte
		want   string
	}{
		"error":          {1, refusal.Unsent(), "OVERLOADED: too much"},
		"other number":   {1, answer(firstNumber+1, 7), "something else"},
		"a request":      {1, request, "something else"},
		"no message":     {1, []byte("HTTP/1.1 400 Bad Request\r\n"), "not a message"},
		"ID 0":           {1, answer(firstNumber, 0), "must be 1 or more"},
		"one ID":         {100, answer(firstNumber, 7), "something else"},
		"too few":        {100, answer(firstNumber, ascendingFrom(1, 99)...), "something else"},
		"repeated":       {100, answer(firstNumber, repeated...), "ID 51 of 100"},
		"last not above": {2, answer(firstNumber, 9, 8), "ID 2 of 2"},
	} {
		_, err := newRPC(c.count, "").take(c.answer, firstNumber)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, c.want)
		}
	}
}

// TestIncreaseAcrossAnswers holds for every answer, also for those of which
// only the ends are looked at.
func TestIncreaseAcrossAnswers(t *testing.T) {
	for _, count := range []int{1, 100} {
		d := newRPC(count, "")
		next := uint64(1)
		for number := range uint32(3 * sampleEvery) {
			b := answer(firstNumber+number, ascendingFrom(next, count)...)
			if n, err := d.take(b, firstNumber+number); n != len(b) || err != nil {
				t.Fatalf("answer %d: %d bytes, %v", number, n, err)
			}
			next += uint64(count)
		}
		again := answer(firstNumber, ascendingFrom(next-1, count)...)
		if _, err := d.take(again, firstNumber); err == nil {
			t.Errorf("count %d: the last ID was given a second time, and nobody noticed", count)
		}
		d.taken = 1 // not one of the sample
		short := ascendingFrom(next, count)
		short[count-1] = next + uint64(count) - 2
		if _, err := d.take(answer(firstNumber, short...), firstNumber); err == nil {
			t.Errorf("count %d: the ends leave no room for %d IDs, and nobody noticed", count, count)
		}
	}
}

func TestSampleIsChecked(t *testing.T) {
	ids := ascendingFrom(1, 100)
	ids[50] = ids[49]
	d := newRPC(100, "")
	d.taken = sampleEvery
	if _, err := d.take(answer(firstNumber, ids...), firstNumber); err == nil {
		t.Error("an ID inside a batch of the sample was repeated, and nobody noticed")
	}
}

func TestEchoAnswers(t *testing.T) {
	for _, count := range []int{1, 100} {
		d, err := newDialect(Echo, count)
		must.Succeed(t, err)
		request := d.appendRequest(nil, firstNumber+5)
		size := len(request)
		if count > 1 {
			size = len(answer(firstNumber, ascendingFrom(1, count)...))
		}
		b := append(bytes.Clone(request), make([]byte, size)...)
		if n, err := d.take(b[:size-1], firstNumber+5); n != 0 || err != nil {
			t.Errorf("count %d: half an answer: %d, %v", count, n, err)
		}
		if n, err := d.take(b, firstNumber+5); n != size || err != nil {
			t.Errorf("count %d: the answer has %d bytes, not %d (%v)", count, size, n, err)
		}
		if _, err := d.take(b, firstNumber+6); err == nil {
			t.Errorf("count %d: the echo of another request was taken", count)
		}
		b[len(request)-1] ^= 1
		if _, err := d.take(b, firstNumber+5); err == nil {
			t.Errorf("count %d: a damaged echo was taken", count)
		}
	}
}
