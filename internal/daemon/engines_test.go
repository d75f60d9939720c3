package daemon

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// engines are the ways in which a connection is served.
var engines = []struct {
	name string
	loop bool
}{{"event loop", true}, {"goroutines", false}}

// shape is an answer without what may differ from one time to the next.
func shape(t testing.TB, r reply) string {
	t.Helper()
	if r.err != nil {
		text := strings.Map(func(c rune) rune {
			if unicode.IsDigit(c) {
				return -1
			}
			return c
		}, r.err.Error())
		return fmt.Sprintf("%d: %v %s", r.id, r.err.Kind, text)
	}
	var v any
	if err := msgpack.Unmarshal(r.result, &v); err != nil {
		t.Fatalf("%x: %v", []byte(r.result), err)
	}
	return fmt.Sprintf("%d: %s", r.id, shapeOf(v))
}

func shapeOf(v any) string {
	switch v := v.(type) {
	case []any:
		var runs []string // of equal elements
		n := 0
		for i, one := range v {
			s := shapeOf(one)
			n++
			if i+1 == len(v) || shapeOf(v[i+1]) != s {
				runs = append(runs, fmt.Sprintf("%dx%s", n, s))
				n = 0
			}
		}
		return fmt.Sprint(runs)
	case map[string]any:
		var pairs []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			pairs = append(pairs, name+":"+shapeOf(v[name]))
		}
		return fmt.Sprint(pairs)
	case string:
		return "text"
	case nil:
		return "nil"
	case bool:
		return "bool"
	case uint64:
		return "uint64" // IDs have one form
	case int8, int16, int32, int64, uint8, uint16, uint32:
		return "integer"
	}
	return fmt.Sprintf("%T", v)
}

// anyRequest is a message, and whether it is owed an answer.
func anyRequest(rnd *rand.Rand, id uint32) (message []byte, owed bool) {
	counts := []any{1, 2, 100, 255, 256, 257, 300, 4095, 4096, 4097, 5000, MaxBatch, 0, -1, MaxBatch + 1, 3.0, "3", nil}
	opts := patient()
	if rnd.IntN(2) == 0 {
		opts["format"] = []string{"int", "string", "external", "hex"}[rnd.IntN(4)]
	}
	if rnd.IntN(4) == 0 {
		opts["regular_only"] = true
	}
	if rnd.IntN(8) == 0 {
		opts["service"] = []string{"default", "orders"}[rnd.IntN(2)]
	}
	switch rnd.IntN(14) {
	case 0, 1, 2:
		return request(id, "NextID", []any{}), true
	case 3, 4:
		return request(id, "NextIDs", []any{1 + rnd.IntN(300)}), true
	case 5:
		return request(id, "NextIDs", []any{counts[rnd.IntN(len(counts))]}), true
	case 6:
		return request(id, "NextID", []any{opts}), true
	case 7:
		return request(id, "NextIDs", []any{counts[rnd.IntN(len(counts))], opts}), true
	case 8:
		return request(id, "Ping", []any{}), true
	case 9:
		return request(float64(id), []byte("Inspect"), []any{rnd.Uint64N(1 << 62)}), true
	case 10:
		return request(id, strings.Repeat("x", rnd.IntN(300)), []any{nil, options{"a": []any{1.5}}}), true
	case 11:
		return pack([]any{2, "NextID", []any{}}), false
	case 12:
		return pack([]any{1, id, nil, strings.Repeat("y", rnd.IntN(1000))}), false
	}
	return request(id, []string{"Bounds", "Status", "ToExternal", "UUID"}[rnd.IntN(4)], []any{}), true
}

// Both engines give the same answers, in the same order, however the stream is
// cut; and whichever serves a connection at the moment, its IDs ascend.
func TestEnginesAnswerTheSame(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		var answers [2][]string
		for i, engine := range engines {
			answers[i] = anyStream(t, seed, engine.loop)
		}
		if !slices.Equal(answers[0], answers[1]) {
			for i := range min(len(answers[0]), len(answers[1])) {
				if answers[0][i] != answers[1][i] {
					t.Errorf("seed %d: answer %d\n%s: %s\n%s: %s", seed, i, engines[0].name, answers[0][i], engines[1].name, answers[1][i])
				}
			}
			t.Fatalf("seed %d: %d answers, and %d", seed, len(answers[0]), len(answers[1]))
		}
	}
}

