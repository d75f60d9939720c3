package search

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/record/turns"
)

// beganMS is when worlds with record stores begin, in Unix ms: request IDs tell their time.
const beganMS = 1_800_000_000_000

// shared is a record store that several processes use. Its records are in the product's
// store in memory. A process runs a rule on what it has seen last, as the product does, and
// the commit compares. The store can fall back to an earlier state; that begins a new life.
type shared struct {
	now       func() int64 // Unix ms
	off       rule
	memory    *memory.Store
	versions  map[string]uint64
	writes    uint64
	log       []logged // what made the memory
	life      int64
	lifeFloor int64
	grantsEnd int64 // when all that was ever granted has ended
	fence     record.Fence
	saved     *past
}

// logged is a change that was carried out.
type logged struct {
	atMS   int64
	ask    record.Ask
	writes []record.Write
}

// past is a state that the store may fall back to.
type past struct {
	memory   *memory.Store
	versions map[string]uint64
	log      []logged
}

func newShared(now func() int64, off rule) *shared {
	return &shared{now: now, off: off, memory: memory.New(now), versions: map[string]uint64{}, life: 1}
}

// save remembers the present state: a replica has it, or a backup.
func (s *shared) save() {
	at, over := int64(0), false
	copied := memory.New(func() int64 {
		if over {
			return s.now()
		}
		return at
	})
	for _, l := range s.log {
		at = l.atMS
		if _, err := copied.Change(context.Background(), l.ask, func(record.View) ([]record.Write, error) { return l.writes, nil }); err != nil {
			panic(err)
		}
	}
	over = true
	s.saved = &past{copied, maps.Clone(s.versions), slices.Clip(s.log)}
}

// forget falls back to what was saved.
func (s *shared) forget() {
	s.memory, s.versions, s.log = s.saved.memory, s.saved.versions, s.saved.log
	s.saved = nil
	s.life++
	now := s.now()
	if s.off != floorOfLife {
		s.lifeFloor = now * 1000
	}
	s.fence = record.Fence{Doubt: true, FromMS: now, UntilMS: s.grantsEnd, Reason: "it fell back"}
	if s.off == fenceKept || s.off == doubtKept {
		s.fence = record.Fence{}
	}
}

// view is the present.
func (s *shared) view(ask record.Ask) record.View {
	v, err := s.memory.Read(context.Background(), ask)
	if err != nil {
		panic(err)
	}
	if s.off == floorAtDeletion {
		v.Floor = 0
	}
	v.Floor, v.Life, v.Fence = max(v.Floor, s.lifeFloor), fmt.Sprint("life ", s.life), s.fence
	return v
}

// process is the store as one process sees it.
type process struct {
	*shared
	seen map[string]seen
}

// seen is what a process remembers of a key, and of the store as it was then.
type seen struct {
	version uint64 // 0: the record is missing
	view    record.View
}

var _ record.Store = (*process)(nil)

// Change implements record.Store with the product's own loop of tries.
func (p *process) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	return turns.Run(ctx, &turns.Held[seen]{}, &change{p: p, ask: ask}, "search", ask, rule)
}

// Read implements record.Store.
func (p *process) Read(_ context.Context, ask record.Ask) (record.View, error) {
	p.look(ask)
	return p.view(ask), nil
}

// List implements record.Store.
func (p *process) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	return p.memory.List(ctx, prefix, after, limit)
}

// Watch implements record.Store: processes have to ask.
func (p *process) Watch(context.Context, string) (<-chan struct{}, error) {
	return nil, errors.ErrUnsupported
}

// Init implements record.Store.
func (p *process) Init(context.Context) error { return nil }

// Close implements record.Store.
func (p *process) Close() error { return nil }

// look remembers the present.
func (p *process) look(ask record.Ask) {
	for _, key := range ask.Keys {
		p.seen[key] = seen{p.versions[key], p.view(record.Ask{Keys: []string{key}})}
	}
}

// change is one call of Change.
type change struct {
	p     *process
	ask   record.Ask
	fresh bool // the present is seen
}

// View implements turns.Change.
func (c *change) View() (v record.View, ok bool) {
	for i, key := range c.ask.Keys {
		known, ok := c.p.seen[key]
		switch {
		case !ok:
			return v, false
		case i == 0:
			v = known.view
			v.Records, v.NowMS = maps.Clone(v.Records), c.p.now()
		case known.view.Life != v.Life || known.view.Floor != v.Floor:
			return v, false // of one state, or of none
		default:
			maps.Copy(v.Records, known.view.Records)
		}
	}
	return v, true
}

// Settled implements turns.Change.
func (c *change) Settled(bool) bool { return c.fresh }

// Confirm implements turns.Change.
func (c *change) Confirm(context.Context) error {
	c.p.look(c.ask)
	c.fresh = true
	return nil
}

// Commit implements turns.Change.
func (c *change) Commit(ctx context.Context, writes []record.Write) (int64, turns.Outcome, error) {
	if !c.stands() {
		return 0, turns.Old, c.Confirm(ctx)
	}
	s := c.p.shared
	at := s.write(c.ask, writes)
	return at, turns.Done, c.Confirm(ctx)
}

func (s *shared) write(ask record.Ask, writes []record.Write) int64 {
	at, err := s.memory.Change(context.Background(), ask, func(record.View) ([]record.Write, error) { return writes, nil })
	if err != nil {
		panic(err)
	}
	s.log = append(s.log, logged{at, ask, writes})
	for _, w := range writes {
		s.writes++
		s.versions[w.Key] = s.writes
		if w.Grant {
			s.grantsEnd = max(s.grantsEnd, at+w.TermMS)
		}
	}
	s.dropVersions()
	return at
}

// sweep has the store delete what is due: it does that with any change.
func (s *shared) sweep() {
	const key = "of no interest"
	s.write(record.Ask{Keys: []string{key}}, []record.Write{{Key: key, Value: []byte{1}, KeepMS: 1}})
}

// dropVersions forgets those of records that the memory has deleted.
func (s *shared) dropVersions() {
	for key := range s.versions {
		if _, ok := s.view(record.Ask{Keys: []string{key}}).Records[key]; !ok {
			delete(s.versions, key)
		}
	}
}

// stands reports whether what the decision rests on is still so.
func (c *change) stands() bool {
	now := c.p.view(c.ask)
	for _, key := range c.ask.Keys {
		known := c.p.seen[key]
		then := known.view
		switch {
		case c.p.off != versionCompared && (known.version != c.p.versions[key] || then.Records[key].Over != now.Records[key].Over):
			return false
		case c.p.off != floorCompared && known.version == 0 && then.Floor != now.Floor:
			return false
		case c.p.off != lifeCompared && then.Life != now.Life:
			return false
		}
	}
	return true
}

// sharedUnimportant has no influence on what can happen, or is the same for all.
const sharedUnimportant = `
	search.shared.now search.shared.off search.shared.log search.past.log search.process.shared
	memory.Store.nowMS memory.Store.mu memory.Store.watchers memory.Store.closed record.View.NowMS`
