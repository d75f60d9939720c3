package wire

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestRequestAccepts(t *testing.T) {
	nextID := "a64e6578744944"
	cases := []struct {
		name, hex string
		typ       MessageType
		id        uint32
		method    string
		params    int
	}{
		{"a request", "94 00 05 " + nextID + " 90", TypeRequest, 5, "NextID", 0},
		{"msgid 0", "94 00 00 " + nextID + " 90", TypeRequest, 0, "NextID", 0},
		{"the largest msgid", "94 00 ceffffffff " + nextID + " 90", TypeRequest, math.MaxUint32, "NextID", 0},
		{"msgid as uint 64", "94 00 cf0000000000000007 " + nextID + " 90", TypeRequest, 7, "NextID", 0},
		{"msgid as int 64", "94 00 d30000000000000007 " + nextID + " 90", TypeRequest, 7, "NextID", 0},
		{"msgid as float 32", "94 00 ca40e00000 " + nextID + " 90", TypeRequest, 7, "NextID", 0},
		{"msgid as float 64", "94 00 cb401c000000000000 " + nextID + " 90", TypeRequest, 7, "NextID", 0},
		{"msgid as minus zero", "94 00 cb8000000000000000 " + nextID + " 90", TypeRequest, 0, "NextID", 0},
		{"type as float 64", "94 cb0000000000000000 05 " + nextID + " 90", TypeRequest, 5, "NextID", 0},
		{"type as uint 8", "94 cc00 05 " + nextID + " 90", TypeRequest, 5, "NextID", 0},
		{"method as str 8", "94 00 05 d9064e6578744944 90", TypeRequest, 5, "NextID", 0},
		{"method as bin 8", "94 00 05 c4064e6578744944 90", TypeRequest, 5, "NextID", 0},
		{"method as bin 16", "94 00 05 c500064e6578744944 90", TypeRequest, 5, "NextID", 0},
		{"an empty method", "94 00 05 a0 90", TypeRequest, 5, "", 0},
		{"message as array 16", "dc0004 00 05 " + nextID + " 90", TypeRequest, 5, "NextID", 0},
		{"message as array 32", "dd00000004 00 05 " + nextID + " 90", TypeRequest, 5, "NextID", 0},
		{"params as array 16", "94 00 05 " + nextID + " dc0002 c0 c0", TypeRequest, 5, "NextID", 2},
		{"a notification", "93 02 " + nextID + " 91 01", TypeNotification, 0, "NextID", 1},
		{"a notification with a bin method", "93 02 c4064e6578744944 90", TypeNotification, 0, "NextID", 0},
		{"a response", "94 01 09 c0 cf0000000000000001", TypeResponse, 9, "", 0},
		{"a response with an error", "94 01 09 92 00 a3666f6f c0", TypeResponse, 9, "", 0},
	}
	var r Request // one for all: nothing may stay from the message before
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			msg := unhex(t, c.hex)
			must.Succeed(t, r.Parse(msg))
			if r.Type != c.typ || r.ID != c.id || string(r.Method) != c.method || r.NumParams() != c.params {
				t.Fatalf("got type %d id %d method %q params %d", r.Type, r.ID, r.Method, r.NumParams())
			}
			conn := NewServerConn(bytes.NewReader(msg), nil)
			var again Request
			if err := conn.Read(&again); err != nil || again.ID != c.id {
				t.Fatalf("through a connection: %v", err)
			}
		})
	}
}

