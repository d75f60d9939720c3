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
	Held []lease.Lease `json:"held,omitempty"`
	// Cached is the last lease that ran out, for cached fallback; nil if none.
	Cached *lease.Lease `json:"cached,omitempty"`
	// Timeline is the timeline of all leases; the zero value with SourceNone.
	Timeline snowflake.Timeline `json:"timeline,omitzero"`
	Source   TimelineSource     `json:"timelineSource,omitempty"`
	// From is the timeline that the service leaves for Timeline, from before the generator
	// is asked until it has answered: IDs of either may have been made, and there are no
	// leases. nil at all other times. The next Open settles it.
	From *snowflake.Timeline `json:"fromTimeline,omitempty"`
	// Offered is the timeline of a refused lease, which an operator can accept.
	Offered *snowflake.Timeline `json:"offeredTimeline,omitempty"`
	// Largest is the largest ID that can have been made before an operator lowered the mark or
	// accepted another timeline; 0: none has.
	Largest snowflake.ID `json:"largestId,omitempty"`
	// Origin identifies the provider that granted the leases. Other providers do not
	// know them: the caller drops those of another origin.
	Origin string `json:"origin,omitempty"`
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

// Settled ends the move of a life that ended in the middle of it. Every ID so far has a
// timestamp before the mark, and the generator moves only if its IDs ascend. So where
// those of Timeline would be above all of From, they are above all IDs. Where they would
// not, every ID that From makes from now on is above all IDs so far.
func (s Saved) Settled(markMS int64) Saved {
	if s.From != nil && !CrossTimelines(*s.From, s.Timeline, markMS).Ascends() {
		s.Timeline, s.Source = *s.From, SourceConfig
	}
	s.From = nil
	return s
}

func sameTimeline(a, b Saved) bool {
	return a.Timeline == b.Timeline && a.Source == b.Source && a.Largest == b.Largest && (a.From == nil) == (b.From == nil)
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
	s.Cached, s.From, s.Offered = clonePointer(s.Cached), clonePointer(s.From), clonePointer(s.Offered)
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
	if s.From != nil {
		if err := s.From.Validate(); err != nil {
			return fmt.Errorf("timeline that it leaves: %w", err)
		}
		if s.Source != SourceLease || s.leases() > 0 {
			return fmt.Errorf("it leaves a timeline, and the new one is not of a lease, or has leases already")
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
