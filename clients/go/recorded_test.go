//go:build go1.25

package kazahana

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"reflect"
	"testing"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

// recordedExchange is a request and its answer, of the file that all languages share.
type recordedExchange struct {
	Name     string `json:"name"`
	Method   string `json:"method"`
	Params   []any  `json:"params"`
	Request  string `json:"request_hex"`
	Response string `json:"response_hex"`
	Result   any    `json:"result"`
	Error    *struct {
		Code    Code              `json:"code"`
		Message string            `json:"message"`
		Details map[string]string `json:"details"`
	} `json:"error"`
}

func exchanges(t *testing.T) (all []recordedExchange) {
	t.Helper()
	text, err := os.ReadFile("../../testdata/wire_exchanges.json")
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&all); err != nil || len(all) == 0 {
		t.Fatal(err, len(all))
	}
	return all
}

// plain makes numbers of what the file writes as such: json.Number, and
// {"$int": "..."} beyond 2^53.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		n, err := v.Int64()
		if err != nil {
			panic(err)
		}
		return n
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		if text, ok := v["$int"].(string); ok {
			return plain(json.Number(text))
		}
		for key := range v {
			v[key] = plain(v[key])
		}
	}
	return v
}

// decoded is a value of the wire.
func decoded(t *testing.T, b []byte) any {
	t.Helper()
	r := msgpack.NewReader(bytes.NewReader(b))
	r.Next(len(b))
	v := r.Value()
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	return v
}

// The client sends the recorded bytes, but for the msgid, and reads the answer as the file says.
func TestRecordedExchanges(t *testing.T) {
	for _, e := range exchanges(t) {
		t.Run(e.Name, func(t *testing.T) {
			if e.Error != nil && e.Error.Code == ErrShuttingDown {
				return // it would be asked again: TestShuttingDownIsRepeated
			}
			request, err1 := hex.DecodeString(e.Request)
			response, err2 := hex.DecodeString(e.Response)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(request, []byte{0xcf, 0x80}) { // what has 64 bits is no ID, and is not even asked for
				if err := newClient(t, scripted(t, silent)).Call(t.Context(), e.Method, nil, uint64(1<<63)); !errors.Is(err, e.Error.Code) {
					t.Errorf("%v, want %s", err, e.Error.Code)
				}
				return
			}
			want := decoded(t, request).([]any)
			c := newClient(t, scripted(t, func(conn net.Conn) {
				r := msgpack.NewReader(conn)
				r.Next(1 << 20)
				sent, _ := r.Value().([]any)
				if r.Err() != nil {
					return
				}
				if sent[2] != want[2] || !reflect.DeepEqual(sent[3], want[3]) { // seed 000-3.1-2
					t.Errorf("sent %v, want %v", sent, want)
				}
				// Only the first answer of a connection has msgid 1.
				if _, err := conn.Write(withMsgid1(response)); err != nil {
					t.Error(err)
				}
			}))
			var result any
			err := c.Call(t.Context(), e.Method, &result, want[3].([]any)...)
			if e.Error == nil {
				if err != nil || !reflect.DeepEqual(result, plain(e.Result)) {
					t.Errorf("%v, %v, want %v", result, err, e.Result)
				}
				return
			}
			var got *Error
			if !errors.As(err, &got) || got.Code != e.Error.Code || got.Message != e.Error.Message || len(got.Details) != len(e.Error.Details) {
				t.Fatalf("%v, want %+v", err, e.Error)
			}
			for key, value := range e.Error.Details {
				if got.Details[key] != value {
					t.Errorf("%s is %q, want %q", key, got.Details[key], value)
				}
			}
		})
	}
}

// withMsgid1 replaces the msgid of a response.
func withMsgid1(response []byte) []byte {
	size := 1
	if response[2] == 0xce {
		size = 5
	}
	return append([]byte{response[0], response[1], 1}, response[2+size:]...)
}