func TestRequestRefuses(t *testing.T) {
	cases := []struct{ name, hex, reason string }{
		{"empty array", "90", "array of 0 elements"},
		{"two elements", "92 00 01", "array of 2 elements"},
		{"five elements", "95 00 01 a161 90 c0", "array of 5 elements"},
		{"request of three", "93 00 01 a161", "type 0 has 4 elements, not 3"},
		{"response of three", "93 01 01 c0", "type 1 has 4 elements, not 3"},
		{"notification of four", "94 02 01 a161 90", "type 2 has 3 elements, not 4"},
		{"unknown type", "94 03 01 a161 90", "unknown message type 3"},
		{"negative type", "94 ff 01 a161 90", "bad message type: -1 is negative"},
		{"type nil", "94 c0 01 a161 90", "bad message type: want an integer, got nil"},
		{"type 0.5", "94 cb3fe0000000000000 01 a161 90", "bad message type: 0.5 is not an integer"},
		{"msgid nil", "94 00 c0 a161 90", "bad msgid: want an integer, got nil"},
		{"msgid string", "94 00 a131 a161 90", "bad msgid: want an integer, got a string"},
		{"msgid negative", "94 00 ff a161 90", "bad msgid: -1 is negative"},
		{"msgid too large", "94 00 cf0000000100000000 a161 90", "bad msgid: 4294967296 does not fit 32 bits"},
		{"msgid 1.5", "94 00 cb3ff8000000000000 a161 90", "bad msgid: 1.5 is not an integer"},
		{"msgid NaN", "94 00 cb7ff8000000000000 a161 90", "bad msgid: NaN is not an integer"},
		{"msgid infinite", "94 00 cb7ff0000000000000 a161 90", "bad msgid: +Inf is not an integer"},
		{"msgid of a response", "94 01 a131 c0 c0", "bad msgid: want an integer, got a string"},
		{"method integer", "94 00 01 05 90", "bad method: want a string, got an integer"},
		{"method nil", "94 00 01 c0 90", "bad method: want a string, got nil"},
		{"method array", "94 00 01 91a161 90", "bad method: want a string, got an array"},
		{"method extension", "94 00 01 d40161 90", "bad method: want a string, got an extension type"},
		{"method of a notification", "93 02 05 90", "bad method: want a string, got an integer"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			conn := NewServerConn(bytes.NewReader(append(unhex(t, c.hex), request(t, 1, "Ping")...)), nil)
			var r Request
			for range 2 { // no message after it is believed
				err := conn.Read(&r)
				if _, ok := errors.AsType[*ParseError](err); !ok || !strings.Contains(err.Error(), c.reason) {
					t.Fatalf("got %v, want %q", err, c.reason)
				}
			}
		})
	}
}

func TestIntegers(t *testing.T) {
	cases := []struct {
		hex               string
		int64             int64
		uint64            uint64
		noInt64, noUint64 string // the errors
	}{
		{"00", 0, 0, "", ""},
		{"7f", 127, 127, "", ""},
		{"ff", -1, 0, "", "-1 is negative"},
		{"e0", -32, 0, "", "-32 is negative"},
		{"ccff", 255, 255, "", ""},
		{"cdffff", 65535, 65535, "", ""},
		{"ceffffffff", math.MaxUint32, math.MaxUint32, "", ""},
		{"cf7fffffffffffffff", math.MaxInt64, math.MaxInt64, "", ""},
		{"cf8000000000000000", 0, 1 << 63, "9223372036854775808 is too large (at most 9223372036854775807)", ""},
		{"cfffffffffffffffff", 0, math.MaxUint64, "18446744073709551615 is too large", ""},
		{"d080", -128, 0, "", "-128 is negative"},
		{"d18000", -32768, 0, "", "-32768 is negative"},
		{"d280000000", math.MinInt32, 0, "", "-2147483648 is negative"},
		{"d38000000000000000", math.MinInt64, 0, "", "-9223372036854775808 is negative"},
		{"d37fffffffffffffff", math.MaxInt64, math.MaxInt64, "", ""},
		{"ca42c80000", 100, 100, "", ""},
		{"cb4059000000000000", 100, 100, "", ""},
		{"cbc059000000000000", -100, 0, "", "-100 is negative"},
		{"cb8000000000000000", 0, 0, "", ""},
		{"cbc3e0000000000000", math.MinInt64, 0, "", "is negative"},
		{"cbc3f0000000000000", 0, 0, "does not fit 64 bits", "does not fit 64 bits"},
		{"cb43e0000000000000", 0, 1 << 63, "is too large", ""},
		{"cb43f0000000000000", 0, 0, "does not fit 64 bits", "does not fit 64 bits"},
		{"cb3fe0000000000000", 0, 0, "0.5 is not an integer", "0.5 is not an integer"},
		{"cb7ff8000000000000", 0, 0, "NaN is not an integer", "NaN is not an integer"},
		{"cbfff0000000000000", 0, 0, "-Inf is not an integer", "-Inf is not an integer"},
		{"c0", 0, 0, "want an integer, got nil", "want an integer, got nil"},
		{"c3", 0, 0, "want an integer, got a boolean", "want an integer, got a boolean"},
		{"a131", 0, 0, "want an integer, got a string", "want an integer, got a string"},
	}
	for _, c := range cases {
		msg := append(unhex(t, "94 00 01 a161 91"), unhex(t, c.hex)...)
		i, err := parsed(t, msg).Int64()
		check := func(what string, same bool, err error, words string) {
			t.Helper()
			switch {
			case words != "":
				wantError(t, err, CodeInvalidParams, "parameter 1: ")
				wantError(t, err, CodeInvalidParams, words)
			case err != nil || !same:
				t.Errorf("%s as %s: %v", c.hex, what, err)
			}
		}
		check("int64", i == c.int64, err, c.noInt64)
		u, err := parsed(t, msg).Uint64()
		check("uint64", u == c.uint64, err, c.noUint64)
	}
}

