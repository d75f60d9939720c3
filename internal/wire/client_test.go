package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// newPair returns a Client with handle as its server, running until the stream ends. The server
// answers nothing by itself.
func newPair(t *testing.T, handle func(*ServerConn, *Request)) *Client {
	t.Helper()
	near, far := net.Pipe()
	var server sync.WaitGroup
	server.Go(func() {
		defer far.Close()
		conn := NewServerConn(far, far)
		var r Request
		for conn.Read(&r) == nil {
			handle(conn, &r)
			if conn.Flush() != nil {
				return
			}
		}
	})
	c := NewClient(near)
	t.Cleanup(func() {
		c.Close()
		server.Wait()
	})
	return c
}

// echo answers with the first parameter.
func echo(conn *ServerConn, r *Request) {
	raw, err := r.Raw()
	if err != nil {
		conn.ReplyError(r.ID, err.(*Error))
		return
	}
	var v any
	if err := decodeResult(raw, &v); err != nil {
		panic(err)
	}
	if err := conn.ReplyAny(r.ID, v); err != nil {
		panic(err)
	}
}

func TestCallResults(t *testing.T) {
	type status struct {
		Version  string   `json:"version"`
		Features []string `json:"features"`
		Nested   struct {
			N uint64 `json:"n"`
		} `json:"nested"`
	}
	want := status{Version: "1", Features: []string{"a", "b"}}
	want.Nested.N = 1 << 63
	c := newPair(t, echo)
	cases := []struct {
		param, target, want any
	}{
		{uint64(1 << 63), new(uint64), uint64(1 << 63)},
		{5.0, new(uint64), uint64(5)},
		{-5, new(int64), int64(-5)},
		{[]uint64{1, 1 << 62}, new([]uint64), []uint64{1, 1 << 62}},
		{"pong", new(string), "pong"},
		{true, new(bool), true},
		{want, new(status), want},
		{[]any{uint64(1), "x", nil, -1}, new(any), []any{uint64(1), "x", nil, int64(-1)}},
		{map[string]any{"a": uint64(1)}, new(map[string]any), map[string]any{"a": uint64(1)}},
		{nil, new(any), any(nil)},
	}
	for _, x := range cases {
		if err := c.Call(t.Context(), "Echo", x.target, x.param); err != nil {
			t.Errorf("%v: %v", x.param, err)
		} else if got := reflect.ValueOf(x.target).Elem().Interface(); !reflect.DeepEqual(got, x.want) {
			t.Errorf("%v: got %#v, want %#v", x.param, got, x.want)
		}
	}
	if err := c.Call(t.Context(), "Echo", nil, "anything"); err != nil {
		t.Error(err)
	}
	for _, x := range []struct {
		param, target any
		words         string
	}{
		{-1, new(uint64), "-1 is negative"},
		{uint64(1 << 63), new(int64), "too large"},
		{"x", new(uint64), "want an integer, got a string"},
		{[]any{1, "x"}, new([]uint64), "element 1: want an integer, got a string"},
		{1, new([]uint64), "want an array, got an integer"},
		{"x", new(bool), "Echo"},
	} {
		err := c.Call(t.Context(), "Echo", x.target, x.param)
		if err == nil || !strings.Contains(err.Error(), x.words) {
			t.Errorf("%v into %T: %v", x.param, x.target, err)
		}
	}
	if err := c.Call(t.Context(), "Echo", nil, make(chan int)); err == nil || !strings.Contains(err.Error(), "encode parameter 1") {
		t.Error(err)
	}
	if err := c.Call(t.Context(), "Echo", nil, make([]byte, MaxMessage)); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if err := c.Call(t.Context(), "Echo", nil, 1); err != nil || c.Err() != nil {
		t.Error("the client does not work any more:", err, c.Err())
	}
}

func TestLargestResults(t *testing.T) {
	c := newPair(t, func(conn *ServerConn, r *Request) {
		conn.BeginArray(r.ID, 65536)
		if string(r.Method) == "strings" {
			for range 65536 {
				conn.AppendString("18446744073709551615")
			}
			return
		}
		conn.AppendRange(1<<60, 65536)
	})
	var ids []uint64
	if err := c.Call(t.Context(), "integers", &ids); err != nil || len(ids) != 65536 || ids[65535] != 1<<60+65535 {
		t.Fatal(err, len(ids))
	}
	var texts []string
	if err := c.Call(t.Context(), "strings", &texts); err != nil || len(texts) != 65536 {
		t.Fatal(err, len(texts))
	}
}

