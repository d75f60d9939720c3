package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// allocationLimit is what handling an input may allocate: buffers, and what
// errors and decoded values cost, but never what a length merely announces.
func allocationLimit(input []byte) uint64 {
	return 4<<20 + 256*uint64(len(input))
}

func seedServer(f *testing.F) {
	many := request(f, 1, "NextIDs", 100, map[string]any{"service": "a", "timeout_ms": 5.0})
	for range 5 {
		many = append(many, many...)
	}
	for _, seed := range [][]byte{
		nil,
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		request(f, 0, "NextID"),
		request(f, uint32(1<<32-1), []byte("NextIDs"), 65536.0),
		request(f, 3, "Inspect", uint64(8070450532247928833)),
		request(f, 3, "Inspect", -1, 1.5, nil, true, []byte("b"), []any{[]any{}, map[string]any{}}),
		request(f, 3, "Lock.Acquire", "key", map[string]any{"ttl_ms": 5, "meta": map[string]any{"a": []any{1, nil}}}),
		pack(f, []any{2, "event", []any{1}}),
		pack(f, []any{1, 5, nil, "answer"}),
		pack(f, []any{0, 1, "m", nil}, []any{0, 1, "m", map[string]any{}}, []any{0, 1, "m", 5}),
		pack(f, []any{0, 1, 5, []any{}}),
		unhex(f, "dc0004 cb0000000000000000 d30000000000000001 d9064e6578744944 dd00000001 de0001 c401 61 ca3f800000"),
		unhex(f, "94 00 01 a161 93 d40161 c7020161 61 d800 00000000000000000000000000000000"),
		unhex(f, "94 00 01 a161 91 81 d40161 c0"),
		unhex(f, "ddffffffff"),
		unhex(f, "94 00 01 dbffffffff"),
		unhex(f, "94 00 01 a161 dfffffffff"),
		unhex(f, "94 00 01 a161 91 db000fff00 61"),
		bytes.Repeat([]byte{0x91}, 100),
		many,
	} {
		f.Add(seed, uint8(0))
		f.Add(seed, uint8(1))
	}
}

// readEveryWay reads params by what the method and the kinds suggest, rightly
// and wrongly.
func readEveryWay(r *Request) error {
	copied := new(Request)
	if err := copied.Parse(r.values.raw); err != nil {
		panic("a parsed message does not parse again: " + err.Error())
	}
	if len(r.Method) > 0 && r.Method[0]%2 == 0 {
		_, _, _, err := readOptions(copied)
		if err != nil {
			return err
		}
	}
	var wrong []error
	for r.Next() != KindNone {
		_, err1 := r.Uint64()
		_, err2 := r.Bytes()
		_, err3 := r.Bool()
		wrong = append(wrong, err1, err2, err3)
		if len(wrong) > 30 {
			wrong = nil
		}
		if err := readByKind(r); err != nil {
			wrong = append(wrong, err, r.Skip())
		}
	}
	return errors.Join(append(wrong, r.Options(), r.End())...)
}

func readByKind(r *Request) (err error) {
	switch r.Next() {
	case KindNil:
		r.Nil()
	case KindBool:
		_, err = r.Bool()
	case KindInt, KindFloat:
		_, err = r.Int64()
	case KindString, KindBinary:
		_, err = r.Bytes()
	case KindArray:
		_, err = r.ArrayLen()
	case KindMap, KindExtension:
		_, err = r.Raw()
	}
	return err
}

