package wire

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// plain is what ParseNextID and ParseNextIDs make of a message.
type plain struct {
	id     uint32
	count  int64 // -1: NextID
	length int   // 0: it is of no such form
}

// agrees holds what the two make of b against Scan and Parse, which decide what a message is,
// and returns it.
func agrees(t testing.TB, b []byte) plain {
	t.Helper()
	p := plain{count: -1}
	if p.id, p.length = ParseNextID(b); p.length == 0 {
		var count uint32
		p.id, count, p.length = ParseNextIDs(b)
		p.count = int64(count)
	}
	if p.length == 0 {
		return plain{}
	}
	var s Splitter
	if whole, err := s.Scan(b); whole != p.length || err != nil {
		t.Fatalf("% x: %d bytes are plain, and the message has %d, %v", b, p.length, whole, err)
	}
	var r Request
	if err := r.Parse(b[:p.length]); err != nil || r.Type != TypeRequest || r.ID != p.id {
		t.Fatalf("% x: %+v, and a message of type %d and ID %d, %v", b[:p.length], p, r.Type, r.ID, err)
	}
	switch {
	case p.count < 0 && r.NumParams() == 0 && string(r.Method) == "NextID":
	case p.count >= 0 && r.NumParams() == 1 && string(r.Method) == "NextIDs":
		if count, err := r.Int64(); err != nil || count != p.count {
			t.Fatalf("% x: a count of %d, want %d, %v", b, p.count, count, err)
		}
	default:
		t.Fatalf("% x: %+v of %s with %d parameters", b, p, r.Method, r.NumParams())
	}
	return p
}

// boundaries are where an unsigned integer of 32 bits changes its form.
var boundaries = []uint32{0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x10000, math.MaxUint32}

// The requests of nearly all clients are recognised, with any bytes after them, and only when
// they are complete. Others of nearly the same form are not.
func TestPlainRequests(t *testing.T) {
	recognised := func(message []byte, want plain) {
		t.Helper()
		for end := range message {
			if p := agrees(t, message[:end]); p.length != 0 {
				t.Fatalf("% x: %d bytes of a message cut short", message[:end], p.length)
			}
		}
		for _, behind := range [][]byte{nil, {0}, {0xc1}, message} {
			if got := agrees(t, slices.Concat(message, behind)); got != want {
				t.Fatalf("% x: %+v, want %+v", message, got, want)
			}
		}
	}
	for _, id := range boundaries {
		// The library writes an int in its shortest form, and a uint32 in its type's.
		for _, message := range [][]byte{request(t, int(id), "NextID"), request(t, id, "NextID")} {
			recognised(message, plain{id, -1, len(message)})
		}
		for _, count := range boundaries {
			for _, message := range [][]byte{request(t, id, "NextIDs", int(count)), request(t, int(id), "NextIDs", count)} {
				recognised(message, plain{id, int64(count), len(message)})
			}
		}
		for _, other := range [][]byte{
			request(t, id, "Ping"), request(t, id, ""), request(t, id, "nextID"), request(t, id, "NextIDs"), request(t, id, "NextID", 1),
			request(t, id, "NextIDs", 1, 2), request(t, id, "NextIDs", -1), request(t, id, "NextIDs", math.MaxUint32+1), request(t, id, "NextIDz", 1),
		} {
			recognised(other, plain{})
		}
	}
}

func FuzzPlain(f *testing.F) {
	for _, id := range boundaries {
		f.Add(request(f, int(id), "NextID"))
		f.Add(request(f, id, "NextIDs", int(id)))
	}
	f.Add(request(f, 1, "NextID", map[string]any{"format": "string"}))
	f.Add(pack(f, []any{2, "event", []any{}}))
	f.Add(unhex(f, "94 00 ccff bf 91 ceffffffff"))
	f.Add(request(f, 1, "Bounds", 3, 4))
	f.Add(request(f, 1, "NextIDs", -1))
	f.Add(request(f, 1.0, "NextID"))
	f.Add(request(f, 1, []byte("NextID")))
	f.Add(pack(f, []any{1, 5, "Ping", []any{}}))
	f.Add(pack(f, []any{0, 1, "a", nil}))
	f.Add(unhex(f, "94 00 01 a161 91 c1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for end := range agrees(t, b).length {
			if p := agrees(t, b[:end]); p.length != 0 {
				t.Fatalf("% x: %d bytes of a message cut short", b[:end], p.length)
			}
		}
	})
}

// reference encodes answers with the library alone.
type reference struct {
	bytes.Buffer
	enc *msgpack.Encoder
}

func newReference() *reference {
	r := new(reference)
	r.enc = msgpack.NewEncoder(&r.Buffer)
	return r
}

func (r *reference) head(id uint32) {
	for _, err := range []error{
		r.enc.EncodeArrayLen(4), r.enc.EncodeUint(uint64(TypeResponse)), r.enc.EncodeUint(uint64(id)), r.enc.EncodeNil(),
	} {
		if err != nil {
			panic(err)
		}
	}
}

func (r *reference) ranges(id uint32, ranges []span) {
	r.head(id)
	total := 0
	for _, one := range ranges {
		total += one.Count
	}
	if err := r.enc.EncodeArrayLen(total); err != nil {
		panic(err)
	}
	for _, one := range ranges {
		for i := range one.Count {
			if err := r.enc.EncodeUint64(one.Start + uint64(i)); err != nil {
				panic(err)
			}
		}
	}
}

