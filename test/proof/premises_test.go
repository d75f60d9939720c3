package proof

import (
	"fmt"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// The argument has premises about leases. A world looks at them as it goes: that
// finds a mistake long before two IDs happen to be equal. With a rule switched off
// only equal IDs count.

func (s *stream) has(l lease.Lease) bool { return contains(s.given, l) || isCached(s.cached, l) }

// oneUser: a lease is in the hands of one generator.
func (w *world) oneUser(s *stream) {
	if w.off || w.fault != "" {
		return
	}
	w.streams(func(other *stream) {
		for _, l := range s.given {
			if other != s && other.has(l) {
				w.fault = fmt.Sprintf("%s and %s use the same lease: %v", s.name(), other.name(), l)
			}
		}
		if other != s && s.cached != nil && other.has(*s.cached) {
			w.fault = fmt.Sprintf("%s and %s use the same lease: %v", s.name(), other.name(), *s.cached)
		}
	})
}

// noUser: a lease that is given back is in nobody's hands.
func (w *world) noUser(req provider.ReleaseRequest) {
	if w.off || w.fault != "" {
		return
	}
	given := func(l lease.Lease) bool {
		return l.ID == req.ID && l.BitSeq == req.BitSeq && req.Signed(l.Secret)
	}
	w.streams(func(s *stream) {
		for _, l := range s.given {
			if given(l) {
				w.fault = fmt.Sprintf("%s uses a lease that was given back: %v", s.name(), l)
			}
		}
		if s.cached != nil && given(*s.cached) {
			w.fault = fmt.Sprintf("%s has a cached lease that was given back: %v", s.name(), *s.cached)
		}
	})
}

// embedded notes the last timestamp of each lease.
func (w *world) embedded(s *stream, id snowflake.ID) {
	at, low := w.timeline.UnixMS(id), w.timeline.Low(id)%w.timeline.FallbackBit()
	for _, l := range append(s.given[:len(s.given):len(s.given)], deref(s.cached)...) {
		if slot := l.Slot(); slot.Start <= low && low < slot.End {
			w.last[l.Secret] = max(w.last[l.Secret], at)
		}
	}
}

func deref(l *lease.Lease) []lease.Lease {
	if l == nil {
		return nil
	}
	return []lease.Lease{*l}
}

// markCovers: a lease that is adopted comes with a mark above its IDs.
func (w *world) markCovers(s *stream, leases []lease.Lease, mark int64) {
	if w.off || w.fault != "" {
		return
	}
	for _, l := range leases {
		if last, used := w.last[l.Secret]; used && last >= mark {
			w.fault = fmt.Sprintf("%s adopts a lease whose last ID is %d ms above the mark: %v", s.name(), last-mark+1, l)
		}
	}
}

func (s *stream) name() string { return s.d.name + "/" + s.svc.name }
