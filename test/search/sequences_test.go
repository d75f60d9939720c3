package search

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/sequence"
)

// The rules of sequences that a world can break, beside those of commits.
const (
	callOnce  rule = "a call is carried out once"
	doubtKept rule = "a store that has forgotten hands out nothing that may have been handed out"
)

// sequences is a world of hosts that take values of one key: the product's rule over records,
// and the blocks that a host takes in advance. A call may arrive at any time, and again.
type sequences struct {
	sequencesSetting
	now    int64 // ms since the beginning
	store  *shared
	hosts  []*taker
	calls  []taken
	drawn  byte
	forgot bool
	lapsed bool
	given  [16]int8 // the call that got the value, counted from 1
	last   int64    // the greatest value
	fault  string
}

// sequencesSetting is the bounds of a world.
type sequencesSetting struct {
	calls   int
	block   int // values that a host takes in advance
	forgets bool
	off     rule
}

// taker is a host.
type taker struct {
	process *process
	blocks  *sequence.Blocks // if there are any
	source  sequence.Store   // they, or the host itself
	last    int64            // value that it handed out
	loses   bool             // the answer to its next request to the store is lost
}

// Next implements sequence.Store for the blocks of the host.
func (h *taker) Next(ctx context.Context, r sequence.Request) (sequence.Range, error) {
	got, err := sequence.OnRecords(h.process).Next(ctx, r)
	if h.loses {
		return sequence.Range{}, errLost
	}
	return got, err
}

// Declare implements sequence.Store.
func (h *taker) Declare(ctx context.Context, d sequence.Declaration) error {
	return sequence.OnRecords(h.process).Declare(ctx, d)
}

// Close implements sequence.Store.
func (h *taker) Close() error { return nil }

// taken is a call.
type taken struct {
	host    int8
	count   int8
	request string
	got     sequence.Range // once it was answered
}

func newSequences(s sequencesSetting) func() world {
	return func() world {
		w := &sequences{sequencesSetting: s}
		crand.Reader = w // of the request IDs of blocks
		w.store = newShared(func() int64 { return beganMS + w.now }, s.off)
		for range 2 {
			h := &taker{process: &process{w.store, map[string]seen{}}}
			h.source = h
			if s.block > 0 {
				h.blocks = sequence.NewBlocks(h, func() time.Duration { return ms(w.now) })
				h.source = h.blocks
			}
			w.hosts = append(w.hosts, h)
		}
		return w
	}
}

// Read stands in for the system's randomness.
func (w *sequences) Read(b []byte) (int, error) {
	w.drawn++
	clear(b)
	b[len(b)-1] = w.drawn
	return len(b), nil
}

// The moves of a world of sequences. lapses, saves and forgets are among them.
const (
	asksForOne int8 = iota + 80
	asksForTwo
	callArrives
	callLosesAnswer
	hostLooks
	isDeclared
)

var sequenceMoves = map[int8]string{
	lapses: "half the time passes for which calls are remembered", saves: lockMoves[saves], forgets: lockMoves[forgets], asksForOne: "host %d asks for a value", asksForTwo: "host %d asks for two values",
	callArrives: "the host carries out call %d", callLosesAnswer: "the host carries out call %d, and the answer of the store is lost",
	hostLooks: "host %d looks at the record", isDeclared: "an operator declares the last value",
}

func (w *sequences) moves(all []move) []move {
	if w.fault != "" {
		return all
	}
	add := func(does bool, kind int8, who int) {
		if does {
			all = append(all, move{kind, int8(who), noClock})
		}
	}
	for i := range w.hosts {
		asks := len(w.calls) < w.sequencesSetting.calls && (i == 0 || len(w.calls) > 0)
		add(asks, asksForOne, i)
		add(asks, asksForTwo, i)
		add(true, hostLooks, i)
	}
	for i := range w.calls {
		add(true, callArrives, i)
		add(w.block > 0, callLosesAnswer, i)
	}
	add(!w.lapsed, lapses, 0)
	add(w.forgets && !w.forgot && w.store.saved == nil, saves, 0)
	add(w.forgets && !w.forgot && w.store.saved != nil, forgets, 0)
	add(w.forgot && w.last > 0 && w.block == 0, isDeclared, 0) // hosts would go on with their blocks
	return all
}

func (w *sequences) do(m move) {
	switch m.kind {
	case asksForOne, asksForTwo:
		w.calls = append(w.calls, taken{host: m.who, count: m.kind - asksForOne + 1, request: requestID(beganMS+w.now, len(w.calls)+1)})
	case callArrives, callLosesAnswer:
		w.hosts[w.calls[m.who].host].loses = m.kind == callLosesAnswer
		w.arrive(int(m.who))
	case hostLooks:
		w.hosts[m.who].process.look(record.Ask{Keys: []string{"seq/default/invoices"}})
	case lapses:
		w.now, w.lapsed = w.now+5*time.Minute.Milliseconds(), true
	case saves:
		w.store.save()
	case forgets:
		w.store.forget()
		w.forgot = true
	case isDeclared:
		d := sequence.Declaration{Tenant: "default", Key: "invoices", Options: w.options(), Last: w.last}
		if err := w.hosts[0].source.Declare(context.Background(), d); err != nil {
			panic(err)
		}
	}
}

func (w *sequences) text(m move) string {
	switch m.kind {
	case lapses, saves, forgets, isDeclared:
		return sequenceMoves[m.kind]
	case callArrives, callLosesAnswer:
		return fmt.Sprintf(sequenceMoves[m.kind], m.who+1)
	}
	return fmt.Sprintf(sequenceMoves[m.kind], m.who)
}

func (w *sequences) options() sequence.Options {
	o := sequence.DefaultOptions()
	o.Block = w.block
	return o
}

// arrive carries out a call, as often as it comes.
func (w *sequences) arrive(i int) {
	call := &w.calls[i]
	h := w.hosts[call.host]
	r := sequence.Request{Tenant: "default", Key: "invoices", Options: w.options(), Count: int(call.count), RequestID: call.request}
	if w.off == callOnce {
		r.RequestID = ""
	}
	got, err := h.source.Next(context.Background(), r)
	h.loses = false
	if err != nil || got == call.got {
		return
	}
	if call.got.Count > 0 {
		w.fault = fmt.Sprintf("call %d got %v, and then %v", i+1, call.got.Values(), got.Values())
	}
	call.got = got
	after := w.last
	if w.block > 0 { // between hosts there is no order
		after = h.last
	}
	for _, v := range got.Values() {
		if before := w.given[v]; before != 0 {
			w.fault = fmt.Sprintf("the value %d is handed out to call %d and to call %d", v, before, i+1)
		}
		if v <= after {
			w.fault = fmt.Sprintf("the value %d is handed out after %d", v, after)
		}
		w.given[v] = int8(i + 1)
	}
	h.last, w.last = got.Last(), max(w.last, got.Last())
}

func (w *sequences) broken() string { return w.fault }

func (w *sequences) fingerprint() fingerprint {
	s := sum{skip: sequencesUnimportant}
	s.add(*w, w.fault != "")
	return s.done()
}

var sequencesUnimportant = fieldSet(sharedUnimportant, `
	search.sequences.sequencesSetting search.sequences.fault search.sequences.drawn search.taker.source
	sequence.Blocks.store sequence.Blocks.elapsed sequence.Blocks.mu sequence.Blocks.order sequence.block.place sequence.block.turn`)
