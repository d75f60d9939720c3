package state

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// TimelineSource says where the timeline in use comes from.
type TimelineSource string

const (
	SourceNone   TimelineSource = ""       // no timeline yet
	SourceLease  TimelineSource = "lease"  // a lease set it, or an operator accepted it: another one is refused
	SourceConfig TimelineSource = "config" // only configured: the first lease may set another
)

// Saved is what is kept for one service beside its mark.
type Saved struct {
	// Held are the leases in use. Remove one with Save before releasing it.
	Held []lease.Lease
	// Cached is the last lease that ran out, for cached fallback; nil if none.
	Cached *lease.Lease
	// Timeline is the zero value together with SourceNone: nothing known yet.
	// All leases are on this timeline.
	Timeline snowflake.Timeline
	Source   TimelineSource
	// Offered is the timeline of a lease that was refused, for an operator to
	// accept; nil if none.
	Offered *snowflake.Timeline
	// Origin says who granted the leases, in the caller's words. A lease means
	// nothing to another provider: the caller drops those of another origin.
	Origin string
}

// leases counts them, the cached one included.
func (s Saved) leases() int {
	if s.Cached != nil {
		return len(s.Held) + 1
	}
	return len(s.Held)
}

// withoutLeases is s with nothing left that could make a regular or a cached
// fallback ID.
func (s Saved) withoutLeases() Saved {
	s.Held, s.Cached = nil, nil
	return s
}

func (s Saved) withoutSecrets() Saved {
	s = s.clone()
	for i := range s.Held {
		s.Held[i].Secret = ""
	}
	if s.Cached != nil {
		s.Cached.Secret = ""
	}
	return s
}

func (s Saved) clone() Saved {
	s.Held = slices.Clone(s.Held)
	if len(s.Held) == 0 {
		s.Held = nil
	}
	s.Cached, s.Offered = clonePointer(s.Cached), clonePointer(s.Offered)
	return s
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

func (s Saved) validate() error {
	switch s.Source {
	case SourceNone:
		if s.Timeline != (snowflake.Timeline{}) {
			return fmt.Errorf("the timeline has no source")
		}
	case SourceLease, SourceConfig:
		if err := s.Timeline.Validate(); err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
	default:
		return fmt.Errorf("the timeline's source is %q, and must be %q or %q", s.Source, SourceLease, SourceConfig)
	}
	if s.Offered != nil {
		if err := s.Offered.Validate(); err != nil {
			return fmt.Errorf("offered timeline: %w", err)
		}
	}
	for _, l := range s.Held {
		if err := s.validateLease(l); err != nil {
			return fmt.Errorf("held lease: %w", err)
		}
	}
	if s.Cached != nil {
		if err := s.validateLease(*s.Cached); err != nil {
			return fmt.Errorf("cached lease: %w", err)
		}
	}
	return nil
}

func (s Saved) validateLease(l lease.Lease) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if !utf8.ValidString(l.Secret) {
		return fmt.Errorf("the secret of machine ID %d is not UTF-8", l.ID) // JSON would change it
	}
	if l.Timeline() != s.Timeline {
		return fmt.Errorf("%v is on timeline %+v, and the one in use is %+v", l, l.Timeline(), s.Timeline)
	}
	return nil
}

// document is Saved as text in state.db.
type document struct {
	Held     []lease.Lease     `json:"held,omitempty"`
	Cached   *lease.Lease      `json:"cached,omitempty"`
	Timeline *timelineDocument `json:"timeline,omitempty"`
	Source   TimelineSource    `json:"timelineSource,omitempty"`
	Offered  *timelineDocument `json:"offeredTimeline,omitempty"`
	Origin   string            `json:"origin,omitempty"`
}

type timelineDocument struct {
	EpochMS int64 `json:"epochMs"`
	BitTS   int   `json:"bitTs"`
}

func encode(s Saved) (string, error) {
	doc := document{Held: s.Held, Cached: s.Cached, Source: s.Source, Origin: s.Origin}
	if s.Source != SourceNone {
		doc.Timeline = (*timelineDocument)(&s.Timeline)
	}
	if s.Offered != nil {
		doc.Offered = (*timelineDocument)(s.Offered)
	}
	text, err := json.Marshal(doc)
	return string(text), err
}

func decode(text string) (Saved, error) {
	var doc document
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return Saved{}, err
	}
	s := Saved{Held: doc.Held, Cached: doc.Cached, Source: doc.Source, Offered: (*snowflake.Timeline)(doc.Offered), Origin: doc.Origin}
	if doc.Timeline != nil {
		s.Timeline = snowflake.Timeline(*doc.Timeline)
	}
	return s, s.validate()
}

// Service is the durable state of one service. Its methods may be called
// concurrently.
type Service struct {
	state *State
	name  string
	mark  atomic.Pointer[atomic.Int64] // into the mapping; nil once closed

	mu    sync.Mutex // keeps the mapping while Mark reads it
	final int64      // the mark at Close
}

// Name is the name of the service.
func (sv *Service) Name() string { return sv.name }

// Load returns what was saved last. The leases in it were adopted: State.Notes
// says so if others were not.
func (sv *Service) Load() Saved {
	sv.state.mu.Lock()
	defer sv.state.mu.Unlock()
	return sv.state.stored[sv.name].clone()
}

// Save replaces all that is kept for the service. When it returns nil the new
// content is durable. On an error the old content stands, for this process and,
// as far as it can be known, on disk; where a failed write may have reached the
// disk nonetheless, no lease is adopted after a crash until a Save succeeds.
//
// After an error do not release a lease that was to be removed: the next start
// may adopt it. One that was to be added may be used, since a crash merely
// forgets it. Possible errors are a *FileError, an error about the content, and
// ErrClosed.
func (sv *Service) Save(content Saved) error {
	if err := content.validate(); err != nil {
		return fmt.Errorf("state of service %q: %w", sv.name, err)
	}
	sv.state.mu.Lock()
	defer sv.state.mu.Unlock()
	return sv.state.replace(map[string]Saved{sv.name: content.clone()})
}

// Mark is the durable timestamp in Unix milliseconds that no ID so far reaches;
// 0 if there never was an ID.
func (sv *Service) Mark() int64 {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if mark := sv.mark.Load(); mark != nil {
		return mark.Load()
	}
	return sv.final
}

// RaiseMark raises the mark to ms, or does nothing where it is there already. To
// emit an ID that embeds t, call RaiseMark(t+1) first. It takes no lock,
// allocates nothing and makes no system call.
//
// Whoever calls it must be done before Close; afterwards it panics.
func (sv *Service) RaiseMark(ms int64) {
	mark := sv.mark.Load()
	if mark == nil {
		panic("state: RaiseMark of service " + sv.name + " after Close: an ID would lack its durable mark")
	}
	for {
		old := mark.Load()
		if ms <= old || mark.CompareAndSwap(old, ms) {
			return
		}
	}
}

func (sv *Service) close() {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if mark := sv.mark.Swap(nil); mark != nil {
		sv.final = mark.Load()
	}
}
