package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// seen is a message in a form that can be compared.
func seen(r *Request) string {
	s := fmt.Sprintf("%d %d %q %d", r.Type, r.ID, r.Method, r.NumParams())
	for r.Next() != KindNone {
		raw, err := r.Raw()
		s += fmt.Sprintf(" %x %v", raw, err)
	}
	return s
}

// seenAll reads to the end.
func seenAll(r io.Reader) (all []string, end error) { return seenOf(NewServerConn(r, io.Discard)) }

func seenOf(conn *ServerConn) (all []string, end error) {
	var req Request
	for {
		if err := conn.Read(&req); err != nil {
			return all, err
		}
		all = append(all, seen(&req))
	}
}

func anyMessage() *rapid.Generator[[]any] {
	return rapid.Custom(func(t *rapid.T) []any {
		var method any = rapid.String().Draw(t, "method")
		if rapid.Bool().Draw(t, "binary") {
			method = []byte(method.(string))
		}
		params := rapid.SliceOfN(anyValue(3), 0, 5).Draw(t, "params")
		id := rapid.Uint32().Draw(t, "id")
		switch rapid.IntRange(0, 3).Draw(t, "type") {
		case 0:
			return []any{1, id, anyValue(2).Draw(t, "error"), anyValue(3).Draw(t, "result")}
		case 1:
			return []any{2, method, params}
		case 2:
			return []any{0.0, float64(id), method, params}
		}
		return []any{0, id, method, params}
	})
}

func TestAnySplitGivesTheSameMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream bytes.Buffer
		enc := newEncoder(&stream)
		count := rapid.IntRange(0, 20).Draw(t, "messages")
		for range count {
			must.Succeed(t, enc.Encode(anyMessage().Draw(t, "message")))
		}
		if rapid.Bool().Draw(t, "damaged") && stream.Len() > 0 {
			at := rapid.IntRange(0, stream.Len()-1).Draw(t, "at")
			stream.Bytes()[at] = rapid.Byte().Draw(t, "damage")
		}
		if rapid.Bool().Draw(t, "truncated") {
			stream.Truncate(rapid.IntRange(0, stream.Len()).Draw(t, "length"))
		}
		whole, wholeEnd := seenAll(bytes.NewReader(stream.Bytes()))
		split, splitEnd := seenAll(cut(t, stream.Bytes()))
		if !slices.Equal(whole, split) || wholeEnd.Error() != splitEnd.Error() {
			t.Fatalf("whole:\n%s\n%v\nsplit:\n%s\n%v", strings.Join(whole, "\n"), wholeEnd, strings.Join(split, "\n"), splitEnd)
		}
	})
}

func TestLargeMessagesInEveryKindOfReader(t *testing.T) {
	var stream []byte
	for i, size := range []int{0, 500, 511, 512, 4000, 4096, 65536, 70_000, 1, 250_000, MaxMessage - 11, 3, 600} {
		stream = append(stream, request(t, i, "m", make([]byte, size))...)
	}
	want, end := seenAll(bytes.NewReader(stream))
	if len(want) != 13 || end != io.EOF {
		t.Fatalf("%d messages, then %v", len(want), end)
	}
	for name, r := range map[string]io.Reader{
		"half":        iotest.HalfReader(bytes.NewReader(stream)),
		"one byte":    iotest.OneByteReader(bytes.NewReader(stream)),
		"with error":  iotest.DataErrReader(bytes.NewReader(stream)),
		"some chunks": &chunks{stream[:1], stream[1:7], stream[7:100_000], stream[100_000:]},
	} {
		if got, end := seenAll(r); !slices.Equal(got, want) || end != io.EOF {
			t.Errorf("%s: %d messages, then %v", name, len(got), end)
		}
	}
}

func TestEndOfTheStream(t *testing.T) {
	msg := request(t, 1, "NextID", 5)
	for n := range len(msg) + 1 {
		want, count := io.ErrUnexpectedEOF, 1
		if n == 0 || n == len(msg) {
			want = io.EOF
		}
		if n < len(msg) {
			count = 0
		}
		for _, r := range []io.Reader{bytes.NewReader(msg[:n]), iotest.DataErrReader(bytes.NewReader(msg[:n]))} {
			if got, end := seenAll(r); len(got) != count || end != want {
				t.Fatalf("after %d bytes: %d messages, %v", n, len(got), end)
			}
		}
	}
}

