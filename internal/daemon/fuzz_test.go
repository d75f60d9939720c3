package daemon

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/wire"
)

// expected are the msgids of the answers that a peer is owed, and whether what
// it sent ends in something that is no message.
func expected(sent []byte) (ids []uint32, wrong bool) {
	in := wire.NewInbox(wire.MaxMessage)
	defer in.Release()
	var req wire.Request
	for {
		message, err := in.Next()
		if err == nil && message != nil {
			err = req.Parse(message)
		}
		switch {
		case err != nil:
			return ids, true
		case message != nil && req.Type == wire.TypeRequest:
			ids = append(ids, req.ID)
		case message == nil && len(sent) == 0:
			return ids, false
		case message == nil:
			n := copy(in.Space(), sent)
			in.Added(n)
			sent = sent[n:]
		}
	}
}

// Whatever a peer sends, every request gets its answer, in order; what is no
// message gets one refusal and the end; and another peer notices nothing.
func FuzzConnection(f *testing.F) {
	r := newRig(f, func(s *setup) { s.source, s.services["orders"] = clock.System{}, settings() }, wide).start()
	other := r.dial()
	all := func(messages ...[]byte) []byte { return slices.Concat(messages...) }
	for _, seed := range [][]byte{
		nil,
		request(0, "NextID", []any{}),
		request(1, "NextID", []any{options{"service": "orders", "timeout_ms": 1, "format": "external", "regular_only": true}}),
		all(request(1, "NextIDs", []any{300}), request(2, "NextIDs", []any{3, options{"format": "string"}}), request(3, "NextIDs", []any{-1})),
		all(request(1, "Inspect", []any{1 << 40}), request(2, "Inspect", []any{"0x1f"}), request(3, "Inspect", []any{"ASNFZ4mrze8"})),
		all(request(1, "Bounds", []any{0, int64(1) << 62}), request(2, "Bounds", []any{startMS, startMS + 1, nil})),
		all(request(1, "ToExternal", []any{7}), request(2, "ToInternal", []any{"ASNFZ4mrze8", options{"latest_ms": 1.5e12}})),
		all(request(1, "Status", []any{}), request(2, []byte("Ping"), []any{}), request(3, "UUID", []any{4}), request(4, "UUID", []any{nil})),
		all(pack([]any{2, "NextID", []any{}}), pack([]any{1, 3, nil, 4}), request(9.0, "Nonsense", options{"a": []any{1}})),
		all(request(1, "Ping", []any{}), []byte("GET / HTTP/1.1\r\n\r\n")),
		{0x94, 0x00, 0x01, 0xdb, 0xff, 0xff, 0xff, 0xff},
		{0x94, 0x00, 0x01, 0xa4, 'P', 'i', 'n', 'g', 0x91, 0xc7, 0x04, 0x05, 1, 2, 3, 4},
	} {
		f.Add(seed, uint16(3))
	}
	f.Fuzz(func(t *testing.T, sent []byte, first uint16) {
		if len(sent) > 2<<10 { // the answers to a batch are 100,000 times as long
			t.Skip()
		}
		p, err := dial(t, r.path)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			// In two pieces. After something wrong the daemon may have closed.
			cut := min(int(first), len(sent))
			_, _ = p.Write(sent[:cut])
			_, _ = p.Write(sent[cut:])
			_ = p.CloseWrite()
		}()
		ids, wrong := expected(sent)
		for i, id := range ids {
			got, err := p.read()
			if err != nil || got.id != id {
				t.Fatalf("answer %d of %d has msgid %d, want %d: %v", i, len(ids), got.id, id, err)
			}
			if got.err != nil && (got.err.Code == codeInternal || got.err.Kind != got.err.Code.Kind()) {
				t.Errorf("answer %d: %v", i, got.err)
			}
		}
		if wrong {
			got, err := p.read()
			if err != nil || got.id != 0 || got.err == nil || got.err.Code != wire.CodeParseError {
				t.Fatalf("what is no message is answered with %+v, %v", got, err)
			}
		}
		if got, err := p.read(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last answer: %+v, %v", got, err)
		}
		<-wrote
		other.t = t
		_ = other.SetDeadline(time.Now().Add(hang))
		other.alive()
	})
}