func FuzzServer(f *testing.F) {
	seedServer(f)
	f.Fuzz(func(t *testing.T, input []byte, how uint8) {
		var r io.Reader = bytes.NewReader(input)
		if how%2 == 1 {
			r = iotest.OneByteReader(r)
		}
		var w writes
		var end error
		used := allocated(func() {
			conn := NewServerConn(r, &w)
			var req Request
			for {
				if end = conn.Read(&req); end != nil {
					break
				}
				switch err := readEveryWay(&req); {
				case req.Type != TypeRequest:
				case err != nil:
					conn.ReplyError(req.ID, Errorf(CodeInvalidParams, "%s: %.200v", Excerpt(req.Method), err))
				default:
					conn.ReplyUint64(req.ID, 1)
				}
				if !conn.Pending() {
					_ = conn.Flush()
				}
			}
			if err := conn.Refuse(end); err != nil {
				t.Fatal(err)
			}
		})
		var parse *ParseError
		if end != io.EOF && end != io.ErrUnexpectedEOF && !errors.As(end, &parse) {
			t.Fatalf("ended with %v", end)
		}
		if limit := allocationLimit(input); used > limit {
			t.Fatalf("%d bytes of input: %d bytes allocated, limit %d", len(input), used, limit)
		}
		for _, a := range decodeAll(t, w.Bytes()) {
			if answer, ok := a.([]any); !ok || len(answer) != 4 || answer[0] != int64(1) {
				t.Fatalf("an answer that is none: %v", a)
			}
		}
	})
}

func FuzzClient(f *testing.F) {
	for _, seed := range [][]byte{
		nil,
		pack(f, []any{1, 1, nil, uint64(7)}),
		pack(f, []any{1, 1, nil, []any{uint64(1), uint64(2)}}),
		pack(f, []any{1, 1, nil, map[string]any{"version": "1", "features": []any{"a"}, "n": 1.5}}),
		pack(f, []any{1, 1, []any{1, "TIMEOUT: waited waited_ms=5 cause=\"a lease\""}, nil}),
		pack(f, []any{1, 0, []any{0, "OVERLOADED: no"}, nil}),
		pack(f, []any{1, 1, "text", nil}, []any{1, 1, 5, nil}),
		pack(f, []any{2, "event", []any{}}, []any{0, 1, "m", []any{}}, []any{1, 9, nil, nil}),
		unhex(f, "94 01 01 c0 c7 05 df ffffffff 00"),
		unhex(f, "94 01 01 c0 81 a161 c7 05 df ffffffff 00"),
		unhex(f, "94 01 01 c0 d6ff 00000000"),
		unhex(f, "94 01 01 c0 ddffffffff"),
		unhex(f, "94 01 01 c0 81 91c0 c0"),
		bytes.Repeat([]byte{0x91}, 100),
		[]byte("HTTP/1.1 400 Bad Request\r\n"),
	} {
		for target := range uint8(len(fuzzTargets)) {
			f.Add(seed, target)
		}
	}
	f.Fuzz(func(t *testing.T, input []byte, target uint8) {
		used := allocated(func() {
			c := NewClient(newServer(input))
			defer c.Close()
			// The stream ends, so the call does, with any result.
			err := c.Call(t.Context(), "m", fuzzTargets[int(target)%len(fuzzTargets)](), 1)
			<-c.done
			if !errors.Is(c.Err(), ErrConnectionLost) {
				t.Fatalf("call: %v, client: %v", err, c.Err())
			}
		})
		if limit := allocationLimit(input); used > limit {
			t.Fatalf("%d bytes of input: %d bytes allocated, limit %d", len(input), used, limit)
		}
	})
}

// fuzzTargets make the targets of calls.
var fuzzTargets = []func() any{
	func() any { return nil },
	func() any { return new(uint64) },
	func() any { return new(int64) },
	func() any { return new([]uint64) },
	func() any { return new(any) },
	func() any { return new(string) },
	func() any { return new([]string) },
	func() any { return new(map[string]any) },
	func() any {
		return new(struct {
			Version  string         `json:"version"`
			Features []string       `json:"features"`
			N        int            `json:"n"`
			Meta     map[string]any `json:"meta"`
			Raw      []byte         `json:"raw"`
		})
	},
}

func FuzzErrorText(f *testing.F) {
	f.Add("CLOCK_BACKWARD: the clock is behind the last ID backward_ms=7000 limit_ms=5000")
	f.Add(`TIMEOUT: x a="" b="q\"" c="1=2"`)
	f.Add(`a="x k="" "`)
	f.Fuzz(func(t *testing.T, text string) {
		e := ParseErrorText(Failed, text)
		clean := e.Error()
		if e.Code == "" {
			return // not ours: once its control characters are gone it may look as if it were
		}
		if again := ParseErrorText(Failed, clean).Error(); again != clean {
			t.Fatalf("%q became %q, and that %q", text, clean, again)
		}
	})
}
