package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// What shells offer for a flag (its tag values) is what its key takes.
func TestOfferedValues(t *testing.T) {
	for _, c := range []struct {
		flags any
		keys  []key
	}{{Flags{}, keys}, {LeaseServerFlags{}, leaseServerKeys}} {
		offered := map[string]string{}
		for field := range fieldsOf(c.flags) {
			if words := field.Tag.Get("values"); words != "" {
				offered[strings.ReplaceAll(field.Tag.Get("name"), "-", "_")] = strings.ReplaceAll(words, ",", ", ")
			}
		}
		taken := map[string]string{}
		for _, k := range c.keys {
			into := target{structs: []any{&Serve{}, &Service{}, &LeaseServer{}}, serve: &Serve{}, server: &LeaseServer{}, now: time.Now()}
			err := k.set(into, value{key: k.name, name: k.name, where: "a test", text: "xyzzy"})
			if err == nil {
				continue
			}
			if _, words, found := strings.Cut(err.Error(), "is none of "); found {
				taken[k.name] = words
			}
		}
		if !maps.Equal(offered, taken) || len(taken) < 2 {
			t.Errorf("%T: the tags offer %v\nand the keys take %v", c.flags, offered, taken)
		}
	}
}

func fieldsOf(s any) func(func(reflect.StructField) bool) {
	return slices.Values(reflect.VisibleFields(reflect.TypeOf(s)))
}
