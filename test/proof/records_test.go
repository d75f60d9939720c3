package proof

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
)

// storeArea is the area of a world's records: the product opens the same.
var storeArea = record.Area{Name: "store", MaxGrantMS: lock.MaxTTL.Milliseconds()}

// storeKind is what keeps the records of a world.
type storeKind int

const (
	onSQLite storeKind = iota
	onRedis
	onEtcd
	onPostgres
)

func (k storeKind) String() string { return [...]string{"SQLite", "Redis", "etcd", "PostgreSQL"}[k] }

// state is the state of all daemons with a store of the kind.
func (k storeKind) state() string { return "on " + k.String() }

// records is the store of records: a SQLite file, or the model of a server. A model is the
// memory store, which the conformance suite accepts, with the peculiarities of its kind. It
// may fall back to an earlier copy of itself.
type records struct {
	w     *world
	kind  storeKind
	area  record.Area
	clock func() int64

	mu sync.Mutex
	record.Store
	done     []change // by which the present content came about
	stamps   map[string]stamp
	versions int64 // that were given to writes
	lives    lives // nil: the model forgets nothing
	first    lives // at the beginning
	life     int   // how often it fell back
	replicas       // of Redis
	cluster  int   // etcd: how often it was restored, with all that it had
	ahead    int64 // of the clock of the first server, in ms
	rate     float64
	replayed int64 // its time while a copy is made; 0: now

	users func() []*session // of PostgreSQL; nil: the processes of the daemons

	file  *database // nil: a model
	known func() sqlitefile.Fence
}

// lives is what the content of a model says of the lives of its server. Methods that change
// something return the lives after it.
type lives interface {
	// looked is after a process without a memory has looked at the server.
	looked(s *records) lives
	granting(grantMS int64) lives
	written() lives
	// trusted is after an operator has said that nothing is missing.
	trusted() lives
	// byHand is after an operator has said that the data was put back.
	byHand(s *records) lives
	// show completes a view.
	show(v *record.View)
	// forget has the server lose the latest changes, if there is a loss.
	forget(s *records, changes int)
}

// change is a change that was carried out.
type change struct {
	atMS   int64
	ask    record.Ask
	writes []record.Write // with the terms that the server gives them
	stamps map[string]stamp
	lives  lives // after it
}

// stamp is what a server knows of a record besides what a view shows.
type stamp struct {
	version int64
	by      *attempt // the writer; nil: a process that runs its rules at the server
	atMS    int64    // by the clock of the writer, or of the server
	write   record.Write
}

func newRecords(w *world) *records {
	s := &records{w: w, kind: w.kind, area: storeArea, rate: 1 + (w.rnd.Float64()-0.5)/50}
	s.clock = func() int64 {
		return s.ahead + s.w.began.Add(time.Duration(float64(time.Since(s.w.began))*s.rate)).UnixMilli()
	}
	if s.kind == onSQLite {
		s.openRecords()
	} else {
		s.begin()
		if s.first != nil {
			s.first = s.first.granting(longestTerm)
			s.lives = s.first
		}
	}
	return s
}

// begin makes an empty model.
func (s *records) begin() {
	s.Store, s.stamps = memory.NewArea(s.area, s.now), map[string]stamp{}
	switch s.kind {
	case onRedis:
		s.first = firstRedis(s)
	case onPostgres:
		s.first = firstPostgres()
	}
	s.lives = s.first
}

// now is the store's clock. It runs at a rate of its own.
func (s *records) now() int64 {
	if s.replayed != 0 {
		return s.replayed
	}
	return s.clock()
}

// latest is the latest time that the server knows: its clock may have gone back since a change.
func (s *records) latest() int64 {
	at := s.now()
	for _, c := range s.done {
		at = max(at, c.atMS)
	}
	return at
}

// Change implements record.Store.
func (s *records) Change(ctx context.Context, ask record.Ask, rule record.Rule) (at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		s.file.around(func() { at, err = s.Store.Change(ctx, ask, rule) })
		return at, err
	}
	var writes []record.Write
	c := change{ask: ask}
	at, err = s.Store.Change(ctx, ask, func(v record.View) (_ []record.Write, err error) {
		writes, err = s.area.Checked(ask, rule)(s.shown(v))
		c.writes = s.lasting(writes)
		return c.writes, err
	})
	if err == nil && len(writes) > 0 {
		c.atMS = at
		s.carriedOut(ctx, c, writes)
	}
	return at, err
}

// Init implements record.Store.
func (s *records) Init(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lives != nil {
		s.lives = s.lives.trusted()
	}
	return s.Store.Init(ctx)
}

