package metrics

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// shown are type and labels of what a registry shows, by name.
func shown(t *testing.T, r *prometheus.Registry) map[string]string {
	t.Helper()
	families, err := r.Gather()
	must.Succeed(t, err)
	all := map[string]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		all[f.GetName()] = strings.ToLower(f.GetType().String()) + " " + strings.Join(labels, ",")
	}
	return all
}

// documented are those of the tables of a page.
func documented(t *testing.T, page string) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/" + page)
	must.Succeed(t, err)
	row := regexp.MustCompile("(?m)^\\| (`kazahana_[^|]*`) \\| (counter|gauge|histogram) \\|")
	metric := regexp.MustCompile("`(kazahana_[a-z_]+)(?:\\{([a-z_,]+)\\})?`")
	all := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		for _, one := range metric.FindAllStringSubmatch(m[1], -1) {
			labels := strings.Split(one[2], ",")
			slices.Sort(labels)
			all[one[1]] = m[2] + " " + strings.Join(labels, ",")
		}
	}
	return all
}

// everything returns the registries of a daemon and of a lease server after all that makes a
// metric appear.
func everything() (daemon, leaseServer *prometheus.Registry) {
	m, server := New(Build{}), NewLeaseServer(Build{})
	s := m.Service("default")
	s.Called("acquire", time.Millisecond)
	s.Skew(0)
	m.Requests("NextID", "ok")
	m.Watch(func() []Sample { return []Sample{{Service: "default"}} })
	m.WatchLog(func() uint64 { return 0 })
	server.WatchLog(func() uint64 { return 0 })
	m.Configuration(func() bool { return true })
	server.Configuration(func() bool { return true })
	m.WatchMemory(func() Memory { return Memory{} })
	m.KeyedStores(func() int { return 0 })
	m.Fences(func() []Fence { return []Fence{{File: "x"}} })
	unread := func(string) (begin, end time.Time) { return begin, end }
	m.Certificates([]string{"x"}, unread)
	server.Certificates([]string{"x"}, unread)
	server.Fences(func() []Fence { return []Fence{{File: "x"}} })
	p := NewPlacement()
	p.Seen([]string{"room"})
	m.Placement(p, func() PlacementSample { return PlacementSample{} })
	server.WatchMemory(func() Memory { return Memory{} })
	server.Service("default")
	server.KeyedStores()
	server.Answered("/lease", "200", time.Millisecond)
	server.Called("acquire", time.Millisecond)
	one := map[string]int64{"default": 1}
	server.Watch(func() PoolSample { return PoolSample{Active: one, Slots: one, Free: one} })
	return m.Registry, server.Registry
}

// Each page lists what its process shows, with type and labels.
func TestDocsListWhatIsShown(t *testing.T) {
	daemon, leaseServer := everything()
	for page, registry := range map[string]*prometheus.Registry{"operations.md": daemon, "lease-server.md": leaseServer} {
		listed := documented(t, page)
		for name, want := range shown(t, registry) {
			if got := listed[name]; strings.HasPrefix(name, "kazahana_") && got != want {
				t.Errorf("docs/%s has %s as %q, and it is %q", page, name, got, want)
			}
		}
	}
}
