package config

import (
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/keyname"
)

// Sequence says how the keys with a prefix count. Unset fields are zero: package
// sequence knows the defaults, and which settings go together.
type Sequence struct {
	Prefix   string
	Step     int64
	Start    int64
	StartSet bool
	MaxValue int64
	OnMax    string
	TTL      time.Duration
	Block    int
}

const (
	maxSequences      = 1000
	maxSequencePrefix = 512     // bytes, as of a key
	maxSequenceBlock  = 1 << 16 // values of one call
)

// setSequences reads sequences.
func setSequences(into target, v value) error {
	var all []Sequence
	err := v.eachEntry("prefixes of keys", func(entry value) error {
		if err := keyname.Check(entry.name, maxSequencePrefix); entry.name != "" && err != nil {
			return entry.errorf("%s is not the beginning of a key: it %v", quote(entry.name), err)
		}
		return nil
	}, func(entry value) error {
		s := Sequence{Prefix: entry.name}
		err := setAll("serve", sequenceKeys, entry.members, target{structs: []any{&s}})
		all = append(all, s)
		return err
	})
	if err != nil {
		return err
	}
	if len(all) > maxSequences {
		return v.errorf("it has %d entries: the most is %d", len(all), maxSequences)
	}
	// The longest prefix first: the first match counts.
	slices.SortFunc(all, func(a, b Sequence) int { return len(b.Prefix) - len(a.Prefix) })
	into.put(v.name, all)
	return nil
}