// Fence implements record.Store.
func (s *records) Fence(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lives == nil {
		return s.Store.Fence(ctx)
	}
	s.lives = s.lives.byHand(s)
	return nil
}

// carriedOut notes a change. Its writes are what the caller has asked for.
func (s *records) carriedOut(ctx context.Context, c change, writes []record.Write) {
	c.stamps = map[string]stamp{}
	s.versions++
	one := stamp{version: s.versions, atMS: c.atMS}
	if by, is := ctx.Value(attemptKey{}).(*attempt); is {
		one.by, one.atMS = by, cmp.Or(by.atMS, c.atMS)
	}
	for _, w := range writes {
		one.write = w
		c.stamps[w.Key] = one
		if w.GrantMS > 0 && s.lives != nil {
			s.lives = s.lives.granting(w.GrantMS)
		}
	}
	if s.lives != nil {
		s.lives = s.lives.written()
	}
	c.lives = s.lives
	s.apply(c)
}

// apply makes the change the latest one.
func (s *records) apply(c change) {
	s.done = append(s.done, c)
	maps.Copy(s.stamps, c.stamps)
}

// Read implements record.Store.
func (s *records) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.Store.Read(ctx, ask)
	if s.file != nil {
		return v, err
	}
	return s.shown(v), err
}

// view is what the store says of itself.
func (s *records) view() record.View {
	v, err := s.Read(context.Background(), record.Ask{})
	must(err, nil)
	return v
}

// era changes whenever the store may have forgotten something. The life alone does not: where
// one is forgotten too, the next one has its number on Redis.
func (s *records) era() string {
	switch s.kind {
	case onEtcd:
		return "" // it forgets nothing
	case onSQLite:
		return s.view().Life // which stays where nothing was lost
	}
	return fmt.Sprint(s.view().Life, " ", s.life)
}

// shown completes the view of a model.
func (s *records) shown(v record.View) record.View {
	v.Keys, v.Size, v.Full = 0, 0, false // a server says nothing of it, and the memory below does
	if s.lives == nil {
		v.Life = fmt.Sprint("cluster ", s.cluster, v.Life) // a fence by hand begins a life of the memory
		return v
	}
	s.lives = s.lives.looked(s)
	floor := v.Floor
	s.lives.show(&v)
	if s.w.without(floorOverLives) {
		v.Floor = floor
	}
	if s.w.without(forgottenTermsFenced) && s.area == storeArea || s.w.without(forgottenLeasesFenced) && s.area != storeArea {
		v.Fence.UntilMS = 0
	}
	if s.w.without(forgottenValuesFenced) {
		v.Fence.Doubt = false
	}
	return v
}

// fenced reports whether the store grants nothing.
func (s *records) fenced() bool {
	if s.file != nil {
		return s.known().Holds(s.now())
	}
	v := s.view()
	return v.NowMS < v.Fence.UntilMS
}

// fallBack puts the store back to its state some changes ago, or to a copy that was made. No
// process uses it meanwhile.
func (s *records) fallBack(changes int) {
	s.w.sleep(2 * time.Millisecond) // no two lives of a server begin in one millisecond
	switch {
	case s.file != nil:
		if s.file.fallBack() {
			s.w.count("record stores fell back")
			s.life++
		}
		return
	case s.lives == nil:
		s.w.count("etcd restored from what it had last")
		s.cluster++
		return
	}
	s.lives.forget(s, changes)
}

// lose takes the latest changes back.
func (s *records) lose(changes int) {
	s.w.count("record stores fell back")
	left := s.done[:max(0, len(s.done)-changes)]
	s.confirmed = min(s.confirmed, len(left))
	s.done, s.lives, s.stamps = nil, s.first, map[string]stamp{}
	s.Store = memory.NewArea(s.area, s.now)
	for _, c := range left {
		s.replayed = c.atMS
		_, err := s.Store.Change(context.Background(), c.ask, func(record.View) ([]record.Write, error) { return c.writes, nil })
		must(err, nil)
		s.apply(c)
		s.lives = c.lives
	}
	s.replayed = 0
	s.life++
}

// lasting are the writes with the terms that the server gives them: those of etcd last longer,
// by a fifth and a second at most.
func (s *records) lasting(writes []record.Write) []record.Write {
	if s.kind != onEtcd {
		return writes
	}
	writes = slices.Clone(writes)
	for i := range writes {
		if w := &writes[i]; w.TermMS > 0 {
			w.TermMS = min(w.TermMS+s.w.rnd.Int64N(w.TermMS/5+1000), record.MaxTermMS)
		}
	}
	return writes
}
