package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestReplyBytes(t *testing.T) {
	type row struct {
		ID     uint64 `json:"id"`
		Name   string `json:"name,omitempty"`
		Count  int    `json:"count"`
		Hidden string `json:"-"`
	}
	cases := []struct {
		name  string
		reply func(*Outbox)
		hex   string
	}{
		{"uint64", func(o *Outbox) { o.ReplyUint64(5, 0x0123456789abcdef) }, "94 01 05 c0 cf0123456789abcdef"},
		{"a small uint64 has the long form too", func(o *Outbox) { o.ReplyUint64(0, 1) }, "94 01 00 c0 cf0000000000000001"},
		{"msgid of 8 bits", func(o *Outbox) { o.ReplyString(200, "") }, "94 01 ccc8 c0 a0"},
		{"msgid of 16 bits", func(o *Outbox) { o.ReplyString(0x1234, "") }, "94 01 cd1234 c0 a0"},
		{"msgid of 32 bits", func(o *Outbox) { o.ReplyString(math.MaxUint32, "") }, "94 01 ceffffffff c0 a0"},
		{"string", func(o *Outbox) { o.ReplyString(1, "pong") }, "94 01 01 c0 a4706f6e67"},
		{"array", func(o *Outbox) { replyRanges(o, 3, []span{{10, 2}, {20, 0}, {30, 1}}) },
			"94 01 03 c0 93 cf000000000000000a cf000000000000000b cf000000000000001e"},
		{"no elements", func(o *Outbox) { replyRanges(o, 3, nil) }, "94 01 03 c0 90"},
		{"array of strings", func(o *Outbox) { o.BeginArray(3, 2); o.AppendString("a"); o.AppendString("") }, "94 01 03 c0 92 a161 a0"},
		{"map in the order of its keys", func(o *Outbox) { must.Succeed(t, o.ReplyAny(1, map[string]any{"b": 2, "a": true})) },
			"94 01 01 c0 82 a161 c3 a162 02"},
		{"struct by its json tags", func(o *Outbox) { must.Succeed(t, o.ReplyAny(1, row{ID: 7, Hidden: "x"})) },
			"94 01 01 c0 82 a26964 cf0000000000000007 a5636f756e74 00"},
		{"error", func(o *Outbox) { o.ReplyError(6, Errorf(CodeOverloaded, "no")) },
			"94 01 06 92 00 ae4f5645524c4f414445443a206e6f c0"},
		{"error of a wrong request", func(o *Outbox) { o.ReplyError(0, Errorf(CodeParseError, "x")) },
			"94 01 00 92 01 ae50415253455f4552524f523a2078 c0"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var w bytes.Buffer
			o := NewOutbox(&w)
			c.reply(o)
			if w.Len() > 0 {
				t.Fatal("written before Flush")
			}
			must.Succeed(t, o.Flush())
			if want := unhex(t, c.hex); !bytes.Equal(w.Bytes(), want) {
				t.Fatalf("\ngot  % x\nwant % x", w.Bytes(), want)
			}
		})
	}
}

func TestLargestArray(t *testing.T) {
	const n = 65536
	var w writes
	o := NewOutbox(&w)
	var ranges []span
	var want []any
	for i := range uint64(n / 256) {
		ranges = append(ranges, span{Start: i << 22, Count: 256})
		for j := range uint64(256) {
			want = append(want, i<<22+j)
		}
	}
	o.ReplyString(1, "before") // the buffer need not be empty
	replyRanges(o, 2, ranges)
	must.Succeed(t, o.Flush())
	if w.largest > HighWater || w.calls > 10 {
		t.Fatalf("%d writes, the largest of %d bytes", w.calls, w.largest)
	}
	discard := NewOutbox(io.Discard)
	if got := allocated(func() { replyRanges(discard, 2, ranges) }); got > 3*HighWater {
		t.Fatalf("%d bytes allocated", got)
	}
	if held := cap(o.out.buf); held > mediumBuffer {
		t.Fatalf("%d bytes kept after it", held)
	}
	got := decodeAll(t, w.Bytes())
	if len(got) != 2 || !reflect.DeepEqual(got[1], []any{int64(1), int64(2), nil, want}) {
		t.Fatal("wrong array")
	}
}

