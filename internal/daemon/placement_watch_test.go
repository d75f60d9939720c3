package daemon

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// What happens to actors is counted, and shown.
func TestPlacementIsWatched(t *testing.T) {
	s := newSite(t)
	r, other := s.start("a:1"), s.start("b:1")
	r.sees(2)
	other.sees(2)
	mine, theirs := r.local("room", "a:1"), r.local("room", "b:1")
	w, p := r.worker(), r.dial()
	other.worker()
	r.serves(other)
	r.activate(w, mine)
	p.table("Placement.Resolve", "room", mine)
	p.table("Placement.Resolve", "room", theirs)
	p.fails(wire.CodePlacementUnserved, "Placement.Resolve", "house", "1", options{"wait_ms": 1})
	count := func(want float64, name string, labels ...string) {
		t.Helper()
		await.Eventually(t, fmt.Sprintf("%s%v is %v, not %v", name, labels, want, r.value(name, labels...)), func() bool { return r.value(name, labels...) == want })
	}
	count(1, "kazahana_placement_state", "member")
	count(0, "kazahana_placement_state", "client")
	count(2, "kazahana_placement_members")
	count(1, "kazahana_placement_executors", "room")
	count(1, "kazahana_placement_activations", "room")
	count(1, "kazahana_placement_activations_total", "room", "ok")
	count(1, "kazahana_placement_activation_duration_seconds")
	count(2, "kazahana_placement_resolves_total", "local")
	count(1, "kazahana_placement_resolves_total", "remote")
	count(1, "kazahana_placement_resolves_total", "unserved")

	st := r.placement.Status()
	if st.State != placement.StateMember || st.Authority != "a:1" || len(st.Members) != 2 || st.MembersTotal != 2 || st.Activations != 1 || st.KindsTotal != 1 ||
		len(st.Kinds) != 1 || st.Kinds[0] != (PlacementKind{"room", 1, 1}) {
		t.Errorf("%+v", st)
	}
	if len(st.Lately) != 2 || st.Lately[0].Event != placement.Unserved || st.Lately[1].Event != placement.Activated || st.Lately[1].Identity != mine || st.Lately[1].At == 0 {
		t.Errorf("lately: %+v", st.Lately)
	}

	w.ask("Placement.Unregister")
	w.answer(w.want("Passivate", mine), "no", nil)
	w.receive()
	count(1, "kazahana_placement_passivations_total", "failed")
	count(0, "kazahana_placement_executors", "room")
	count(0, "kazahana_placement_activations", "room")
	r.upToDate()
	w = r.worker()
	r.activate(w, mine)
	w.ask("Placement.Unregister")
	w.answer(w.want("Passivate", mine), nil, map[string]any{"snapshot": nil})
	w.receive()
	count(1, "kazahana_placement_passivations_total", "released")
	r.upToDate()
	w = r.worker()
	r.activate(w, mine)
	_ = w.Close()
	count(1, "kazahana_placement_passivations_total", "process_gone")
	count(3, "kazahana_placement_activations_total", "room", "ok")
	if st := r.placement.Status(); len(st.Lately) != 7 || st.Lately[0].Event != placement.Passivated || st.Lately[6].Event != placement.Activated {
		t.Errorf("lately: %+v", st.Lately)
	}
}

// local is an actor of the kind that belongs to the authority, once all members serve it.
func (r *placed) local(kind, authority string) string {
	var names []string
	for _, m := range r.placement.driver.Overview().Members {
		names = append(names, m.Authority)
	}
	choose := placement.Rendezvous(names)
	for i := 0; ; i++ {
		if choose(placement.Key{Kind: kind, Identity: fmt.Sprint(i)}) == authority {
			return fmt.Sprint(i)
		}
	}
}