func TestConcurrentCalls(t *testing.T) {
	const callers = 16
	type call struct {
		id    uint32
		param uint64
	}
	var round []call // answered in reverse
	c := newPair(t, func(conn *ServerConn, r *Request) {
		n, err := r.Uint64()
		if err != nil {
			panic(err)
		}
		if round = append(round, call{r.ID, n}); len(round) < callers {
			return
		}
		for _, one := range slices.Backward(round) {
			conn.ReplyUint64(one.id, one.param)
		}
		round = round[:0]
	})
	for i := range uint64(100) {
		var all sync.WaitGroup
		for g := range uint64(callers) {
			all.Go(func() {
				var got uint64
				if err := c.Call(t.Context(), "m", &got, g<<32|i); err != nil || got != g<<32|i {
					t.Errorf("got %x, want %x: %v", got, g<<32|i, err)
				}
			})
		}
		all.Wait()
	}
}

func TestErrorsFromTheServer(t *testing.T) {
	want := Errorf(CodeTimeout, "waited").With("waited_ms", 10).With("cause", "a lease")
	c := newPair(t, func(conn *ServerConn, r *Request) { conn.ReplyError(r.ID, want) })
	err := c.Call(t.Context(), "NextID", new(uint64))
	if got, ok := errors.AsType[*Error](err); !ok || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %#v", err)
	}
}

// script is a stream with a far side that says given bytes and then hears nothing.
type script struct {
	io.Reader
	closed chan struct{}
	once   sync.Once
	wait   bool // after the bytes, until closed
}

func newScript(b []byte, wait bool) *script {
	return &script{Reader: bytes.NewReader(b), closed: make(chan struct{}), wait: wait}
}

func (s *script) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if err == io.EOF && s.wait {
		<-s.closed
	}
	return n, err
}

func (s *script) Write(b []byte) (int, error) { return len(b), nil }

func (s *script) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// server is a stream that says some bytes once it has heard one request, and
// then ends.
type server struct {
	*script
	heard chan struct{}
	once  sync.Once
}

func newServer(b []byte) *server {
	return &server{script: newScript(b, false), heard: make(chan struct{})}
}

func (s *server) Read(b []byte) (int, error) {
	select {
	case <-s.heard:
	case <-s.closed:
		return 0, io.ErrClosedPipe
	}
	return s.script.Read(b)
}

func (s *server) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.heard) })
	return len(b), nil
}

func TestWhatNobodyAskedForIsIgnored(t *testing.T) {
	c := NewClient(newServer(pack(t,
		[]any{2, "event", []any{1}}, // a notification
		[]any{0, 1, "you?", []any{}},
		[]any{1, 99, nil, "nobody"},
		[]any{1, 0, nil, "nobody"},
		[]any{1, 99, []any{0, "nobody"}, nil},
		[]any{1.0, 1.0, nil, uint64(7)}, // the answer, with floats
		[]any{1, 1, nil, uint64(8)},     // the same once more
	)))
	defer c.Close()
	var got uint64
	if err := c.Call(t.Context(), "NextID", &got); err != nil || got != 7 {
		t.Fatal(got, err)
	}
}