func TestParamsOfEveryKind(t *testing.T) {
	r := parsed(t, request(t, 1, "m", nil, true, -5, uint64(7), "str", []byte("bin"), []any{1, "x"},
		map[string]any{"k": []any{1, 2}}, []any{1, []any{2}}, "last"))
	if r.NumParams() != 10 || r.Next() != KindNil || r.Nil() != true || r.Nil() != false {
		t.Fatal("nil")
	}
	if b, err := r.Bool(); !b || err != nil {
		t.Fatal("bool", err)
	}
	if n, err := r.Int64(); n != -5 || err != nil {
		t.Fatal("int64", n, err)
	}
	if n, err := r.Uint64(); n != 7 || err != nil {
		t.Fatal("uint64", n, err)
	}
	for _, want := range []string{"str", "bin"} {
		if b, err := r.Bytes(); string(b) != want || err != nil {
			t.Fatal("bytes", b, err)
		}
	}
	n, err := r.ArrayLen()
	first, err1 := r.Int64()
	second, err2 := r.Bytes()
	if n != 2 || first != 1 || string(second) != "x" || errors.Join(err, err1, err2) != nil {
		t.Fatal("array", n, first, second, err, err1, err2)
	}
	raw, err := r.Raw()
	if !bytes.Equal(raw, pack(t, map[string]any{"k": []any{1, 2}})) || err != nil {
		t.Fatal("map", raw, err)
	}
	if err := r.Skip(); err != nil {
		t.Fatal("skip", err)
	}
	wantError(t, r.End(), CodeInvalidParams, "too many parameters: got 10, want at most 9")
	if b, err := r.Bytes(); string(b) != "last" || err != nil {
		t.Fatal("last", b, err)
	}
	if err := r.End(); err != nil || r.Next() != KindNone {
		t.Fatal("end", err, r.Next())
	}
	_, err = r.Int64()
	wantError(t, err, CodeInvalidParams, "parameter 11 is missing")
}

func TestParamsOfTheWrongKind(t *testing.T) {
	reads := map[string]func(*Request) error{
		"want an integer":  func(r *Request) error { _, err := r.Int64(); return err },
		"want an integer,": func(r *Request) error { _, err := r.Uint64(); return err },
		"want a string":    func(r *Request) error { _, err := r.Bytes(); return err },
		"want a boolean":   func(r *Request) error { _, err := r.Bool(); return err },
		"want an array":    func(r *Request) error { _, err := r.ArrayLen(); return err },
	}
	for words, read := range reads {
		r := parsed(t, request(t, 1, "m", 1, nil))
		must.Succeed(t, r.Skip())
		wantError(t, read(r), CodeInvalidParams, words)
		wantError(t, read(r), CodeInvalidParams, "parameter 2: ") // it was not consumed
		r = parsed(t, request(t, 1, "m", []any{nil}))
		if _, err := r.ArrayLen(); err != nil {
			t.Fatal(err)
		}
		wantError(t, read(r), CodeInvalidParams, "in parameter 1: ")
	}
}

