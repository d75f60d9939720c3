// Package memory keeps records in the process: for tests, and where nothing need
// survive the process.
package memory

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// sweepLooks is how many records a change looks at to delete due ones: more than it can make.
const sweepLooks = 2 * record.MaxWrites

// sweepPause is how long a change that has no room relies on the last look at all records.
const sweepPause = time.Second

// errClosed: the store was closed.
var errClosed = errors.New("the store is closed")

// Store implements record.Store.
type Store struct {
	area record.Area
	*kept
}

// kept is what all have in common that use a store.
type kept struct {
	nowMS func() int64

	mu       sync.Mutex
	lastMS   int64 // of the latest change: a clock that steps back stands still
	floor    int64
	records  map[string]entry
	size     int64 // of the records
	sweptMS  int64 // when all were looked at for a change that had no room
	watchers map[chan struct{}]string
	closed   chan struct{} // closed by Close, with the lock
	fence    fence
}

// entry is a record. Times are Unix ms.
type entry struct {
	record.Write
	endMS int64 // of the term; 0: it has none
	dueMS int64 // may be deleted from then on; 0: never
}

func (k entry) due(nowMS int64) bool { return k.dueMS != 0 && k.dueMS <= nowMS }

func (k entry) record(nowMS int64) record.Record {
	return record.WithTerm(slices.Clone(k.Value), k.endMS, nowMS)
}

// New returns an empty store. Its writes grant for as long as any store allows.
func New(nowMS func() int64) *Store { return NewArea(record.Area{}, nowMS) }

// NewArea returns an empty store. nowMS is its clock in Unix ms; nil means the wall
// clock.
func NewArea(area record.Area, nowMS func() int64) *Store {
	if nowMS == nil {
		nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	return &Store{area, &kept{nowMS: nowMS, records: map[string]entry{}, watchers: map[chan struct{}]string{}, closed: make(chan struct{})}}
}

// As is the same store for a process with another area.
func (s *Store) As(area record.Area) *Store { return &Store{area, s.kept} }

// begin takes the lock, and reports why nothing can be done.
func (s *Store) begin(ctx context.Context, err error) error {
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	s.mu.Lock()
	select {
	case <-s.closed:
		s.mu.Unlock()
		return errClosed
	default:
		s.fence.admit(s.nowMS(), s.lastMS, s.area)
		return nil
	}
}

// now is the clock, which does not go back where the area relies on that.
func (s *Store) now() int64 {
	if s.area.FollowsClock {
		return s.nowMS()
	}
	return max(s.nowMS(), s.lastMS)
}

// Change implements record.Store.
func (s *Store) Change(ctx context.Context, ask record.Ask, rule record.Rule) (atMS int64, err error) {
	if err := s.begin(ctx, ask.Validate()); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	v := s.view(ask)
	rule = s.area.Checked(ask, rule)
	writes, err := rule(v)
	if _, full := errors.AsType[*record.FullError](err); full && v.NowMS-s.sweptMS >= sweepPause.Milliseconds() {
		s.sweptMS = v.NowMS
		s.sweep(v.NowMS, len(s.records))
		v = s.view(ask)
		writes, err = rule(v)
	}
	if err != nil || len(writes) == 0 {
		return v.NowMS, err
	}
	s.lastMS = max(s.lastMS, v.NowMS)
	for _, w := range writes {
		s.write(w, v.NowMS)
	}
	s.sweep(v.NowMS, sweepLooks)
	return v.NowMS, nil
}

// sweep looks at so many records, and deletes the due ones.
func (s *Store) sweep(nowMS int64, looks int) {
	for key, k := range s.records {
		if looks--; looks < 0 {
			break
		}
		if k.due(nowMS) {
			s.remove(key, k.Mark)
		}
	}
}

func (s *Store) write(w record.Write, atMS int64) {
	if w.GrantMS > 0 {
		s.fence.granted(atMS + w.GrantMS)
	}
	before := s.records[w.Key]
	if w.Value == nil {
		s.tell(w.Key, w.Tell || before.Tell)
		s.remove(w.Key, w.Mark)
		return
	}
	s.tell(w.Key, w.Tell)
	w.Value = slices.Clone(w.Value)
	k := entry{Write: w}
	if w.TermMS > 0 {
		k.endMS = atMS + w.TermMS
	}
	if w.TermMS > 0 || w.KeepMS > 0 {
		k.dueMS = atMS + w.TermMS + w.KeepMS
	}
	if _, ok := s.records[w.Key]; ok {
		s.size -= before.Size()
	}
	s.size += k.Size()
	s.records[w.Key] = k
}

// remove deletes a record, if it is there, and raises the floor.
func (s *Store) remove(key string, mark int64) {
	if before, ok := s.records[key]; ok {
		s.floor = max(s.floor, mark, before.Mark)
		s.size -= before.Size()
	}
	delete(s.records, key)
}

func (s *Store) view(ask record.Ask) record.View {
	v := record.View{
		Records: map[string]record.Record{}, NowMS: s.now(), Floor: s.floor, Life: s.fence.life(), Fence: s.fence.shown(),
		Keys: int64(len(s.records)), Size: s.size,
	}
	for _, key := range ask.Keys {
		if k, ok := s.records[key]; ok {
			v.Records[key] = k.record(v.NowMS)
		}
	}
	return v
}

// Read implements record.Store.
func (s *Store) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	if err := s.begin(ctx, ask.Validate()); err != nil {
		return record.View{}, err
	}
	defer s.mu.Unlock()
	return s.view(ask), nil
}

// List implements record.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	if err := s.begin(ctx, record.ValidatePage(prefix, after, limit)); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var keys []string
	for key := range s.records {
		if strings.HasPrefix(key, prefix) && key > after {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	var page []record.Head
	for _, key := range keys[:min(limit, len(keys))] {
		page = append(page, record.HeadOf(key, s.records[key].record(s.now())))
	}
	return page, nil
}

// Watch implements record.Store.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan struct{}, error) {
	if err := s.begin(ctx, record.ValidatePrefix(prefix)); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	tokens := make(chan struct{}, 1)
	s.watchers[tokens] = prefix
	go func() {
		select {
		case <-ctx.Done():
		case <-s.closed:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, tokens)
		close(tokens)
	}()
	return tokens, nil
}

func (s *Store) tell(key string, tell bool) {
	for tokens, prefix := range s.watchers {
		if tell && strings.HasPrefix(key, prefix) {
			select {
			case tokens <- struct{}{}:
			default:
			}
		}
	}
}

// Init implements record.Store.
func (s *Store) Init(ctx context.Context) error {
	if err := s.begin(ctx, nil); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.fence.fromMS, s.fence.untilMS = 0, 0
	return nil
}

// Close implements record.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}
