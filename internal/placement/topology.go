package placement

import (
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Topology is a set of members, and what each of them is the authority of: the
// one whose score for the key is highest (highest random weight; Thaler and
// Ravishankar, "Using name-based mappings to increase hit rates", 1998).
//
//	score(key, member) = mix(XXH64(kind 0x00 identity) XOR XXH64(authority))
//
// XXH64 has the seed 0; mix is the finalizer of SplitMix64 (Steele, Lea and Flood
// 2014, with Stafford's constants). Of equal scores the smaller name wins.
// testdata/rendezvous.json has vectors. One lookup is linear in the members, a few
// nanoseconds for each, because a member's part of the hash is kept.
type Topology struct {
	members []Member // by name
	hashes  []uint64
}

// NewTopology makes the set. Of members of one name the latest, by its token,
// counts.
func NewTopology(members []Member) *Topology {
	sorted := slices.SortedFunc(slices.Values(members), func(a, b Member) int {
		if c := strings.Compare(a.Authority, b.Authority); c != 0 {
			return c
		}
		return int(min(max(b.Token-a.Token, -1), 1))
	})
	t := &Topology{members: slices.CompactFunc(sorted, func(a, b Member) bool { return a.Authority == b.Authority })}
	for _, m := range t.members {
		t.hashes = append(t.hashes, xxhash.Sum64String(m.Authority))
	}
	return t
}

// Members are in the order of their names. Callers do not change them.
func (t *Topology) Members() []Member { return t.members }

// Has reports whether the set contains the member.
func (t *Topology) Has(m Member) bool {
	at, there := t.find(m.Authority)
	return there && t.members[at].Token == m.Token
}

func (t *Topology) find(authority string) (at int, there bool) {
	return slices.BinarySearchFunc(t.members, authority, func(m Member, name string) int { return strings.Compare(m.Authority, name) })
}

// Authority is the key's, false where there are no members.
func (t *Topology) Authority(k Key) (string, bool) {
	if len(t.members) == 0 {
		return "", false
	}
	h, best, top := k.hash(), 0, uint64(0)
	for i, member := range t.hashes {
		if score := mix(h ^ member); score > top {
			best, top = i, score
		}
	}
	return t.members[best].Authority, true
}

// newcomers are the names that other did not have.
func (t *Topology) newcomers(other *Topology) (names []string) {
	for _, m := range t.members {
		if _, had := other.find(m.Authority); !had {
			names = append(names, m.Authority)
		}
	}
	return names
}

// beats reports whether one authority comes before another for the key.
func beats(h uint64, one, other string) bool {
	a, b := mix(h^xxhash.Sum64String(one)), mix(h^xxhash.Sum64String(other))
	return a > b || a == b && one < other
}

func (k Key) hash() uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(k.Kind)
	_, _ = d.Write([]byte{0})
	_, _ = d.WriteString(k.Identity)
	return d.Sum64()
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