func anyMsgid() *rapid.Generator[uint32] {
	return rapid.OneOf(rapid.SampledFrom(boundaries), rapid.Uint32())
}

// For any answer, and any bytes that wait before it, the bytes are the library's, with a writer
// and without.
func TestOutboxWritesWhatTheLibraryDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var w writes
		written, kept, want := NewOutbox(&w), NewOutbox(nil), newReference()
		both := func(answer func(*Outbox)) {
			answer(written)
			answer(kept)
		}
		counts := rapid.OneOf(rapid.IntRange(0, 20), rapid.SampledFrom([]int{
			15, 16, HighWater/uint64Size - 1, HighWater / uint64Size, HighWater/uint64Size + 1, 65535, 65536,
		}))
		for range rapid.IntRange(1, 12).Draw(rt, "answers") {
			id := anyMsgid().Draw(rt, "msgid")
			switch rapid.IntRange(0, 4).Draw(rt, "answer") {
			case 0:
				v := rapid.Uint64().Draw(rt, "value")
				both(func(o *Outbox) { o.ReplyUint64(id, v) })
				want.head(id)
				_ = want.enc.EncodeUint64(v)
			case 1:
				v := rapid.StringN(0, 300, -1).Draw(rt, "text")
				both(func(o *Outbox) { o.ReplyString(id, v) })
				want.head(id)
				_ = want.enc.EncodeString(v)
			case 2:
				both(func(o *Outbox) { must.Succeed(rt, o.ReplyAny(id, nil)) })
				want.head(id)
				_ = want.enc.EncodeNil()
			case 3:
				var ranges []span
				for range rapid.IntRange(0, 3).Draw(rt, "ranges") {
					ranges = append(ranges, span{Start: rapid.Uint64Max(1<<63).Draw(rt, "start"), Count: counts.Draw(rt, "count")})
				}
				both(func(o *Outbox) { replyRanges(o, id, ranges) })
				want.ranges(id, ranges)
			case 4:
				ids := rapid.SliceOfN(anyMsgid(), 0, 130).Draw(rt, "msgids")
				first := rapid.Uint64Max(1<<63).Draw(rt, "first")
				both(func(o *Outbox) { o.ReplyConsecutive(ids, first) })
				for i, id := range ids {
					want.head(id)
					_ = want.enc.EncodeUint64(first + uint64(i))
				}
			}
			if rapid.Bool().Draw(rt, "flush") {
				must.Succeed(rt, written.Flush())
			}
		}
		must.Succeed(rt, written.Flush())
		if !bytes.Equal(w.Bytes(), want.Bytes()) || !bytes.Equal(kept.Unsent(), want.Bytes()) {
			rt.Fatalf("wrote %d bytes, kept %d, want %d", w.Len(), len(kept.Unsent()), want.Len())
		}
		if w.largest > HighWater {
			rt.Fatalf("a write of %d bytes", w.largest)
		}
	})
}

// Every length of what waits before an answer is right, just below the mark
// too, where the answer must not be torn or lost.
func TestAnswersAroundTheHighWaterMark(t *testing.T) {
	for waiting := HighWater - 2*smallBuffer; waiting <= HighWater+smallBuffer; waiting++ {
		before := string(make([]byte, waiting-4-3)) // behind its head and its length
		ranges := []span{{1 << 40, 3}}
		var w writes
		o, want := NewOutbox(&w), newReference()
		o.ReplyString(1, before)
		replyRanges(o, math.MaxUint32, ranges)
		must.Succeed(t, o.Flush())
		want.head(1)
		_ = want.enc.EncodeString(before)
		want.ranges(math.MaxUint32, ranges)
		if !bytes.Equal(w.Bytes(), want.Bytes()) {
			t.Fatalf("behind %d bytes: %d bytes, want %d", waiting, w.Len(), want.Len())
		}
	}
}

// Bytes that came in another way are no different from read ones, wherever the cut is.
func TestPreload(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var stream []byte
		for range rapid.IntRange(1, 30).Draw(rt, "messages") {
			stream = append(stream, pack(t, anyMessage().Draw(rt, "message"))...)
		}
		if rapid.Bool().Draw(rt, "a large one") {
			stream = append(stream, request(t, 1, "big", string(make([]byte, rapid.IntRange(1, 100_000).Draw(rt, "size"))))...)
		}
		want, wantEnd := seenAll(bytes.NewReader(stream))
		at := rapid.IntRange(0, min(len(stream), HighWater+HighWater/2)).Draw(rt, "cut")
		conn := NewServerConn(cut(rt, stream[at:]), nil)
		conn.Preload(stream[:at])
		if at > 0 && !conn.Partial() {
			rt.Fatal("the bytes are not there")
		}
		got, end := seenOf(conn)
		if !slices.Equal(got, want) || end != wantEnd {
			rt.Fatalf("cut at %d of %d: %d messages, %v, want %d, %v", at, len(stream), len(got), end, len(want), wantEnd)
		}
	})
	// Every cut of a short stream.
	stream := slices.Concat(request(t, 1, "NextID"), request(t, 300, "NextIDs", 70_000), request(t, 3, "Ping"))
	for at := range len(stream) + 1 {
		conn := NewServerConn(bytes.NewReader(stream[at:]), nil)
		conn.Preload(stream[:at])
		if got, _ := seenOf(conn); len(got) != 3 {
			t.Fatalf("cut at %d: %q", at, got)
		}
	}
}