func TestUnencodableResultLeavesNoTrace(t *testing.T) {
	var w bytes.Buffer
	o := NewOutbox(&w)
	o.ReplyUint64(1, 1)
	if err := o.ReplyAny(2, map[string]any{"a": 1, "b": make(chan int)}); err == nil {
		t.Fatal("a channel was encoded")
	}
	o.ReplyError(2, Errorf(CodeTimeout, "x"))
	must.Succeed(t, o.Flush())
	if got := decodeAll(t, w.Bytes()); len(got) != 2 || got[1].([]any)[1] != int64(2) {
		t.Fatalf("got %v", got)
	}
}

// failing accepts so many bytes.
type failing struct {
	room int
	err  error
}

func (f *failing) Write(b []byte) (int, error) {
	n := min(len(b), f.room)
	f.room -= n
	if n < len(b) {
		return n, f.err
	}
	return n, nil
}

func TestWriteErrorsStay(t *testing.T) {
	broken := errors.New("broken")
	for err, want := range map[error]error{broken: broken, nil: io.ErrShortWrite} {
		o := NewOutbox(&failing{room: 3, err: err})
		replyRanges(o, 1, []span{{0, 65536}}) // fails on the way
		o.ReplyUint64(2, 1)
		o.ReplyError(3, Errorf(CodeTimeout, "x"))
		must.Succeed(t, o.ReplyAny(4, "x"))
		o.BeginArray(5, 2)
		o.AppendString("x")
		for range 2 {
			if got := o.Flush(); !errors.Is(got, want) {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
		if len(o.Unsent()) > 0 {
			t.Fatal("encoded for nobody")
		}
	}
}

func TestWrongNumberOfElementsPanics(t *testing.T) {
	for name, f := range map[string]func(*Outbox){
		"too few":   func(o *Outbox) { o.BeginArray(1, 2); o.AppendRange(0, 1); o.ReplyUint64(2, 1) },
		"too many":  func(o *Outbox) { o.BeginArray(1, 1); o.AppendRange(0, 2) },
		"strings":   func(o *Outbox) { o.AppendString("x") },
		"negative":  func(o *Outbox) { o.BeginArray(1, -1) },
		"any":       func(o *Outbox) { o.BeginArray(1, 1); _ = o.ReplyAny(2, 1) },
		"and error": func(o *Outbox) { o.BeginArray(1, 1); o.ReplyError(2, Errorf(CodeTimeout, "x")) },
	} {
		func() {
			defer func() {
				if p, ok := recover().(string); !ok || !strings.HasPrefix(p, "wire: ") {
					t.Errorf("%s: panicked with %v", name, p)
				}
			}()
			f(NewOutbox(io.Discard))
		}()
	}
}

func TestWithoutWriterEverythingWaits(t *testing.T) {
	o := NewOutbox(nil)
	replyRanges(o, 1, []span{{0, 65536}})
	must.Succeed(t, o.Flush())
	all := slices.Clone(o.Unsent())
	if len(all) != 4+5+65536*9 {
		t.Fatalf("%d bytes wait", len(all))
	}
	var sent []byte
	for n := 1; len(o.Unsent()) > 0; n *= 3 {
		n = min(n, len(o.Unsent()))
		sent = append(sent, o.Unsent()[:n]...)
		o.Sent(n)
	}
	if !bytes.Equal(sent, all) || cap(o.out.buf) > mediumBuffer {
		t.Fatalf("sent %d bytes, kept %d", len(sent), cap(o.out.buf))
	}
}
