package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/test/trace"
)

// leaseLine is what a daemon's log tells of a lease.
type leaseLine struct {
	Msg              string
	WorkerID         *int64 `json:"worker_id"`
	Created, Expired time.Time
}

// leaseName tells the grants of a pool with one layout apart.
type leaseName struct{ id, created int64 }

func (l leaseLine) name() leaseName { return leaseName{*l.WorkerID, l.Created.UnixMilli()} }

const (
	allocated   = "worker id allocated"
	adopted     = "lease adopted from an earlier run"
	released    = "worker id released"
	notReleased = "lease not released; it runs out by itself"
)

// leaseLines are the lines about leases in the logs of lives, each of which may be cut short.
func leaseLines(t *testing.T, logs []string) [][]leaseLine {
	t.Helper()
	lives := make([][]leaseLine, len(logs))
	for i, log := range logs {
		for line := range strings.Lines(log) {
			if !strings.HasSuffix(line, "\n") || !strings.Contains(line, `"worker_id":`) {
				continue
			}
			var l leaseLine
			must.Succeed(t, json.Unmarshal([]byte(line), &l))
			lives[i] = append(lives[i], l)
		}
	}
	return lives
}

// leasesOf reads the grants of one host from the logs of its daemon's lives, the last one of
// which has ended by itself. A daemon that is killed may have sent a release that it tells
// nothing of: the next life then does not adopt the lease.
func leasesOf(host string, lives [][]leaseLine, quarantine time.Duration) []trace.Grant {
	grants := map[leaseName]*trace.Grant{}
	for i, lines := range lives {
		used := map[leaseName]bool{} // in this life
		for _, l := range lines {
			name := l.name()
			switch l.Msg {
			case allocated, adopted:
				used[name] = true
				if grants[name] == nil {
					grants[name] = &trace.Grant{
						By: host, Slot: snowflake.DefaultLayout().Slot(name.id), Created: name.created,
						Expired: l.Expired.UnixMilli(), ReservedUntil: l.Expired.Add(quarantine).UnixMilli(),
					}
				}
			case released, notReleased:
				if g := grants[name]; g != nil {
					g.Left = true
				}
			}
		}
		for name, g := range grants {
			g.Left = g.Left || i > 0 && !used[name]
		}
	}
	all := make([]trace.Grant, 0, len(grants))
	for _, name := range slices.SortedFunc(maps.Keys(grants), func(a, b leaseName) int { return int(a.created - b.created) }) {
		all = append(all, *grants[name])
	}
	return all
}

// livesOf is what the lives of one host did to their leases, as the logs tell, in their order. The
// times of releases are not in the logs, so none is judged here; nor are IDs. A lease for fallback
// is adopted without a line: it was there until the last line about it.
func livesOf(host string, lives [][]leaseLine, quarantine time.Duration) (p trace.Pool) {
	last := map[leaseName]int{}
	for i, lines := range lives {
		for _, l := range lines {
			last[l.name()] = i
		}
	}
	var granted []leaseName
	for i, lines := range lives {
		proc := fmt.Sprint(host, "/", i+1)
		do := func(l leaseLine, steps ...string) {
			for _, step := range steps {
				p.Steps = append(p.Steps, trace.PoolStep{Do: step, Proc: proc, Lease: fmt.Sprint(l.name()), Request: fmt.Sprint(l.name()), MS: l.Created.UnixMilli()})
			}
		}
		start := trace.PoolStep{Do: "Start", Proc: proc, Folder: host, Machine: host}
		for _, name := range granted {
			if last[name] >= i {
				start.Leases = append(start.Leases, fmt.Sprint(name))
			}
		}
		p.Steps = append(p.Steps, start)
		for _, l := range lines {
			switch known := slices.Contains(granted, l.name()); {
			case l.Msg == allocated && !known, l.Msg == adopted && !known:
				granted = append(granted, l.name())
				p.Steps = append(p.Steps, trace.PoolStep{
					Do: "Grant", Lease: fmt.Sprint(l.name()), Request: fmt.Sprint(l.name()), Slot: snowflake.DefaultLayout().Slot(*l.WorkerID),
					Created: l.Created.UnixMilli(), Expired: l.Expired.UnixMilli(), Until: l.Expired.Add(quarantine).UnixMilli(),
				})
				if l.Msg == allocated {
					p.Steps[len(p.Steps)-1].Proc = proc
				}
				do(l, "Receive")
			case !known: // it was refused, and never used
			case l.Msg == released:
				do(l, "Seal", "Forget", "Send", "TakeBack", "Released")
			case l.Msg == notReleased && last[l.name()] > i:
				do(l, "Seal", "Forget", "Send", "Refused")
			case l.Msg == notReleased:
				do(l, "Seal", "Forget", "Send", "Unanswered")
			}
		}
		p.Steps = append(p.Steps, trace.PoolStep{Do: "Kill", Proc: proc})
	}
	return p
}

