package proof

import (
	"fmt"
	"math"
	"slices"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/test/trace"
)

// trail is what a world knows of its leases and regular IDs. At the end test/trace holds it
// against docs/model/Pool.tla.
type trail struct {
	trace.Trace
	grants map[string]int // by secrets
	lives  int            // of streams
}

// uses notes that the generator gets the leases.
func (t *trail) uses(s *stream, leases []lease.Lease) {
	if t.grants == nil {
		t.grants = map[string]int{}
	}
	if s.trail == "" {
		t.lives++
		s.trail = fmt.Sprint(s.name(), " in life ", t.lives)
	}
	for _, l := range leases {
		i, known := t.grants[l.Secret]
		if !known {
			i = len(t.Grants)
			t.grants[l.Secret] = i
			t.Grants = append(t.Grants, trace.Grant{Slot: l.Slot(), Created: l.Created, Expired: l.Expired, ReservedUntil: l.ReservedUntil})
		}
		if g := &t.Grants[i]; !slices.Contains(g.By, s.trail) {
			g.By = append(g.By, s.trail)
		}
	}
}

// leaves notes that a release may be sent.
func (t *trail) leaves(req provider.ReleaseRequest) {
	for secret, i := range t.grants {
		t.Grants[i].Left = t.Grants[i].Left || req.Signed(secret)
	}
}

// emits notes a regular ID. In which order those who asked at one time are answered is open.
func (t *trail) emits(s *stream, line snowflake.Timeline, id snowflake.ID) {
	t.Emits = append(t.Emits, trace.Emit{By: s.trail, MS: line.UnixMS(id), Low: line.Low(id), Order: int64(id)})
}

// follow judges the steps of the world, unless a rule is switched off: then only equal IDs count.
func (w *world) follow() {
	if w.off || w.fault != "" {
		return
	}
	if w.whole {
		w.lockTrail.follow()
		w.placeTrail.follow()
	}
	w.trail.UntilMS = math.MaxInt64
	w.followed = w.trail.Check()
	if broken := w.followed.Broken; len(broken) > 0 {
		w.fault = "no step of docs/model/Pool.tla: " + broken[0]
	}
}