// Each reason has a word, which is counted.
func TestPassivationReasons(t *testing.T) {
	counts, all := metrics.NewPlacement(), metrics.New(metrics.Build{})
	all.Placement(counts, func() metrics.PlacementSample { return metrics.PlacementSample{} })
	counted := func() (n float64) {
		families, err := all.Registry.Gather()
		must.Succeed(t, err)
		for _, family := range families {
			for _, one := range family.GetMetric() {
				if family.GetName() == "kazahana_placement_passivations_total" {
					n += one.GetCounter().GetValue()
				}
			}
		}
		return n
	}
	unanswered := fmt.Errorf("passivate: %w", fmt.Errorf("%w: the process has not answered Passivate within 5s", driver.ErrUnknown))
	for _, c := range []struct {
		reason string
		err    error
		want   string
	}{
		{placement.OtherAuthority, nil, "moved"},
		{placement.NoAuthority, nil, "unserved"},
		{placement.NotAskedFor, nil, "idle"},
		{placement.LetGo, nil, "released"},
		{placement.HostStops, nil, "stopped"},
		{placement.MembershipEnded, nil, "membership_ended"},
		{placement.ProcessGone, nil, "process_gone"},
		{"", fmt.Errorf("passivate: %w", errExecutorGone), "process_gone"},
		{unanswered.Error(), unanswered, "unanswered"},
		{"", wire.Errorf(wire.CodeOverloaded, "no"), "failed"},
		{"the activation has failed: anything", nil, "failed"},
	} {
		if got := passivationReason(placement.Event{Kind: placement.Passivated, Reason: c.reason, Err: c.err}); got != c.want {
			t.Errorf("%q, %v: %s, want %s", c.reason, c.err, got, c.want)
		}
		before := counted()
		counts.Passivated(c.want)
		if counted() != before+1 {
			t.Errorf("%s is not counted", c.want)
		}
	}
}

// What a store answers is no failure of it; that it is fenced is one, though.
func TestStoreFailures(t *testing.T) {
	r := newSite(t).start("a:1")
	r.stopPlace()
	told := 0
	failed := r.placement.counting(func(string, error) { told++ })
	for _, c := range []struct {
		err  error
		want float64
	}{
		{errors.New("connection refused"), 1},
		{fmt.Errorf("load: %w", placement.ErrStale), 1},
		{lock.ErrExpired, 1},
		{fmt.Errorf("load: %w", &lock.FencedError{}), 2},
	} {
		failed("load", c.err)
		if got := r.value("kazahana_placement_store_errors_total", "load"); got != c.want {
			t.Errorf("after %v: %v, want %v", c.err, got, c.want)
		}
	}
	if told != 4 {
		t.Errorf("%d of 4 were passed on", told)
	}
}

// The view has bounds, with any events.
func TestPlacementStatusIsBounded(t *testing.T) {
	r := newSite(t).start("z:1")
	r.stopPlace()
	for i := range 3 * maxLately {
		r.placement.observe(placement.Event{
			Kind: placement.Passivated, Key: placement.Key{Kind: "room", Identity: fmt.Sprint(i)}, Reason: strings.Repeat("é", maxReasonBytes),
		})
		r.placement.observe(placement.Event{Kind: placement.Resolved})
	}
	members := []placement.Host{{Member: placement.Member{Authority: "z:1", Token: 1}}}
	for i := range 1000 {
		members = append(members, placement.Host{Member: placement.Member{Authority: fmt.Sprintf("a%04d:1", i), Token: 1}})
	}
	got := shownMembers(placement.Snapshot{Authority: "z:1", Members: placement.NewTopology(members, placement.Rendezvous).Hosts()})
	if len(got) != maxShown+1 || got[maxShown].Authority != "z:1" {
		t.Errorf("%d members, the last is %+v", len(got), got[len(got)-1])
	}
	st := r.placement.Status()
	if len(st.Lately) != maxLately || st.Lately[0].Identity != fmt.Sprint(3*maxLately-1) || st.Lately[maxLately-1].Identity != fmt.Sprint(2*maxLately) {
		t.Errorf("%d events", len(st.Lately))
	}
	if reason := st.Lately[0].Reason; len(reason) > maxReasonBytes+len("…") || strings.ContainsRune(reason, '\uFFFD') {
		t.Errorf("a reason of %d bytes", len(reason))
	}
	if (*Placement)(nil).Status() != nil {
		t.Error("without placement there is something to show")
	}
}
