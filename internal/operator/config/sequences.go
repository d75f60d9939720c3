package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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

// sequenceKeys are the keys of an entry of sequences. init fills it, because a
// setter looks keys up in it.
var sequenceKeys []key

func init() {
	sequenceKeys = []key{
		{name: "step", set: one(func(t target) *int64 { return &t.sequence.Step }, number64(1))},
		{name: "start", set: func(into target, v value) error {
			into.sequence.StartSet = true
			return one(func(t target) *int64 { return &t.sequence.Start }, number64(0))(into, v)
		}},
		{name: "max_value", set: one(func(t target) *int64 { return &t.sequence.MaxValue }, number64(0))},
		{name: "on_max", set: one(func(t target) *string { return &t.sequence.OnMax }, oneOf("reset", "error"))},
		{name: "ttl", set: one(func(t target) *time.Duration { return &t.sequence.TTL }, wholeMilliseconds(0))},
		{name: "block", set: one(func(t target) *int { return &t.sequence.Block }, wholeNumber(0, maxSequenceBlock))},
	}
}

func number64(lowest int64) func(string) (int64, error) {
	return func(text string) (int64, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < lowest {
			return 0, fmt.Errorf("is not a whole number from %d to %d", lowest, int64(math.MaxInt64))
		}
		return n, nil
	}
}

// parseStore accepts a URL, or none.
func parseStore(text string) (string, error) {
	if text == none || text == none+":" {
		return none, nil
	}
	if !schemeStart.MatchString(text) {
		return "", errors.New("is not the URL of a store, for example sqlite:PATH or redis://HOST:6379/0, nor none")
	}
	return text, nil
}

// setSequences reads sequences.
func setSequences(field func(target) *[]Sequence) func(target, value) error {
	return func(into target, v value) error {
		members, err := v.entries("prefixes of keys")
		if err != nil {
			return err
		}
		var all []Sequence
		for _, entry := range members {
			if len(entry.name) > maxSequencePrefix || !utf8.ValidString(entry.name) || strings.ContainsFunc(entry.name, unicode.IsControl) {
				return entry.errorf("%s is not the beginning of a key: write at most %d bytes of UTF-8 without control characters", quote(entry.name), maxSequencePrefix)
			}
			if entry.kind != mapping {
				return entry.errorf("it is a %v, and must be a map of keys; {} changes nothing", entry.kind)
			}
			s := Sequence{Prefix: entry.name}
			for _, setting := range entry.members {
				k, known := findIn(sequenceKeys, setting.name)
				if !known {
					return unknownIn("serve", sequenceKeys, setting)
				}
				if err := k.set(target{sequence: &s, now: into.now}, setting); err != nil {
					return err
				}
			}
			all = append(all, s)
		}
		if len(all) > maxSequences {
			return v.errorf("it has %d entries: the most is %d", len(all), maxSequences)
		}
		// The longest prefix first: the first match counts.
		slices.SortFunc(all, func(a, b Sequence) int { return len(b.Prefix) - len(a.Prefix) })
		*field(into) = all
		return nil
	}
}