// interrupted fails now and then, as a socket with deadlines does.
type interrupted struct {
	r    io.Reader
	fail bool
}

var errDeadline = errors.New("deadline")

func (i *interrupted) Read(b []byte) (int, error) {
	if i.fail = !i.fail; i.fail {
		return 0, errDeadline
	}
	return i.r.Read(b[:min(len(b), 3)])
}

func TestReadGoesOnAfterTheReadersError(t *testing.T) {
	stream := append(request(t, 1, "NextID"), request(t, 2, "NextID")...)
	conn := NewServerConn(&interrupted{r: bytes.NewReader(stream)}, nil)
	var r Request
	var got []uint32
	for {
		err := conn.Read(&r)
		if err == io.EOF {
			break
		}
		if err == nil {
			got = append(got, r.ID)
		} else if !errors.Is(err, errDeadline) {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, []uint32{1, 2}) {
		t.Fatalf("got %v", got)
	}
}

func TestHugeLengthsCostNothing(t *testing.T) {
	for _, h := range []string{"ddffffffff", "94 00 01 dbffffffff", "94 00 01 a161 dfffffffff", "94 00 01 c6ffffffff",
		"94 00 01 c9ffffffff", "94 00 01 a161 dd000fff00 dd000fff00"} {
		input := unhex(t, h)
		conn := NewServerConn(bytes.NewReader(input), io.Discard)
		var r Request
		got := allocated(func() {
			if err := conn.Read(&r); !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			}
		})
		if got > 16<<10 {
			t.Errorf("%s: %d bytes allocated", h, got)
		}
	}
	// The longest length that is allowed, without its bytes, costs no more.
	conn := NewServerConn(bytes.NewReader(unhex(t, "94 00 01 a161 91 db0003ff00 6161")), io.Discard)
	var r Request
	if got := allocated(func() {
		if err := conn.Read(&r); err != io.ErrUnexpectedEOF {
			t.Fatal(err)
		}
	}); got > 16<<10 {
		t.Errorf("allowed length: %d bytes allocated", got)
	}
}

func TestBuffersShrink(t *testing.T) {
	stream := &chunks{request(t, 1, "m", make([]byte, 250_000)), request(t, 2, "m"), request(t, 3, "m")}
	conn := NewServerConn(stream, io.Discard)
	var r Request
	for i := range 3 {
		must.Succeed(t, conn.Read(&r))
		if i == 0 && len(conn.in.buf) < 250_000 {
			t.Fatal("where is it?")
		}
		conn.ReplyString(r.ID, strings.Repeat("x", 1_000_000>>(20*i)))
		must.Succeed(t, conn.Flush())
	}
	if in, out := len(conn.in.buf), cap(conn.out.buf); in > smallBuffer || out > smallBuffer {
		t.Fatalf("%d and %d bytes kept", in, out)
	}
	conn.in.Release()
	if conn.in.buf != nil {
		t.Fatal("the buffer is still there")
	}
}

func TestReleaseKeepsPartialMessages(t *testing.T) {
	in := NewInbox(MaxMessage)
	in.Release()
	msg := request(t, 1, "NextID")
	for i := range msg {
		in.Added(copy(in.Space(), msg[i:i+1]))
		in.Release()
		got, err := in.Next()
		if err != nil || (got != nil) != (i == len(msg)-1) {
			t.Fatalf("at %d: %x, %v", i, got, err)
		}
	}
}

// endless serves the same bytes for ever, so many at a time.
type endless struct {
	b  []byte
	at int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.b[e.at:])
	e.at = (e.at + n) % len(e.b)
	return n, nil
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	for name, msg := range map[string][]byte{
		"NextID":           request(t, 77, "NextID"),
		"with an option":   request(t, 77, "NextID", map[string]any{"service": "default"}),
		"with all options": request(t, 77, "NextID", map[string]any{"service": "a", "timeout_ms": 5, "regular_only": true, "ignored": []any{1}}),
	} {
		conn := NewServerConn(&endless{b: msg}, io.Discard)
		var r Request
		if n := testing.AllocsPerRun(1000, func() {
			if conn.Read(&r) != nil || string(r.Method) != "NextID" {
				t.Fatal("bad request")
			}
			if _, _, _, err := readOptions(&r); err != nil {
				t.Fatal(err)
			}
			conn.ReplyUint64(r.ID, 1<<62)
			if conn.Flush() != nil {
				t.Fatal("bad flush")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
