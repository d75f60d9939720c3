package sequence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/keyname"
)

// maxBlocks is how many keys a host holds values of. Any of them that is not in use gives way,
// and the rest of its block is a gap. With the calls of each they take some 30 MiB at most.
const maxBlocks = 4096

// Blocks is a Store before another: it hands out values from blocks that it takes in
// advance, for keys with a Block in their Options: one exchange with the store for so
// many values, and one at a time.
//
// No value is handed out twice, and each host hands out its own in order. The price of
// the speed: between hosts there is no order, and the rest of a block is skipped when the
// process ends, when a batch does not fit into it and another host has taken the next
// values, when the key is used rarely (below), or when the values begin anew. This host, and no
// other one, remembers the latest MaxReceipts calls of each key, as long as it holds values of it.
//
// The store sees a key used only when a block is taken. So that a key in use
// does not expire there, a block is used for half the key's TTL at most; a key
// that is used more rarely than that may start over.
type Blocks struct {
	store   Store
	elapsed func() time.Duration

	mu     sync.Mutex
	blocks map[name]*block
}

type name struct{ tenant, key string }

// block is what a host has left of a key.
type block struct {
	users int // callers that have or wait for the turn; guarded by Blocks.mu

	// turn has a value while the fields below are not in use.
	turn    chan struct{}
	options string
	left    Range
	takenAt time.Duration
	asked   *Request  // of the store, with an unknown answer
	latest  []Receipt // of calls that were answered, oldest first
}

var _ Store = (*Blocks)(nil)

// NewBlocks uses the store, and does not own it. elapsed is time that passes also
// while the host is suspended, from any beginning.
func NewBlocks(store Store, elapsed func() time.Duration) *Blocks {
	return &Blocks{store: store, elapsed: elapsed, blocks: map[name]*block{}}
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
		k = &block{turn: make(chan struct{}, 1)}
		k.turn <- struct{}{}
		b.blocks[n] = k
	}
	k.users++
	return k
}

func (b *Blocks) leave(k *block) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k.users--
	for n, other := range b.blocks {
		if len(b.blocks) <= maxBlocks {
			return
		}
		if other.users == 0 && other != k {
			delete(b.blocks, n)
		}
	}
}

// next is Next for the caller that has the turn.
func (b *Blocks) next(ctx context.Context, k *block, r Request) (Range, error) {
	if text := r.Options.Text(); k.options != text { // configured anew
		k.options, k.left, k.asked, k.latest = text, Range{}, nil, nil
	}
	id := keyname.KeptRequestID(r.RequestID)
	if i := slices.IndexFunc(k.latest, func(done Receipt) bool { return done.RequestID == id }); i >= 0 {
		if k.latest[i].Count != r.Count {
			return Range{}, ErrRequestReused
		}
		return rangeTo(k.latest[i].Last, r.Options.Step, r.Count), nil
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
	if r.RequestID != "" {
		k.latest = append(k.latest[max(0, len(k.latest)+1-MaxReceipts):], Receipt{RequestID: id, Last: got.Last(), Count: got.Count})
	}
	return got, nil
}

// fetch takes another block from the store. A call without an answer is repeated as it was, so
// that its values are not skipped.
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
