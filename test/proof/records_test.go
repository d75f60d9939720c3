package proof

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
)

var errUnsupported = errors.ErrUnsupported

// records is the model of a server that keeps records: the memory store, which the
// conformance suite accepts, and which may fall back to an earlier copy of itself.
// Then it knows that it may have forgotten something, and begins another life.
type records struct {
	w *world

	mu sync.Mutex
	record.Store
	done     []change // by which the present content came about
	life     int
	floor    int64
	fromMS   int64 // of the fence
	untilMS  int64
	greatest int64   // the greatest end that was ever granted
	rate     float64 // of the store's clock
	replayed int64   // its time while a copy is made; 0: now

	file  *database // nil: a model
	known func() sqlitefile.Fence
}

// change is one that was carried out.
type change struct {
	atMS   int64
	ask    record.Ask
	writes []record.Write
}

func newRecords(w *world) *records {
	s := &records{w: w, rate: 1 + (w.rnd.Float64()-0.5)/50}
	if w.onFiles {
		s.openRecords()
	} else {
		s.Store = memory.New(s.now)
	}
	return s
}

// now is the store's clock. It runs at a rate of its own.
func (s *records) now() int64 {
	if s.replayed != 0 {
		return s.replayed
	}
	return s.w.began.Add(time.Duration(float64(time.Since(s.w.began)) * s.rate)).UnixMilli()
}

// Change implements record.Store.
func (s *records) Change(ctx context.Context, ask record.Ask, rule record.Rule) (at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		s.file.around(func() { at, err = s.Store.Change(ctx, ask, rule) })
		return at, err
	}
	c := change{ask: ask}
	at, err = s.Store.Change(ctx, ask, func(v record.View) (writes []record.Write, err error) {
		c.writes, err = rule(s.shown(v))
		return c.writes, err
	})
	if err == nil && len(c.writes) > 0 {
		c.atMS = at
		s.done = append(s.done, c)
		for _, w := range c.writes {
			if w.Grant {
				s.greatest = max(s.greatest, at+w.TermMS)
			}
		}
	}
	return at, err
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

// shown is the view of a server that knows what it may have forgotten.
func (s *records) shown(v record.View) record.View {
	v.Life = fmt.Sprint("life ", s.life)
	if !s.w.without(floorOverLives) {
		v.Floor = max(v.Floor, s.floor)
	}
	until := s.untilMS
	if s.w.without(forgottenTermsFenced) {
		until = 0
	}
	doubt := s.life > 0 && !s.w.without(forgottenValuesFenced)
	v.Fence = record.Fence{Doubt: doubt, FromMS: s.fromMS, UntilMS: until, Reason: "the store fell back to an earlier copy"}
	return v
}

// fenced reports whether the store grants nothing.
func (s *records) fenced() bool {
	if s.file != nil {
		return s.known().Holds(s.now())
	}
	return s.now() < s.untilMS
}

// fallBack puts the store back to what it was some changes ago, or to a copy that was made.
func (s *records) fallBack(changes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		if s.file.fallBack() {
			s.w.count("record stores fell back")
			s.life++
		}
		return
	}
	s.w.count("record stores fell back")
	now := s.now()
	s.done = s.done[:max(0, len(s.done)-changes)]
	s.Store = memory.New(s.now)
	for _, c := range s.done {
		s.replayed = c.atMS
		if _, err := s.Store.Change(context.Background(), c.ask, func(record.View) ([]record.Write, error) { return c.writes, nil }); err != nil {
			panic(err)
		}
	}
	s.replayed = 0
	s.life++
	s.floor, s.fromMS, s.untilMS = now*1000, now, max(s.greatest, now)
}
