package placement

import "github.com/cespare/xxhash/v2"

// Strategy chooses an authority for each key among the hosts that serve its kind, which
// are at least one, in the order of their names. It is a pure function of both: all hosts
// of one store have the same. Where they differ, callers are sent to and fro, and still
// no actor is active twice.
type Strategy func(authorities []string) func(Key) string

// Rendezvous chooses the host with the highest score for the key (highest random weight;
// Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998).
//
//	score(key, authority) = mix(XXH64(kind 0x00 identity) XOR XXH64(authority))
//
// XXH64 has the seed 0; mix is the finalizer of SplitMix64 (Steele, Lea and Flood
// 2014, with Stafford's constants). Of equal scores the smaller name wins.
// testdata/rendezvous.json has vectors. One lookup is linear in the hosts, a few
// nanoseconds for each, because a host's part of the hash is kept.
func Rendezvous(authorities []string) func(Key) string {
	hashes := make([]uint64, len(authorities))
	for i, name := range authorities {
		hashes[i] = xxhash.Sum64String(name)
	}
	return func(k Key) string {
		h, best, top := k.hash(), 0, uint64(0)
		for i, host := range hashes {
			if score := mix(h ^ host); score > top {
				best, top = i, score
			}
		}
		return authorities[best]
	}
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
