// Package quota remembers what was refused because a quota is used up, and who used it
// up. Every such refusal goes through Stats: from there it reaches the log, the metrics,
// health, readyz, doctor and the status page.
package quota

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// The limits that have no configuration key have these names.
const (
	Files            = "LimitNOFILE" // of open files, in the unit
	FixedAdmin       = "fixed_admin_connections"
	FixedAnswers     = "fixed_long_answers"
	FixedDisk        = "fixed_disk" // below the store: it is full
	FixedHolds       = "fixed_holds"
	FixedStoreCalls  = "fixed_store_calls"
	FixedActivations = "fixed_placement_activations"
	FixedKinds       = "fixed_placement_kinds"
	FixedWatches     = "fixed_placement_watches"
)

// Fixed reports whether the name is of a limit that has no configuration key.
func Fixed(name string) bool { return name == Files || strings.HasPrefix(name, "fixed_") }

// Refusal is one refusal.
type Refusal struct {
	Quota string `json:"quota"` // its configuration key, or its name above
	Limit int64  `json:"limit"` // its value
	Whose string `json:"whose"` // who used it up: "UID 1000", "tenant a", "address 192.0.2.1"; "" where that is not known
}

// Hit sums up the refusals of one quota and one user.
type Hit struct {
	Refusal
	Refusals uint64 `json:"refusals"` // since FirstMS
	FirstMS  int64  `json:"since_ms"` // Unix ms; before it, there was none for Window
	LastMS   int64  `json:"last_ms"`
}

// Window is how long a refusal counts as overload.
const Window = time.Minute

const (
	maxHits   = 64 // kept at once, however many peers there are
	logPause  = 10 * time.Second
	logBurst  = 5
	logRepeat = time.Minute // between two lines about the same quota and user
)

// Stats keep the refusals of the last minute. The zero value and nil keep nothing.
type Stats struct {
	log   *zap.Logger
	count func(quota string)
	lines *rate.Limiter

	mu   sync.Mutex
	hits map[Refusal]*entry // by quota and user; the key has no limit
}

type entry struct {
	Hit
	loggedMS int64
	unlogged uint64
}

// New returns empty statistics. count is called for each refusal.
func New(log *zap.Logger, count func(quota string)) *Stats {
	return &Stats{
		log: log.With(zap.String("component", "quota")), count: count,
		lines: rate.NewLimiter(rate.Every(logPause), logBurst), hits: map[Refusal]*entry{},
	}
}

// Refuse notes a refusal. It does not block.
func (b *Stats) Refuse(r Refusal) {
	if b == nil || b.hits == nil {
		return
	}
	b.count(r.Quota)
	nowMS := time.Now().UnixMilli()
	b.mu.Lock()
	e := b.of(r, nowMS)
	e.Limit, e.LastMS = r.Limit, nowMS
	e.Refusals++
	log := nowMS-e.loggedMS >= logRepeat.Milliseconds() && b.lines.Allow()
	unlogged := e.unlogged
	if log {
		e.loggedMS, e.unlogged = nowMS, 0
	} else {
		e.unlogged++
	}
	b.mu.Unlock()
	if log {
		b.log.Warn("a quota is used up: requests are refused",
			zap.String("quota", r.Quota), zap.Int64("limit", r.Limit), zap.String("whose", r.Whose), zap.Uint64("unmentioned", unlogged))
	}
}

// of is the entry of the quota and user. A new one takes the place of the one whose last
// refusal was longest ago. mu is held.
func (b *Stats) of(r Refusal, nowMS int64) *entry {
	key := Refusal{Quota: r.Quota, Whose: r.Whose}
	e := b.hits[key]
	if e == nil {
		if len(b.hits) >= maxHits {
			var oldest *entry
			for _, one := range b.hits {
				if oldest == nil || one.LastMS < oldest.LastMS {
					oldest = one
				}
			}
			delete(b.hits, Refusal{Quota: oldest.Quota, Whose: oldest.Whose})
		}
		e = &entry{Hit: Hit{Refusal: r}}
		b.hits[key] = e
	}
	if nowMS-e.LastMS > Window.Milliseconds() {
		e.Refusals, e.FirstMS = 0, nowMS
	}
	return e
}

// Recent are the refusals of the last minute, the latest first.
func (b *Stats) Recent() []Hit {
	recent := []Hit{}
	if b == nil {
		return recent
	}
	since := time.Now().Add(-Window).UnixMilli()
	b.mu.Lock()
	for _, e := range b.hits {
		if e.LastMS >= since {
			recent = append(recent, e.Hit)
		}
	}
	b.mu.Unlock()
	slices.SortFunc(recent, func(x, y Hit) int {
		return cmp.Or(cmp.Compare(y.LastMS, x.LastMS), cmp.Compare(x.Quota, y.Quota), cmp.Compare(x.Whose, y.Whose))
	})
	return recent
}

// Lines are the refusals of the last minute in words, a line each.
func (b *Stats) Lines() (lines []string) {
	for _, hit := range b.Recent() {
		lines = append(lines, "overloaded: "+hit.String())
	}
	return lines
}

// UsedUp are the quotas of these refusals, for peers who must not learn of others.
func (b *Stats) UsedUp() (quotas []string) {
	for _, hit := range b.Recent() {
		if !slices.Contains(quotas, hit.Quota) {
			quotas = append(quotas, hit.Quota)
		}
	}
	return quotas
}

// String says which quota is used up, and by whom.
func (h Hit) String() string {
	text := h.Quota + " is used up"
	if h.Limit > 0 {
		text = fmt.Sprintf("%s (%d) is used up", h.Quota, h.Limit)
	}
	if h.Whose != "" {
		text += " by " + h.Whose
	}
	return fmt.Sprintf("%s: %d refused since %s", text, h.Refusals, time.UnixMilli(h.FirstMS).UTC().Format(time.RFC3339))
}