// emitsOf are the regular IDs of a stream.
func emitsOf(s chaosStream) (all []trace.Emit) {
	for i, a := range s.ids {
		if !testkit.IsFallback(a.id) {
			id := snowflake.ID(a.id)
			all = append(all, trace.Emit{By: s.host, MS: testkit.UnixMS(id), Low: snowflake.DefaultTimeline().Low(id), Order: int64(i)})
		}
	}
	return all
}

// followed ends the daemons, and follows what they did step by step.
func (c *chaos) followed(res *chaosResult) {
	for _, h := range c.hosts {
		h.daemon.Signal(syscall.SIGTERM)
	}
	var t trace.Trace
	for _, h := range c.hosts {
		h.daemon.AwaitEnd()
		logs := []string{}
		for _, log := range append(h.earlier, h.daemon.Log) {
			logs = append(logs, log.String())
		}
		lives := leaseLines(c.T, logs)
		t.Grants, t.Emits = append(t.Grants, leasesOf(h.stream.host, lives, c.term)...), append(t.Emits, emitsOf(h.stream)...)
		p := livesOf(h.stream.host, lives, c.term)
		for _, broken := range p.Check().Broken {
			res.violates(chaosStep, "%s", broken)
		}
		res.steps += len(p.Steps)
	}
	r := t.Check()
	res.followed = r
	for _, broken := range r.Broken {
		res.violates(chaosStep, "%s", broken)
	}
	if r.Grants < len(c.regular()) || r.Emits == 0 {
		res.violates(chaosFault, "the logs tell of %d grants, and %d regular IDs were followed", r.Grants, r.Emits)
	}
}

// TestLeasesOf: the logs of a daemon that was killed tell which of its leases may have been
// released.
func TestLeasesOf(t *testing.T) {
	at := func(ms int64) string { return snowflake.FormatMS(1_800_000_000_000 + ms) }
	line := func(msg string, id string, created, expired int64) string {
		return `{"level":"info","msg":"` + msg + `","worker_id":` + id + `,"layout":"41/14/8","created":"` + at(created) + `","expired":"` + at(expired) + "\"}\n"
	}
	logs := []string{
		line("worker id allocated", "1", 0, 100) + line("worker id allocated", "1", 0, 100) + line("worker id released", "1", 0, 100) +
			line("worker id allocated", "2", 90, 190) + line("worker id allocated", "3", 95, 195) + `{"level":"info","msg":"cut short","worker_id":`,
		line("lease adopted from an earlier run", "2", 90, 190) + line("worker id allocated", "1", 180, 280),
	}
	follow := func(logs ...string) []string {
		return livesOf("h", leaseLines(t, logs), 50*time.Millisecond).Check().Broken
	}
	if broken := follow(logs...); len(broken) > 0 {
		t.Errorf("without fault: %q", broken)
	}
	for name, test := range map[string]struct{ want, life string }{
		"adopts what was released":          {"Adoptable: h/2 adopts {1 1800000000000}", line(adopted, "1", 0, 100)},
		"adopts what nobody was granted":    {"Receive: h/3 takes up {7 1800000000000}", line(adopted, "7", 0, 100)},
		"releases twice":                    {"Seal: h/3 is cut off from {2 1800000000090}", line(adopted, "2", 90, 190) + line(released, "2", 90, 190) + line(released, "2", 90, 190)},
		"adopts what another life released": {"Adoptable: h/4 adopts {2 1800000000090}", line(adopted, "2", 90, 190) + line(released, "2", 90, 190) + "---" + line(adopted, "2", 90, 190)},
		"a grant while another is reserved": {"Free: {2 1800000000200} is granted", line(allocated, "2", 200, 300)},
	} {
		if broken := follow(append(slices.Clone(logs), strings.Split(test.life, "---")...)...); !strings.Contains(strings.Join(broken, "\n"), test.want) {
			t.Errorf("%s: found %q, want %q", name, broken, test.want)
		}
	}
	left := map[int64]bool{}
	for _, g := range leasesOf("h", leaseLines(t, logs), 50*time.Millisecond) {
		left[g.Created-1_800_000_000_000] = g.Left
		if g.ReservedUntil != g.Expired+50 || g.Expired != g.Created+100 {
			t.Errorf("%+v", g)
		}
	}
	if want := map[int64]bool{0: true, 90: false, 95: true, 180: false}; !maps.Equal(left, want) {
		t.Errorf("by their beginnings, these may have been released: %v, want %v", left, want)
	}
}
