package daemon

import (
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/wire"
)

// expected are the msgids of the answers that a peer is owed, and whether its bytes end in
// something that is no message.
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

// With any bytes from a peer, every request gets its answer, in order; anything else gets
// one refusal and the end; another peer notices nothing; and all of it is the same with
// an event loop and without.
func FuzzConnection(f *testing.F) {
	var rigs []*rig
	var others []*peer
	for _, engine := range engines {
		r := newRig(f, func(s *setup) {
			s.loop, s.source, s.services["orders"] = engine.loop, clock.System{}, settings()
		}, wide).start()
		rigs, others = append(rigs, r), append(others, r.dial())
	}
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
		var answers [2][]reply
		for i, r := range rigs {
			answers[i] = exchange(t, r, sent, int(first))
			others[i].t = t
			_ = others[i].SetDeadline(time.Now().Add(hang))
			others[i].alive()
		}
		for i, one := range answers[0] {
			other := answers[1][i]
			if timedOut(one) || timedOut(other) {
				continue // a matter of time
			}
			if a, b := shape(t, one), shape(t, other); a != b {
				t.Errorf("answer %d\n%s: %s\n%s: %s", i, engines[0].name, a, engines[1].name, b)
			}
		}
	})
}

func timedOut(r reply) bool { return r.err != nil && r.err.Code == wire.CodeTimeout }
