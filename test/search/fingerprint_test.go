package search

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"strings"
)

// fingerprint stands for a state. It has 128 bits: two states that share one by chance
// are not to be expected.
type fingerprint [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// sum takes values in. It looks at unexported fields too, through pointers, and at maps
// without regard to their order.
type sum struct {
	buf []byte
	// skip says what has no influence on the future: fields as "package.Type.field".
	skip map[string]bool
	// field stands in for what a field holds, where it returns true.
	field func(name string, v reflect.Value, s *sum) bool
}

// fieldSet is the set of the names in the texts, for skip.
func fieldSet(texts ...string) map[string]bool {
	set := map[string]bool{}
	for _, name := range strings.Fields(strings.Join(texts, " ")) {
		set[name] = true
	}
	return set
}

func (s *sum) done() (f fingerprint) {
	for i, seed := range seeds {
		f[i] = maphash.Bytes(seed, s.buf)
	}
	return f
}

func (s *sum) add(values ...any) {
	for _, v := range values {
		s.value(reflect.ValueOf(v))
	}
}

func (s *sum) number(n uint64) {
	for ; n >= 0x80; n >>= 7 {
		s.buf = append(s.buf, byte(n)|0x80)
	}
	s.buf = append(s.buf, byte(n))
}

func (s *sum) text(t string) {
	s.number(uint64(len(t)))
	s.buf = append(s.buf, t...)
}

func (s *sum) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Invalid:
		s.number(0)
	case reflect.Bool:
		n := uint64(0)
		if v.Bool() {
			n = 1
		}
		s.number(n)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		s.number(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		s.number(v.Uint())
	case reflect.String:
		s.text(v.String())
	case reflect.Slice, reflect.Array:
		s.number(uint64(v.Len()))
		for i := range v.Len() {
			s.value(v.Index(i))
		}
	case reflect.Map:
		s.entries(v)
	case reflect.Pointer:
		s.number(1)
		if v.IsNil() {
			s.buf[len(s.buf)-1] = 0
			return
		}
		s.value(v.Elem())
	case reflect.Interface:
		if v.IsNil() {
			s.number(0)
			return
		}
		s.text(v.Elem().Type().String())
		s.value(v.Elem())
	case reflect.Struct:
		s.fields(v)
	default:
		panic(fmt.Sprintf("search: a state holds a %v", v.Type()))
	}
}

// entries adds the entries of a map, each by its own fingerprint.
func (s *sum) entries(v reflect.Value) {
	var all fingerprint
	for it := v.MapRange(); it.Next(); {
		entry := sum{skip: s.skip, field: s.field}
		entry.value(it.Key())
		entry.value(it.Value())
		f := entry.done()
		all[0], all[1] = all[0]+f[0], all[1]+f[1]
	}
	s.number(uint64(v.Len()))
	s.number(all[0])
	s.number(all[1])
}

func (s *sum) fields(v reflect.Value) {
	names := fieldsOf(v.Type())
	for i, name := range names {
		if s.skip[name] || s.field != nil && s.field(name, v.Field(i), s) {
			continue
		}
		s.value(v.Field(i))
	}
}

var fieldNames = map[reflect.Type][]string{}

// fieldsOf is the names of a struct's fields, as skip has them.
func fieldsOf(t reflect.Type) []string {
	names, ok := fieldNames[t]
	if !ok {
		for i := range t.NumField() {
			names = append(names, t.String()+"."+t.Field(i).Name)
		}
		fieldNames[t] = names
	}
	return names
}
