package chaos

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/test/trace"
)

// leaseLine is what a daemon's log tells of a lease.
type leaseLine struct {
	Msg              string
	WorkerID         *int64 `json:"worker_id"`
	Layout           string
	Created, Expired time.Time
}

// leaseName tells the grants of a pool with one layout apart.
type leaseName struct{ id, created int64 }

// leasesOf reads the grants of one host from the logs of its daemon's lives, the last one of
// which has ended by itself. A daemon that is killed may have sent a release that it tells
// nothing of: the next life then does not adopt the lease.
func leasesOf(host string, lives []string, quarantine time.Duration) ([]trace.Grant, error) {
	grants := map[leaseName]*trace.Grant{}
	for i, log := range lives {
		used := map[leaseName]bool{} // in this life
		for line := range strings.Lines(log) {
			var l leaseLine
			if !strings.HasSuffix(line, "\n") || !strings.Contains(line, `"worker_id":`) {
				continue
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				return nil, err
			}
			name := leaseName{*l.WorkerID, l.Created.UnixMilli()}
			switch l.Msg {
			case "worker id allocated", "lease adopted from an earlier run":
				used[name] = true
				if grants[name] == nil {
					grants[name] = &trace.Grant{
						By: []string{host}, Slot: snowflake.DefaultLayout().Slot(name.id), Created: name.created,
						Expired: l.Expired.UnixMilli(), ReservedUntil: l.Expired.Add(quarantine).UnixMilli(),
					}
				}
			case "worker id released", "lease not released; it runs out by itself":
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
	return all, nil
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
	t := trace.Trace{UntilMS: math.MaxInt64}
	for _, h := range c.hosts {
		h.daemon.AwaitEnd()
		lives := []string{}
		for _, log := range append(h.earlier, h.daemon.Log) {
			lives = append(lives, log.String())
		}
		grants, err := leasesOf(h.Host, lives, c.term)
		if err != nil {
			c.T.Fatal(err)
		}
		t.Grants, t.Emits = append(t.Grants, grants...), append(t.Emits, emitsOf(h.stream)...)
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
	lives := []string{
		line("worker id allocated", "1", 0, 100) + line("worker id allocated", "1", 0, 100) + line("worker id released", "1", 0, 100) +
			line("worker id allocated", "2", 90, 190) + line("worker id allocated", "3", 95, 195) + `{"level":"info","msg":"cut short","worker_id":`,
		line("lease adopted from an earlier run", "2", 90, 190) + line("worker id allocated", "1", 180, 280),
	}
	grants, err := leasesOf("h", lives, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	left := map[int64]bool{}
	for _, g := range grants {
		left[g.Created-1_800_000_000_000] = g.Left
		if g.ReservedUntil != g.Expired+50 || g.Expired != g.Created+100 {
			t.Errorf("%+v", g)
		}
	}
	if want := map[int64]bool{0: true, 90: false, 95: true, 180: false}; !maps.Equal(left, want) {
		t.Errorf("by their beginnings, these may have been released: %v, want %v", left, want)
	}
}
