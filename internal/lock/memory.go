package lock

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// Memory is a Store without durability, for `memory:` and for tests: what it
// knows ends with it, and so does the order of its tokens. It is a Notifier.
type Memory struct {
	nowMS func() int64 // the store's clock, Unix ms

	mu       sync.Mutex // guards all below
	keys     map[name]State
	floor    int64
	sweepAt  int // number of keys at which idle ones are looked for
	watchers map[name]map[chan struct{}]struct{}

	incarnation   string // as in Known
	fencedUntilMS int64
}

// name is what a lock is called.
type name struct{ tenant, key string }

// minSweep is how many keys a Memory holds without looking for idle ones.
const minSweep = 1024

// NewMemory returns an empty store. nowMS is its clock, in Unix ms.
func NewMemory(nowMS func() int64) *Memory {
	return &Memory{nowMS: nowMS, keys: map[name]State{}, sweepAt: minSweep, watchers: map[name]map[chan struct{}]struct{}{}}
}

// Do implements Store.
func (m *Memory) Do(ctx context.Context, r Request) (Lease, error) {
	if err := r.Validate(); err != nil {
		return Lease{}, err
	}
	if err := ctx.Err(); err != nil {
		return Lease{}, err
	}
	n := name{r.Tenant, r.Key}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := Known{
		State: m.keys[n], Floor: m.floor, Incarnation: m.incarnation,
		FencedUntilMS: m.fencedUntilMS, FenceReason: "the store has lost what it knew",
	}
	state, l, err := Apply(known, r, m.nowMS())
	if err != nil || l.Repeated {
		return l, err
	}
	if len(m.keys) >= m.sweepAt {
		m.sweep()
		m.sweepAt = max(minSweep, 2*len(m.keys))
	}
	m.keys[n] = state
	if r.Op == Release {
		m.tell(n)
	}
	return l, nil
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, tenant, key string) (Lease, error) {
	if err := CheckKey(tenant, key); err != nil {
		return Lease{}, err
	}
	if err := ctx.Err(); err != nil {
		return Lease{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	state, ok := m.keys[name{tenant, key}]
	if !ok {
		return Lease{}, ErrNotFound
	}
	return state.Lease(tenant, key, m.nowMS()), nil
}

// List implements Store.
func (m *Memory) List(ctx context.Context, tenant, after string, limit int) ([]Lease, error) {
	if err := CheckPage(tenant, after, limit); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.nowMS()
	var page []Lease
	for n, state := range m.keys {
		if n.tenant == tenant && n.key > after && state.Expire(now).Status == Active {
			page = append(page, state.Lease(tenant, n.key, now))
		}
	}
	slices.SortFunc(page, func(a, b Lease) int { return strings.Compare(a.Key, b.Key) })
	return page[:min(limit, len(page))], nil
}

// Sweep deletes the keys that have been idle for KeepIdle.
func (m *Memory) Sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweep()
}

func (m *Memory) sweep() {
	now := m.nowMS()
	for n, state := range m.keys {
		if state.Idle(now) {
			m.floor = max(m.floor, state.Token)
			delete(m.keys, n)
		}
	}
}

// Notify implements Notifier.
func (m *Memory) Notify(ctx context.Context, tenant, key string) (<-chan struct{}, error) {
	n, c := name{tenant, key}, make(chan struct{}, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watchers[n] == nil {
		m.watchers[n] = map[chan struct{}]struct{}{}
	}
	m.watchers[n][c] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if delete(m.watchers[n], c); len(m.watchers[n]) == 0 {
			delete(m.watchers, n)
		}
		close(c)
	})
	return c, nil
}

// tell wakes those who wait for the key. Under m.mu, as is every close, so that
// no token is sent on a closed channel.
func (m *Memory) tell(n name) {
	for c := range m.watchers[n] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Close implements Store.
func (m *Memory) Close() error { return nil }
