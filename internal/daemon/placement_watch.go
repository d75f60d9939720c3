package daemon

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/driver"
)

// Limits of the view of a daemon.
const (
	maxLately      = 50
	maxReasonBytes = 300
	maxShown       = 100 // members, and kinds
)

// countResolve counts the outcome of a request to resolve.
func (p *Placement) countResolve(r placement.Resolution, err error) {
	var held *lock.HeldError
	var full *driver.OverloadedError
	switch {
	case err == nil && r.Locality == placement.Local:
		p.counts.ResolvedLocal.Inc()
	case err == nil:
		p.counts.ResolvedRemote.Inc()
	case errors.As(err, &held), errors.Is(err, placement.ErrOwned):
		p.counts.Resolved("held")
	case errors.Is(err, placement.ErrPending):
		p.counts.Resolved("pending")
	case errors.Is(err, placement.ErrNotReady):
		p.counts.Resolved("not_ready")
	case errors.Is(err, placement.ErrUnserved):
		p.counts.Resolved("unserved")
	case errors.As(err, &full):
		p.counts.Resolved("overloaded")
	case errors.Is(err, errHungUp), errors.Is(err, errShuttingDown):
		p.counts.Resolved("canceled")
	case errors.Is(err, placement.ErrInvalid): // was not tried
	default:
		p.counts.Resolved("failed")
	}
}

// observe counts an event of the driver, and keeps it for the status page.
func (p *Placement) observe(e placement.Event) {
	switch e.Kind {
	case placement.Resolved, placement.PIDCached, placement.PIDDropped:
		return
	case placement.LockDenied:
		if _, ok := errors.AsType[*lock.HeldError](e.Err); ok || errors.Is(e.Err, placement.ErrOwned) {
			p.counts.NotActivated(e.Key.Kind, true)
		}
	case placement.Activated:
		p.counts.Activated(e.Key.Kind, e.Took)
	case placement.ActivationFailed:
		p.counts.NotActivated(e.Key.Kind, false)
	case placement.Passivated:
		p.counts.Passivated(passivationReason(e))
	}
	p.lately.add(e)
}

// passivationReason is one of few words.
func passivationReason(e placement.Event) string {
	switch {
	case errors.Is(e.Err, errExecutorGone), e.Err == nil && e.Reason == placement.ProcessGone:
		return "process_gone"
	case errors.Is(e.Err, driver.ErrUnknown):
		return "unanswered"
	case e.Err != nil:
		return "failed"
	}
	words := map[string]string{
		placement.HostStops: "stopped", placement.MembershipEnded: "membership_ended", placement.OtherAuthority: "moved",
		placement.NoAuthority: "unserved",
		placement.NotAskedFor: "idle", placement.LetGo: "released",
	}
	return cmp.Or(words[e.Reason], "failed") // an activation with an unknown end
}

// counting has failures of the store counted, which failed is told of as well.
func (p *Placement) counting(failed func(string, error)) func(string, error) {
	return func(what string, err error) {
		// An answer is none, but for the answer of a store which must not answer for a while.
		var fenced *lock.FencedError
		if errors.As(err, &fenced) || !lock.IsAnswer(err) && !errors.Is(err, placement.ErrStale) && !errors.Is(err, placement.ErrUnserved) {
			p.counts.StoreFailed(what)
		}
		if failed != nil {
			failed(what, err)
		}
	}
}

// sample is what metrics show of placement.
func (p *Placement) sample() metrics.PlacementSample {
	now := p.driver.Overview()
	running, executors := p.executors.counts()
	return metrics.PlacementSample{
		State: string(now.State), Members: len(now.Members), Activations: running, Executors: executors, Ignored: now.Ignored,
	}
}

// counts are how many activations and executors there are of each kind.
func (x *executors) counts() (running, executors map[string]int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	running, executors = map[string]int{}, map[string]int{}
	for key := range x.assigned {
		running[key.Kind]++
	}
	for kind, all := range x.byKind {
		executors[kind] = len(all)
	}
	return running, executors
}

// PlacementStatus is placement on the status page.
type PlacementStatus struct {
	State        placement.State      `json:"state"`
	Authority    string               `json:"authority"`
	Members      []SnapshotMember     `json:"members"`
	MembersTotal int                  `json:"members_total"`
	Kinds        []PlacementKind      `json:"kinds"` // the ones with the most activations
	KindsTotal   int                  `json:"kinds_total"`
	Activations  int                  `json:"activations_total"`
	Lately       []PlacementHappening `json:"lately"` // the latest first
}

// PlacementKind is a kind of actors.
type PlacementKind struct {
	Kind        string `json:"kind"`
	Executors   int    `json:"executors"`
	Activations int    `json:"activations"`
}

// PlacementHappening is an event.
type PlacementHappening struct {
	Serial   int                 `json:"serial"` // from 1 on
	At       int64               `json:"at"`     // Unix ms
	Event    placement.EventKind `json:"event"`
	Kind     string              `json:"kind"`
	Identity string              `json:"identity"`
	Token    int64               `json:"token"`
	Reason   string              `json:"reason"`
}

// Status returns the figures for the status page, nil where placement is off.
func (p *Placement) Status() *PlacementStatus {
	if p == nil {
		return nil
	}
	now := p.driver.Overview()
	st := &PlacementStatus{
		State: now.State, Authority: now.Authority, Members: shownMembers(now), MembersTotal: len(now.Members),
		Kinds: []PlacementKind{}, Lately: p.lately.latest(),
	}
	running, executors := p.executors.counts()
	for kind := range running {
		executors[kind] += 0
	}
	for kind, n := range executors {
		st.Kinds = append(st.Kinds, PlacementKind{kind, n, running[kind]})
		st.Activations += running[kind]
	}
	slices.SortFunc(st.Kinds, func(a, b PlacementKind) int {
		return cmp.Or(cmp.Compare(b.Activations, a.Activations), strings.Compare(a.Kind, b.Kind))
	})
	st.KindsTotal = len(st.Kinds)
	st.Kinds = st.Kinds[:min(len(st.Kinds), maxShown)]
	return st
}

// shownMembers are the first by name, and this host wherever it comes.
func shownMembers(now placement.Snapshot) []SnapshotMember {
	shown := []SnapshotMember{}
	for i, m := range now.Members {
		if i < maxShown || m.Authority == now.Authority {
			shown = append(shown, showMember(m))
		}
	}
	return shown
}

// lately keeps the latest events. It is safe for concurrent use.
type lately struct {
	mu     sync.Mutex
	events [maxLately]PlacementHappening
	count  int // so far
}

func (l *lately) add(e placement.Event) {
	reason := e.Reason
	if len(reason) > maxReasonBytes {
		reason = strings.ToValidUTF8(reason[:maxReasonBytes], "") + "…"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events[l.count%maxLately] = PlacementHappening{l.count + 1, e.ObservedMS, e.Kind, e.Key.Kind, e.Key.Identity, e.Token, reason}
	l.count++
}

// latest returns the kept happenings, the latest first.
func (l *lately) latest() []PlacementHappening {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]PlacementHappening, 0, maxLately)
	for i := l.count - 1; i >= max(0, l.count-maxLately); i-- {
		out = append(out, l.events[i%maxLately])
	}
	return out
}