// anyStream sends what the seed makes of it, and returns the shapes of the
// answers. How the stream is cut is no part of the seed's requests.
func anyStream(t *testing.T, seed uint64, loop bool) (shapes []string) {
	r := newRig(t, func(s *setup) {
		s.loop = loop
		s.terms = provider.DefaultTerms()
		s.terms.BitSeq, s.terms.BitID = 12, snowflake.ValueBits-snowflake.DefaultBitTS-12
		s.change(func(c *config.Service) { c.MaxThroughputPerMS = 4096 })
	}).start()
	defer r.stop()
	var stream []byte
	var ends []int // of the messages that are owed an answer
	rnd := rand.New(rand.NewPCG(seed, 1))
	for id := range uint32(200) {
		message, owed := anyRequest(rnd, id*uint32(1+seed*seed*1000))
		stream = append(stream, message...)
		if owed {
			ends = append(ends, len(stream))
		}
	}
	end := make(chan struct{})
	moved := make(chan struct{})
	go func() { // moves the clock for requests that wait for it
		defer close(moved)
		for {
			select {
			case <-end:
				return
			case <-time.After(50 * time.Microsecond):
				if r.awaiting() > 0 {
					r.clock.Advance(time.Millisecond)
				}
			}
		}
	}()
	defer func() {
		close(end)
		<-moved
	}()
	p := r.dial()
	last := snowflake.ID(0)
	receive := func() {
		answer := p.receive()
		shapes = append(shapes, shape(t, answer))
		for _, id := range idsIn(answer.result) {
			if id <= last {
				t.Fatalf("seed %d, event loop %v: %d after %d", seed, loop, id, last)
			}
			last = id
		}
	}
	longest := []int{1, 7, 40, 300, 5000}[rnd.IntN(5)]
	for sent := 0; sent < len(stream); {
		n := min(1+rnd.IntN(longest), len(stream)-sent)
		p.send(stream[sent : sent+n])
		sent += n
		// Sometimes it reads all that it is owed, and the connection rests.
		for rnd.IntN(4) == 0 && len(shapes) < len(ends) && ends[len(shapes)] <= sent {
			for len(shapes) < len(ends) && ends[len(shapes)] <= sent {
				receive()
			}
		}
	}
	for len(shapes) < len(ends) {
		receive()
	}
	_ = p.CloseWrite()
	p.ends()
	return shapes
}

// idsIn are the IDs of the answer to a NextID or NextIDs, but for external
// ones. Other answers hold none that look like it.
func idsIn(raw msgpack.RawMessage) (ids []snowflake.ID) {
	var v any
	if msgpack.Unmarshal(raw, &v) != nil {
		return nil
	}
	all, ok := v.([]any)
	if !ok {
		all = []any{v}
	}
	for _, one := range all {
		switch one := one.(type) {
		case uint64:
			ids = append(ids, snowflake.ID(one))
		case string:
			if n, err := strconv.ParseInt(one, 10, 64); err == nil && n > math.MaxUint32 {
				ids = append(ids, snowflake.ID(n))
			}
		}
	}
	return ids
}

// exchange sends the bytes in two pieces, and returns the answers, up to the
// end of the stream.
func exchange(t testing.TB, r *rig, sent []byte, first int) (answers []reply) {
	t.Helper()
	p, err := dial(t, r.path)
	must.Succeed(t, err)
	defer p.Close()
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		// After something wrong the daemon may have closed.
		cut := min(first, len(sent))
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
		answers = append(answers, got)
	}
	if wrong {
		got, err := p.read()
		if err != nil || got.id != 0 || got.err == nil || got.err.Code != wire.CodeParseError {
			t.Fatalf("what is no message is answered with %+v, %v", got, err)
		}
		answers = append(answers, got)
	}
	p.ends()
	<-wrote
	return answers
}