func TestFormsOfErrors(t *testing.T) {
	for _, x := range []struct {
		err  any
		want Error
	}{
		{[]any{1, "CODE: text k=v"}, Error{Kind: WrongRequest, Code: "CODE", Message: "text", Details: []Detail{{"k", "v"}}}},
		{[]any{0, []byte("CODE: text")}, Error{Code: "CODE", Message: "text"}},
		{"plain", Error{Message: "plain"}},
		{[]byte("plain"), Error{Message: "plain"}},
		{5, Error{Message: "the server answered with an integer as the error"}},
		{false, Error{Message: "the server answered with a boolean as the error"}},
		{map[string]any{"a": 1}, Error{Message: "the server answered with a map as the error"}},
		{[]any{}, Error{Message: "the server answered with an array that is not a known form of error"}},
		{[]any{"a", "b"}, Error{Message: "the server answered with an array that is not a known form of error"}},
		{[]any{256, "b"}, Error{Message: "the server answered with an array that is not a known form of error"}},
		{[]any{0, 1}, Error{Message: "the server answered with an array that is not a known form of error"}},
	} {
		c := NewClient(newServer(pack(t, []any{1, 1, x.err, nil})))
		err := c.Call(t.Context(), "m", nil)
		if got, ok := errors.AsType[*Error](err); !ok || !reflect.DeepEqual(*got, x.want) {
			t.Errorf("%v: got %#v", x.err, err)
		}
		c.Close()
	}
}

func TestBrokenStreams(t *testing.T) {
	huge := []byte{0xdd, 0xff, 0xff, 0xff, 0xff}
	for name, x := range map[string]struct {
		bytes []byte
		want  error
		words string
	}{
		"the end":              {nil, io.EOF, "connection lost: EOF"},
		"the end of a half":    {[]byte{0x94, 1}, io.ErrUnexpectedEOF, "connection lost: unexpected EOF"},
		"too large":            {huge, ErrTooLarge, "unreadable answer: message larger than 4194304 bytes"},
		"no array":             {[]byte("HTTP/1.1"), nil, "unreadable answer: not MessagePack-RPC"},
		"no message":           {[]byte{0x90}, nil, "unreadable answer: not a message"},
		"a farewell":           {pack(t, []any{1, 0, []any{0, "OVERLOADED: no room"}, nil}), &Error{Code: CodeOverloaded}, "connection lost: OVERLOADED: no room"},
		"a farewell cut short": {append(pack(t, []any{1, 0, []any{0, "OVERLOADED: x"}, nil}), 0x94), &Error{Code: CodeOverloaded}, "OVERLOADED"},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewClient(newServer(x.bytes))
			defer c.Close()
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					err := c.Call(t.Context(), "NextID", nil)
					if !errors.Is(err, ErrConnectionLost) || x.want != nil && !errors.Is(err, x.want) ||
						!strings.Contains(err.Error(), x.words) || !strings.Contains(err.Error(), "call NextID") {
						t.Errorf("got %v", err)
					}
				})
			}
			all.Wait()
			<-c.done
			if err := c.Call(t.Context(), "m", nil); !errors.Is(err, ErrConnectionLost) || !errors.Is(c.Err(), ErrConnectionLost) {
				t.Errorf("afterwards: %v, %v", err, c.Err())
			}
		})
	}
}

func TestExtensionsInResultsAreRefused(t *testing.T) {
	// The library would take the four bytes in the extension's body for the
	// length of a map.
	evil := unhex(t, "c7 05 df ffffffff 00")
	for _, target := range []any{new(any), new(map[string]any), new(map[string]string), new(struct{}), new(map[int]int), new([]any)} {
		for _, raw := range [][]byte{evil, append([]byte{0x91}, evil...), append([]byte{0x81, 0xa1, 'k'}, evil...)} {
			if err := decodeResult(raw, target); err == nil || !strings.Contains(err.Error(), "extension types") {
				t.Errorf("%x into %T: %v", raw, target, err)
			}
		}
	}
}

func TestClose(t *testing.T) {
	c := NewClient(newScript(nil, true))
	started := make(chan struct{})
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			started <- struct{}{}
			if err := c.Call(t.Context(), "NextID", nil); !errors.Is(err, ErrClosed) {
				t.Errorf("got %v", err)
			}
		})
		<-started
	}
	var closers sync.WaitGroup
	for range 3 {
		closers.Go(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closers.Wait()
	waiting.Wait()
	<-c.done
	if !errors.Is(c.Err(), ErrClosed) {
		t.Error(c.Err())
	}
	if err := c.Call(t.Context(), "NextID", nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// A peer that does not read holds no caller beyond its deadline, and ends the Client: a part of a
// request may be written.
func TestDeadlinesOfAPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := NewClient(near)
		defer far.Close()
		defer c.Close()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				begin := time.Now()
				err := c.Call(ctx, "NextID", nil)
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
					t.Errorf("after %v: %v", time.Since(begin), err)
				}
			})
		}
		all.Wait()
		if err := c.Call(t.Context(), "NextID", nil); !errors.Is(err, ErrConnectionLost) {
			t.Error(err)
		}
	})
}

