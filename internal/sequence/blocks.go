package sequence

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/keyname"
)

// maxBlocks is how many keys a host holds values of. The one used longest ago
// gives way, and what was left of its block is a gap.
const maxBlocks = 10_000

// maxHanded is how many calls a host remembers, of all keys with blocks: some seconds of a
// host that has nothing else to do, and about 10 MiB.
const maxHanded = 1 << 16

// Blocks is a Store before another: it hands out values from blocks that it
// takes in advance, for keys whose Options have a Block: one exchange with the
// store for so many values, and one at a time.
//
// No value is handed out twice, and each host hands out its own in order. The price of
// the speed: between hosts there is no order, and the rest of a block is skipped when the
// process ends, when a batch does not fit into it and another host has taken the next
// values, when the key is used rarely (below), or when the values begin anew. Calls are
// remembered by this host, as long as its process lives, and the latest maxHanded of them.
// An older one that comes again is a new call.
//
// The store sees a key used only when a block is taken. So that a key in use
// does not expire there, a block is used for half the key's TTL at most; a key
// that is used more rarely than that may start over.
type Blocks struct {
	store   Store
	elapsed func() time.Duration

	mu     sync.Mutex
	blocks map[name]*block
	order  *list.List // of *block without users, the one used last in front
	handed map[call]handed
	calls  []call // of handed, oldest first
}

type name struct{ tenant, key string }

// block is what a host has left of a key.
type block struct {
	name  name
	users int           // callers that have or wait for the turn; guarded by Blocks.mu
	place *list.Element // in Blocks.order; nil while there are users; guarded likewise

	// turn has a value while the fields below are not in use.
	turn    chan struct{}
	options string
	left    Range
	takenAt time.Duration
	asked   *Request // of the store, whose answer is not known
}

// call names a call that was answered.
type call struct {
	name      name
	requestID string // as it is kept
}

// handed is what it got.
type handed struct {
	values  Range
	options string
}

var _ Store = (*Blocks)(nil)

// NewBlocks uses the store, and does not own it. elapsed is time that passes also
// while the host is suspended, from any beginning.
func NewBlocks(store Store, elapsed func() time.Duration) *Blocks {
	return &Blocks{store: store, elapsed: elapsed, blocks: map[name]*block{}, order: list.New(), handed: map[call]handed{}}
}

// Next implements Store. Where r.Options have no Block it is the store's Next;
// else r.AtLeast is not heeded, and a RequestID is remembered by this host and
// not by others.
func (b *Blocks) Next(ctx context.Context, r Request) (Range, error) {
	if r.Options.Block <= 1 {
		return b.store.Next(ctx, r)
	}
	r.AtLeast = 0
	if err := r.Validate(); err != nil {
		return Range{}, err
	}
	k := b.enter(name{r.Tenant, r.Key})
	defer b.leave(k)
	select {
	case <-k.turn:
		defer func() { k.turn <- struct{}{} }()
	case <-ctx.Done():
		return Range{}, fmt.Errorf("sequence %q: waiting for the block of values: %w", r.Key, ctx.Err())
	}
	return b.next(ctx, k, r)
}

// Declare implements Store: hosts would go on with their blocks.
func (b *Blocks) Declare(context.Context, Declaration) error { return errors.ErrUnsupported }

// enter finds the key's block, and counts a user of it.
func (b *Blocks) enter(n name) *block {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, ok := b.blocks[n]
	if !ok {
		k = &block{name: n, turn: make(chan struct{}, 1)}
		k.turn <- struct{}{}
		b.blocks[n] = k
	}
	if k.place != nil {
		b.order.Remove(k.place)
		k.place = nil
	}
	k.users++
	return k
}

func (b *Blocks) leave(k *block) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k.users--; k.users > 0 {
		return
	}
	k.place = b.order.PushFront(k)
	for len(b.blocks) > maxBlocks && b.order.Len() > 0 {
		delete(b.blocks, b.order.Remove(b.order.Back()).(*block).name)
	}
}

// next is Next for the caller that has the turn.
func (b *Blocks) next(ctx context.Context, k *block, r Request) (Range, error) {
	if text := r.Options.Text(); k.options != text { // configured anew
		k.options, k.left, k.asked = text, Range{}, nil
	}
	if got, ok := b.find(k, r); ok {
		if got.Count != r.Count {
			return Range{}, ErrRequestReused
		}
		return got, nil
	}
	if ttl := r.Options.TTL; ttl > 0 && b.elapsed()-k.takenAt >= ttl/2 {
		k.left = Range{}
	}
	for k.left.Count < r.Count {
		if err := b.fetch(ctx, k, r); err != nil {
			return Range{}, err
		}
	}
	got := k.hand(r)
	b.remember(k, r.RequestID, got)
	return got, nil
}

// find finds what the call got before.
func (b *Blocks) find(k *block, r Request) (got Range, ok bool) {
	if r.RequestID == "" {
		return Range{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h, ok := b.handed[call{k.name, keyname.KeptRequestID(r.RequestID)}]
	return h.values, ok && h.options == k.options
}

// remember keeps what the call got, and drops the oldest where there are too many.
func (b *Blocks) remember(k *block, requestID string, got Range) {
	if requestID == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := call{k.name, keyname.KeptRequestID(requestID)}
	if _, ok := b.handed[c]; !ok { // else of other options
		b.calls = append(b.calls, c)
	}
	b.handed[c] = handed{got, k.options}
	if len(b.calls) > maxHanded {
		delete(b.handed, b.calls[0])
		b.calls = b.calls[1:]
	}
}

// fetch takes another block from the store. A call whose answer did not come is
// repeated as it was, so that its values are not skipped.
func (b *Blocks) fetch(ctx context.Context, k *block, r Request) error {
	if k.asked == nil {
		missing := r.Count - k.left.Count
		ask := r
		// Enough for all of it: others may have taken the values after the left ones.
		ask.Count, ask.AtLeast, ask.RequestID = max(r.Count, r.Options.Block), missing, NewRequestID()
		k.asked = &ask
	}
	before := b.elapsed()
	got, err := b.store.Next(ctx, *k.asked)
	if err == nil || IsAnswer(err) {
		k.asked = nil
	}
	var exhausted *ExhaustedError
	if errors.As(err, &exhausted) {
		more := *exhausted
		more.Left += int64(k.left.Count)
		return &more
	}
	if err != nil {
		return err
	}
	if k.left.Count > 0 && got.First == k.left.Last()+got.Step {
		got = Range{First: k.left.First, Step: got.Step, Count: k.left.Count + got.Count}
	}
	k.left, k.takenAt = got, before
	return nil
}

// hand takes r.Count values, which are there, from the front.
func (k *block) hand(r Request) Range {
	values := Range{First: k.left.First, Step: k.left.Step, Count: r.Count}
	if k.left.Count -= r.Count; k.left.Count > 0 {
		k.left.First = values.Last() + k.left.Step
	}
	return values
}

// Close implements Store. The store behind it stays open.
func (b *Blocks) Close() error { return nil }