func TestParamsThatAreNoArray(t *testing.T) {
	for hex, kind := range map[string]string{"c0": "nil", "80": "a map", "05": "an integer", "a161": "a string", "d40100": "an extension type"} {
		r := parsed(t, append(unhex(t, "94 00 05 a161"), unhex(t, hex)...))
		if r.ID != 5 || r.NumParams() != 0 || r.Next() != KindNone {
			t.Fatalf("%s: id %d, %d params", kind, r.ID, r.NumParams())
		}
		_, err := r.Int64()
		_, err2 := r.ArrayLen()
		for _, err := range []error{err, err2, r.Options(), r.End(), r.Skip()} {
			wantError(t, err, CodeInvalidParams, "params must be an array, not "+kind)
		}
	}
}

// readOptions reads the values of three options, and leaves those of others unread.
func readOptions(r *Request) (service []byte, timeout int64, regular bool, err error) {
	if err = r.Options(); err != nil {
		return
	}
	for {
		name, ok, err := r.NextOption()
		if err != nil || !ok {
			return service, timeout, regular, err
		}
		switch string(name) {
		case "service":
			service, err = r.Bytes()
		case "timeout_ms":
			timeout, err = r.Int64()
		case "regular_only":
			regular, err = r.Bool()
		}
		if err != nil {
			return service, timeout, regular, err
		}
	}
}

func TestOptions(t *testing.T) {
	opts := map[string]any{"service": "s", "timeout_ms": 5.0, "regular_only": true, "ignored": []any{1, map[string]any{"a": 2}}}
	for _, params := range [][]any{{opts}, {7, opts}} {
		r := parsed(t, request(t, 1, "m", params...))
		if len(params) == 2 {
			if n, err := r.Int64(); n != 7 || err != nil {
				t.Fatal(n, err)
			}
		}
		service, timeout, regular, err := readOptions(r)
		if string(service) != "s" || timeout != 5 || !regular || err != nil {
			t.Fatal(service, timeout, regular, err)
		}
		must.Succeed(t, r.End())
		_, err = r.Int64()
		wantError(t, err, CodeInvalidParams, "no option to read")
	}
	binary := append(unhex(t, "94 00 01 a161 91 81"), append(pack(t, []byte("service")), pack(t, []byte("b"))...)...)
	if service, _, _, err := readOptions(parsed(t, binary)); string(service) != "b" || err != nil {
		t.Fatal("options in bin", service, err)
	}
	for _, params := range [][]any{{}, {nil}, {map[string]any{}}} {
		if _, _, _, err := readOptions(parsed(t, request(t, 1, "m", params...))); err != nil {
			t.Fatal(params, err)
		}
	}
	nested := parsed(t, request(t, 1, "m", []any{1, 2, 3}, map[string]any{"service": "s"}))
	if _, err := nested.ArrayLen(); err != nil {
		t.Fatal(err)
	}
	if service, _, _, err := readOptions(nested); string(service) != "s" || err != nil {
		t.Fatal("behind an array half read", service, err)
	}
}

// Skipping must not leave a large buffer behind in a Request, which lives as
// long as its connection.
func TestSkipKeepsNothing(t *testing.T) {
	msg := request(t, 1, "m", make([]byte, 250_000))
	r := parsed(t, msg)
	if got := allocated(func() {
		for range 10 {
			must.Succeed(t, errors.Join(r.Parse(msg), r.Skip(), r.End()))
		}
	}); got > 100_000 {
		t.Fatalf("%d bytes allocated", got)
	}
}

// A failed read leaves the value for another method.
func TestFailedReadsLeaveTheValue(t *testing.T) {
	r := parsed(t, request(t, 1, "m", uint64(math.MaxUint64), -1))
	_, err := r.Int64()
	wantError(t, err, CodeInvalidParams, "parameter 1: 18446744073709551615 is too large")
	if n, err := r.Uint64(); n != math.MaxUint64 || err != nil {
		t.Fatal(n, err)
	}
	_, err = r.Uint64()
	wantError(t, err, CodeInvalidParams, "parameter 2: -1 is negative")
	if n, err := r.Int64(); n != -1 || err != nil {
		t.Fatal(n, err)
	}
}
