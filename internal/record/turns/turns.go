// Package turns is shared by the stores on servers. Callers of one process take turns at a key, so
// that only processes race. Where rules run outside of the store's lock, each process remembers
// its last sight of a key: the first run of a rule rests on that, and needs no round trip of its
// own.
package turns

import (
	"context"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// stripes is how many keys of a process can be changed at the same time.
	stripes = 1024
	// maxBytes is how much one stripe remembers: 16 MiB for all.
	maxBytes = 16 << 10
	// overhead is what an entry costs besides its key and value, about.
	overhead = 128
)

// Turns gives turns at keys, and remembers a K of each.
type Turns[K any] struct {
	number func(key string) int // of its stripe
	spread func(time.Duration) time.Duration
	size   func(K) int
	all    [stripes]chan *stripe[K] // each has its stripe, or is empty while a caller has it
}

// stripe remembers some of the keys. Only the caller that holds it uses it.
type stripe[K any] struct {
	entries map[string]*entry[K]
	bytes   int
}

type entry[K any] struct {
	known K
	pace  time.Duration // see Held.pace
	bytes int
}

// New returns turns that remember nothing. size is about how many bytes a K takes.
func New[K any](size func(K) int) *Turns[K] {
	seed := maphash.MakeSeed() // no client can choose keys that wait for each other
	t := &Turns[K]{
		number: func(key string) int { return int(maphash.String(seed, key) % stripes) },
		spread: func(wait time.Duration) time.Duration { return wait/2 + rand.N(wait/2) },
		size:   size,
	}
	for i := range t.all {
		t.all[i] = make(chan *stripe[K], 1)
		t.all[i] <- &stripe[K]{entries: map[string]*entry[K]{}}
	}
	return t
}

// Repeatable takes chance away, before the first call: simulations do the same each time.
func (t *Turns[K]) Repeatable() {
	t.number = func(key string) int {
		h := fnv.New32a()
		_, _ = h.Write([]byte(key))
		return int(h.Sum32() % stripes)
	}
	t.spread = func(wait time.Duration) time.Duration { return wait * 3 / 4 }
}

// Held is the turns of one caller.
type Held[K any] struct {
	turns   *Turns[K]
	numbers []int // of the stripes, ascending
	stripes []*stripe[K]
	// pace is how long the caller waits before its first try, and then how long the next
	// one of the same keys does: after a race the winner lets others come.
	pace time.Duration
	// one is where numbers and stripes of a single key are.
	one struct {
		number [1]int
		stripe [1]*stripe[K]
	}
}

// Take waits for the turns at all keys. The caller gives them back with Give.
func (t *Turns[K]) Take(ctx context.Context, keys []string) (*Held[K], error) {
	h := &Held[K]{turns: t}
	h.numbers, h.stripes = h.one.number[:0], h.one.stripe[:0]
	for _, key := range keys {
		h.numbers = append(h.numbers, t.number(key))
	}
	slices.Sort(h.numbers)
	h.numbers = slices.Compact(h.numbers)
	for _, n := range h.numbers {
		var s *stripe[K]
		select {
		case s = <-t.all[n]: // mostly: a wait for two channels takes longer
		default:
			select {
			case s = <-t.all[n]:
			case <-ctx.Done():
				h.Give()
				return nil, fmt.Errorf("waiting for other changes of the same records: %w", ctx.Err())
			}
		}
		h.stripes = append(h.stripes, s)
	}
	for _, key := range keys {
		if e := h.of(key).entries[key]; e != nil {
			h.pace = max(h.pace, e.pace)
		}
	}
	return h, nil
}

func (h *Held[K]) of(key string) *stripe[K] {
	if len(h.stripes) == 1 {
		return h.stripes[0]
	}
	i, _ := slices.BinarySearch(h.numbers, h.turns.number(key))
	return h.stripes[i]
}

// Known returns the memory of a key; the zero value where there is none.
func (h *Held[K]) Known(key string) (known K) {
	if e := h.of(key).entries[key]; e != nil {
		known = e.known
	}
	return known
}

// Remember replaces the memory of a key.
func (h *Held[K]) Remember(key string, known K) {
	bytes := len(key) + h.turns.size(known) + overhead
	if bytes > maxBytes {
		h.Forget(key)
		return
	}
	s := h.of(key)
	e := s.entries[key]
	if e == nil {
		e = &entry[K]{}
		s.entries[key] = e
	}
	s.bytes += bytes - e.bytes
	*e = entry[K]{known, h.pace, bytes}
	for other := range s.entries { // any one of them
		if s.bytes <= maxBytes {
			break
		}
		if other != key {
			h.Forget(other)
		}
	}
}

// Forget drops the memory of a key.
func (h *Held[K]) Forget(key string) {
	s := h.of(key)
	if e := s.entries[key]; e != nil {
		s.bytes -= e.bytes
		delete(s.entries, key)
	}
}

// Give gives the turns back.
func (h *Held[K]) Give() {
	for i, s := range h.stripes {
		h.turns.all[h.numbers[i]] <- s
	}
}
