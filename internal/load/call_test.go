package load

import (
	"bytes"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// place is what the daemon answers to Placement.Resolve.
type place struct {
	Kind       string `json:"kind"`
	Identity   string `json:"identity"`
	Authority  string `json:"authority"`
	Locality   string `json:"locality"`
	Token      int64  `json:"token"`
	ObservedMS int64  `json:"observed_ms"`
}

// answerAny is what the daemon's own encoder makes of a result.
func answerAny(t *testing.T, number uint32, result any) []byte {
	t.Helper()
	out := wire.NewOutbox(nil)
	must.Succeed(t, out.ReplyAny(number, result))
	return bytes.Clone(out.Unsent())
}

func TestCallsAreReadable(t *testing.T) {
	for name, want := range map[string]struct {
		method string
		params int
	}{Ping: {"Ping", 0}, Resolve("remote", "room", "a/b c"): {"Placement.Resolve", 2}} {
		d, err := newDialect(name, 1)
		must.Succeed(t, err)
		var r wire.Request
		must.Succeed(t, r.Parse(d.appendRequest([]byte{}, firstNumber+7)))
		if string(r.Method) != want.method || r.NumParams() != want.params || r.ID != firstNumber+7 {
			t.Errorf("%s: %s with %d params, number %d", name, r.Method, r.NumParams(), r.ID)
		}
		if want.params == 2 {
			kind, _ := r.Bytes()
			identity, err := r.Bytes()
			if string(kind) != "room" || string(identity) != "a/b c" || err != nil {
				t.Errorf("%s: %s, %s, %v", name, kind, identity, err)
			}
		}
	}
	if _, err := newDialect("resolve local", 1); err == nil {
		t.Error("a dialect without an actor was made")
	}
}

// TestCallAnswers: however the stream is cut, each answer is found once; the time
// in it may be another one, and nothing else.
func TestCallAnswers(t *testing.T) {
	const now = 1_795_000_000_000
	right := place{"room", "7", "b:1", "remote", 0, now}
	later, other, local := right, right, right
	later.ObservedMS, other.Authority, local.Locality = now+5, "c:1", "local"
	refusal := wire.NewOutbox(nil)
	refusal.ReplyError(firstNumber, wire.Errorf(wire.CodePlacementNotReady, "not now"))
	dialect := func() dialect {
		d, err := newDialect(Resolve("remote", "room", "7"), 1)
		must.Succeed(t, err)
		return d
	}
	first, second := answerAny(t, firstNumber, right), answerAny(t, firstNumber+1, later)
	stream := append(bytes.Clone(first), second...)
	for cut := range len(first) {
		d := dialect()
		if n, err := d.take(stream[:cut], firstNumber); n != 0 || err != nil {
			t.Fatalf("%d of %d bytes were taken as an answer of %d (%v)", cut, len(first), n, err)
		}
		if n, err := d.take(stream, firstNumber); n != len(first) || err != nil {
			t.Fatalf("the first answer has %d bytes, not %d (%v)", len(first), n, err)
		}
		if n, err := d.take(stream[len(first):len(stream)-1], firstNumber+1); n != 0 || err != nil {
			t.Fatalf("a part of the second was taken as %d bytes (%v)", n, err)
		}
		if n, err := d.take(stream[len(first):], firstNumber+1); n != len(second) || err != nil {
			t.Fatalf("the second answer has %d bytes, not %d (%v)", len(second), n, err)
		}
	}
	request, err := msgpack.Marshal([]any{0, uint32(firstNumber), "Activate", []any{}})
	must.Succeed(t, err)
	for name, c := range map[string]struct {
		known  bool // after a right answer
		answer []byte
		want   string
	}{
		"a refusal":        {false, refusal.Unsent(), "PLACEMENT_NOT_READY"},
		"a late refusal":   {true, refusal.Unsent(), "PLACEMENT_NOT_READY"},
		"another number":   {true, answerAny(t, firstNumber+9, right), "something else"},
		"another host":     {true, answerAny(t, firstNumber, other), "has changed"},
		"local":            {false, answerAny(t, firstNumber, local), "locality is not remote"},
		"no map":           {false, answerAny(t, firstNumber, "pong"), "kind is not room"},
		"a request":        {false, request, "something else"},
		"no message":       {true, []byte("HTTP/1.1 400 Bad Request\r\n"), "not a message"},
		"to somebody else": {false, answerAny(t, firstNumber, place{"room", "8", "b:1", "remote", 0, now}), "identity is not 7"},
	} {
		d := dialect()
		if c.known {
			if n, err := d.take(first, firstNumber); n != len(first) || err != nil {
				t.Fatal(n, err)
			}
		}
		if n, err := d.take(c.answer, firstNumber); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d bytes, error is %v, want one with %q", name, n, err, c.want)
		}
	}
	pong := newPing()
	if _, err := pong.take(answerAny(t, firstNumber, "pang"), firstNumber); err == nil {
		t.Error("any answer to Ping is taken")
	}
	b := answerAny(t, firstNumber, "pong")
	if n, err := pong.take(b, firstNumber); n != len(b) || err != nil {
		t.Error(n, err)
	}
}
