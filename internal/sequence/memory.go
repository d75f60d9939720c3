package sequence

import (
	"context"
	"sync"
	"time"
)

// Memory is a Store in the process: for tests, and where nothing need survive
// the process.
type Memory struct {
	nowMS func() int64

	mu   sync.Mutex
	keys map[name]State
}

type name struct{ tenant, key string }

// NewMemory returns an empty store. nowMS is its clock in Unix ms; nil means the
// wall clock.
func NewMemory(nowMS func() int64) *Memory {
	if nowMS == nil {
		nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	return &Memory{nowMS: nowMS, keys: map[name]State{}}
}

// Next implements Store.
func (m *Memory) Next(ctx context.Context, r Request) (Range, error) {
	if err := r.Validate(); err != nil {
		return Range{}, err
	}
	if err := ctx.Err(); err != nil {
		return Range{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := name{r.Tenant, r.Key}
	state, got, err := Next(m.keys[n], r, m.nowMS())
	if err == nil {
		m.keys[n] = state
	}
	return got, err
}

// Declare implements Declarer.
func (m *Memory) Declare(_ context.Context, d Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys[name{d.Tenant, d.Key}] = Declared(d, m.nowMS())
	return nil
}

// Close implements Store.
func (m *Memory) Close() error { return nil }
