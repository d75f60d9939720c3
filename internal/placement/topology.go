package placement

import (
	"cmp"
	"slices"
	"strings"
)

// Host is a member, and the kinds that it announces: the kinds that a process of it has
// registered for.
type Host struct {
	Member
	Kinds []string // sorted
}

// Topology is a set of hosts. The authority of a key is one of the hosts that serve its kind, by
// a Strategy: a host without processes owns nothing.
type Topology struct {
	hosts  []Host // by name
	choose map[string]func(Key) string
}

// NewTopology makes the set. Of hosts of one name the latest, by its token, counts.
func NewTopology(hosts []Host, among Strategy) *Topology {
	t := &Topology{hosts: latest(hosts), choose: map[string]func(Key) string{}}
	serving := map[string][]string{}
	for _, h := range t.hosts {
		for _, kind := range h.Kinds {
			serving[kind] = append(serving[kind], h.Authority)
		}
	}
	for kind, names := range serving {
		t.choose[kind] = among(names)
	}
	return t
}

// latest are the hosts by name, each once.
func latest(hosts []Host) []Host {
	sorted := slices.SortedFunc(slices.Values(hosts), func(a, b Host) int {
		return cmp.Or(strings.Compare(a.Authority, b.Authority), cmp.Compare(b.Token, a.Token))
	})
	return slices.CompactFunc(sorted, func(a, b Host) bool { return a.Authority == b.Authority })
}

// Hosts are in the order of their names. Callers do not change them.
func (t *Topology) Hosts() []Host { return t.hosts }

// Has reports whether the set contains the member.
func (t *Topology) Has(m Member) bool {
	at, there := slices.BinarySearchFunc(t.hosts, m.Authority, func(h Host, name string) int { return strings.Compare(h.Authority, name) })
	return there && t.hosts[at].Token == m.Token
}

// Authority returns the key's, "" where no host serves its kind.
func (t *Topology) Authority(k Key) string {
	if choose := t.choose[k.Kind]; choose != nil {
		return choose(k)
	}
	return ""
}
