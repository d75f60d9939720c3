package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

// unhex reads hex with spaces.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatalf("bad hex %q: %v", s, err)
	}
	return b
}

// pack encodes values one after another.
func pack(t testing.TB, values ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	must.Succeed(t, newEncoder(&b).EncodeMulti(values...))
	return b.Bytes()
}

// request is a whole message, with params that are an array.
func request(t testing.TB, id any, method any, params ...any) []byte {
	t.Helper()
	if params == nil {
		params = []any{}
	}
	return pack(t, []any{0, id, method, params})
}

// parsed is the Request that msg is.
func parsed(t testing.TB, msg []byte) *Request {
	t.Helper()
	var s Splitter
	if n, err := s.Scan(msg); n != len(msg) || err != nil {
		t.Fatalf("% x: splitter: %d, %v", msg, n, err)
	}
	r := new(Request)
	if err := r.Parse(msg); err != nil {
		t.Fatalf("% x: %v", msg, err)
	}
	return r
}

// chunks is a reader that returns one chunk at a time.
type chunks [][]byte

func (c *chunks) Read(b []byte) (int, error) {
	if len(*c) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*c)[0])
	if (*c)[0] = (*c)[0][n:]; len((*c)[0]) == 0 {
		*c = (*c)[1:]
	}
	return n, nil
}

// cut splits b into random chunks.
func cut(t *rapid.T, b []byte) *chunks {
	var c chunks
	longest := rapid.SampledFrom([]int{1, 3, 17, 600, 5000, 100_000}).Draw(t, "longest")
	for len(b) > 0 {
		n := min(len(b), rapid.IntRange(1, longest).Draw(t, "chunk"))
		c = append(c, b[:n])
		b = b[n:]
	}
	return &c
}

// writes records the written bytes, call by call.
type writes struct {
	calls   int
	largest int
	bytes.Buffer
}

func (w *writes) Write(b []byte) (int, error) {
	w.calls++
	w.largest = max(w.largest, len(b))
	return w.Buffer.Write(b)
}

// decodeAll decodes a stream of messages with the library alone.
func decodeAll(t testing.TB, stream []byte) []any {
	t.Helper()
	dec := msgpack.NewDecoder(bytes.NewReader(stream))
	dec.UseLooseInterfaceDecoding(true)
	var all []any
	for {
		v, err := dec.DecodeInterfaceLoose()
		if errors.Is(err, io.EOF) {
			return all
		}
		must.Succeed(t, err)
		all = append(all, v)
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	before := totalAllocated()
	f()
	return totalAllocated() - before
}

func totalAllocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// wantError holds err against a code and words of its text.
func wantError(t testing.TB, err error, code Code, words string) {
	t.Helper()
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != code || !strings.Contains(e.Error(), words) {
		t.Fatalf("got error %v, want %s with %q", err, code, words)
	}
}

// span is Count integers from Start on.
type span struct {
	Start uint64
	Count int
}

// replyRanges answers with one array of all the integers of the ranges.
func replyRanges(o *Outbox, id uint32, ranges []span) {
	total := 0
	for _, r := range ranges {
		total += r.Count
	}
	o.BeginArray(id, total)
	for _, r := range ranges {
		o.AppendRange(r.Start, r.Count)
	}
}
