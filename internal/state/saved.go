package state

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// TimelineSource is the origin of the timeline in use.
type TimelineSource string

const (
	SourceNone   TimelineSource = ""       // no timeline yet
	SourceLease  TimelineSource = "lease"  // set by a lease or accepted by an operator: another one is refused
	SourceConfig TimelineSource = "config" // only configured: the first lease may set another
)

// Saved is the state of one service besides its mark.
type Saved struct {
	// Held are the leases in use. Remove one with Save before releasing it.
	Held []lease.Lease
	// Cached is the last lease that ran out, for cached fallback; nil if none.
	Cached *lease.Lease
	// Timeline is the timeline of all leases; the zero value with SourceNone.
	Timeline snowflake.Timeline
	Source   TimelineSource
	// Offered is the timeline of a refused lease, which an operator can accept.
	Offered *snowflake.Timeline
	// Origin identifies the provider that granted the leases. Other providers do not
	// know them: the caller drops those of another origin.
	Origin string
}

// all is the held leases and the cached one.
func (s Saved) all() []lease.Lease {
	if s.Cached == nil {
		return s.Held
	}
	return append(slices.Clone(s.Held), *s.Cached)
}

// leases counts them, the cached one included.
func (s Saved) leases() int { return len(s.all()) }

// withoutLeases is s without anything that makes regular or cached fallback IDs.
func (s Saved) withoutLeases() Saved {
	s.Held, s.Cached = nil, nil
	return s
}

func sameTimeline(a, b Saved) bool { return a.Timeline == b.Timeline && a.Source == b.Source }

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
	for _, l := range s.all() {
		if err := s.validateLease(l); err != nil {
			return err
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

// document is the JSON form of one service: with its floor and without leases in the
// state file, the other way round in the leases file.
type document struct {
	FloorMS  int64             `json:"floorMs,omitempty"`
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

func documentOf(s Saved) document {
	doc := document{Held: s.Held, Cached: s.Cached, Source: s.Source, Origin: s.Origin}
	if s.Source != SourceNone {
		doc.Timeline = (*timelineDocument)(&s.Timeline)
	}
	if s.Offered != nil {
		doc.Offered = (*timelineDocument)(s.Offered)
	}
	return doc
}

func (doc document) saved() (Saved, error) {
	s := Saved{Held: doc.Held, Cached: doc.Cached, Source: doc.Source, Offered: (*snowflake.Timeline)(doc.Offered), Origin: doc.Origin}
	if doc.Timeline != nil {
		s.Timeline = snowflake.Timeline(*doc.Timeline)
	}
	return s, s.validate()
}