// An answer that comes late is ignored, and later calls succeed.
func TestDeadlinesOfAPeerThatIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := true
		c := newPair(t, func(conn *ServerConn, r *Request) {
			if slow {
				time.Sleep(2 * time.Second)
			}
			slow = false
			conn.ReplyUint64(r.ID, 7)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var got uint64
		if err := c.Call(ctx, "NextID", &got); !errors.Is(err, context.DeadlineExceeded) || got != 0 {
			t.Error(got, err)
		}
		if n := len(c.waiting); n != 0 {
			t.Errorf("%d calls are still remembered", n)
		}
		if err := c.Call(ctx, "NextID", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := c.Call(t.Context(), "NextID", &got); err != nil || got != 7 {
			t.Error(got, err)
		}
	})
}

// turnedAway is a stream to a server that said its last word and closed: writes fail, and that
// word is read only later.
type turnedAway struct {
	*script
	after time.Duration
}

func (s *turnedAway) Read(b []byte) (int, error) {
	time.Sleep(s.after)
	return s.script.Read(b)
}

func (s *turnedAway) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestFarewellIsReadBeforeAFailedWriteCounts(t *testing.T) {
	farewell := pack(t, []any{1, 0, []any{0, "PERMISSION_DENIED: not you"}, nil})
	for after, want := range map[time.Duration]error{
		farewellGrace / 4: &Error{Code: CodePermissionDenied},
		farewellGrace * 4: io.ErrClosedPipe,
	} {
		synctest.Test(t, func(t *testing.T) {
			c := NewClient(&turnedAway{newScript(farewell, false), after})
			defer c.Close()
			if err := c.Call(t.Context(), "NextID", nil); !errors.Is(err, want) || !errors.Is(err, ErrConnectionLost) {
				t.Errorf("after %v: %v", after, err)
			}
		})
	}
}

func TestMsgidsWrapAround(t *testing.T) {
	var ids []uint32
	waits := make(chan struct{})
	c := newPair(t, func(conn *ServerConn, r *Request) {
		ids = append(ids, r.ID)
		if string(r.Method) == "waits" {
			close(waits)
			return
		}
		conn.ReplyUint64(r.ID, 0)
	})
	c.lastID = 1<<32 - 3
	ctx, cancel := context.WithCancel(t.Context())
	var first sync.WaitGroup
	first.Go(func() { _ = c.Call(ctx, "waits", nil) })
	<-waits // the server has it: what follows is behind it on the stream
	c.mu.Lock()
	c.lastID = 1<<32 - 3 // the number after it is taken
	c.mu.Unlock()
	for range 3 {
		must.Succeed(t, c.Call(t.Context(), "m", nil))
	}
	cancel()
	first.Wait()
	if want := []uint32{1<<32 - 2, 1<<32 - 1, 1, 2}; !slices.Equal(ids, want) {
		t.Fatalf("got %v, want %v", ids, want)
	}
}

func ExampleError() {
	err := ParseErrorText(Failed, "CLOCK_BACKWARD: the clock is behind the last ID backward_ms=7000 limit_ms=5000")
	limit, _ := err.Detail("limit_ms")
	fmt.Println(err.Code, limit)
	// Output: CLOCK_BACKWARD 5000
}

// An integer is read from each of its forms, alone and in a batch.
func TestIntegersOfEveryForm(t *testing.T) {
	forms := []any{uint64(1 << 63), uint64(1 << 40), uint8(7), int64(9), float64(11)}
	for n := range 64 {
		values := []any{}
		var want []uint64
		for i := range n % 7 {
			v := forms[0]
			if n > 30 {
				v = forms[(n*7+i*3)%len(forms)]
			}
			values = append(values, v)
			var one uint64
			must.Succeed(t, decodeResult(pack(t, v), &one))
			want = append(want, one)
		}
		var got []uint64
		if err := decodeResult(pack(t, values), &got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v: %v, %v", values, got, err)
		}
	}
}
