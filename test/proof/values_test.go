package proof

import (
	"context"
	"errors"
	"time"

	"github.com/kazahana/kazahana/internal/sequence"
)

// counter is a sequence that the worlds use.
type counter struct {
	key   string
	block int
}

var counters = []counter{{"bills", 0}, {"rows", 10}}

// declaredAbove is how far above the last value that any caller got, or another operator has
// declared, an operator has a sequence go on: values with answers under way are below.
const declaredAbove = 10_000

// taken is a request for values that may be made again.
type taken struct {
	sequence.Request
	by   *host // who remembers it, where that is no store
	got  sequence.Range
	life int // of the store, in which it got that
}

func (c counter) options() sequence.Options {
	o := sequence.DefaultOptions()
	o.Block = c.block
	return o
}

// useSequences lets a process of the host take values.
func (h *host) useSequences() {
	w := h.d.w
	c := pick(w, counters)
	r := &taken{by: h, Request: sequence.Request{Tenant: "t", Key: c.key, Count: 1 + w.rnd.IntN(4), Options: c.options()}}
	if w.rnd.IntN(2) == 0 {
		r.RequestID = h.d.requestID()
		w.taken = append(w.taken[max(0, len(w.taken)-5):], r)
	}
	if len(w.taken) > 0 && w.rnd.IntN(4) == 0 {
		if again := pick(w, w.taken); again.Options.Block == 0 || again.by == h {
			r = again
			w.count("sequence requests repeated")
		}
	}
	var got sequence.Range
	var err error
	w.send(h, callTimeout, func(ctx context.Context) { got, err = h.blocks.Next(ctx, r.Request) }, func(time.Duration) {
		w.tells("%s: %d values of %s: %d, %v", h.d.name, r.Count, r.Key, got.First, h.saw(err))
		if err == nil {
			w.values(r, got)
		} else if errors.As(err, new(*sequence.FencedError)) {
			w.count("sequences fenced")
			h.declare(r)
		}
	})
}

// values judges values that a process got.
func (w *world) values(r *taken, got sequence.Range) {
	w.count("values taken")
	if r.got == got {
		return
	}
	if r.got.Count > 0 && (r.life == w.records.life || r.Options.Block > 0) { // else the store may have forgotten it
		w.broken("one request for values of %s got %v and %v", r.Key, r.got, got)
	}
	r.got, r.life = got, w.records.life
	if w.given[r.Key] == nil {
		w.given[r.Key] = map[int64]bool{}
	}
	for _, value := range got.Values() {
		if w.given[r.Key][value] {
			w.broken("value %d of sequence %s was handed out twice", value, r.Key)
		}
		w.given[r.Key][value] = true
		w.most[r.Key] = max(w.most[r.Key], value)
	}
}

// declare is an operator who says how a sequence goes on that the store is unsure of.
func (h *host) declare(r *taken) {
	w := h.d.w
	if w.rnd.IntN(3) > 0 {
		return
	}
	w.most[r.Key] += declaredAbove
	d := sequence.Declaration{Tenant: "t", Key: r.Key, Options: r.Options, Last: w.most[r.Key]}
	var err error
	w.send(h, callTimeout, func(ctx context.Context) { err = h.rules.Declare(ctx, d) }, func(time.Duration) {
		w.tells("an operator declares %s: %v", d.Key, plain(err))
		if err == nil {
			w.count("sequences declared")
		}
	})
}
