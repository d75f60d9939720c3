// Command sample writes the commented configurations of the packages from the structs of
// package config: the help of each key, and its default or an example.
//
//	go run ./packaging/sample
package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/operator/config"
)

// samples are the files, and the structs that they show.
var samples = map[string]reflect.Type{
	"kazahanad.yaml": reflect.TypeFor[config.Serve](), "lease-server.yaml": reflect.TypeFor[config.LeaseServer](),
}

func main() {
	for file, keys := range samples {
		text, err := sample("packaging/sample", file, keys)
		if err == nil {
			err = os.WriteFile(filepath.Join("packaging", file), []byte(text), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// sample is the text of a configuration: its introduction, which is a file of its own, and
// the keys of a struct.
func sample(own, file string, keys reflect.Type) (string, error) {
	head, err := os.ReadFile(filepath.Join(own, file+".head"))
	if err != nil {
		return "", err
	}
	w := &writer{words: keysForFlags()}
	w.text.Write(head)
	w.keys(keys, "")
	return w.text.String(), nil
}

// keysForFlags replaces the names of flags by those of keys.
func keysForFlags() *strings.Replacer {
	var flags []string
	for _, keys := range samples {
		for _, field := range reflect.VisibleFields(keys) {
			flags = append(flags, field.Tag.Get("name"))
		}
	}
	slices.SortFunc(flags, func(a, b string) int { return len(b) - len(a) }) // of two that match, the longer one
	var pairs []string
	for _, flag := range flags {
		if key := strings.ReplaceAll(flag, "-", "_"); key != flag {
			pairs = append(pairs, "--"+flag, key, flag, key)
		}
	}
	return strings.NewReplacer(pairs...)
}

// writer writes keys under the headings of their groups.
type writer struct {
	text  strings.Builder
	group string
	words *strings.Replacer
}

// keys writes the keys of a struct; fields without a group have the struct's.
func (w *writer) keys(of reflect.Type, group string) {
	for i := range of.NumField() {
		field := of.Field(i)
		own := cmp.Or(field.Tag.Get("group"), group)
		if field.Anonymous && field.Type.Kind() == reflect.Struct {
			w.keys(field.Type, own)
		} else if name := field.Tag.Get("name"); name != "" && own != "" {
			w.heading(own)
			w.key(strings.ReplaceAll(name, "-", "_"), field.Tag)
		}
	}
}

// width is the width of a line.
const width = 78

func (w *writer) heading(group string) {
	if w.group == group {
		return
	}
	w.group = group
	line := "# ---- " + group + " "
	fmt.Fprintf(&w.text, "\n\n%s%s\n", line, strings.Repeat("-", width-len(line)))
}

// key writes the help of a key, and a line that sets it.
func (w *writer) key(key string, tag reflect.StructTag) {
	w.text.WriteString("\n#")
	column := 1
	for word := range strings.FieldsSeq(w.words.Replace(tag.Get("help"))) {
		if column+1+len(word) > width {
			w.text.WriteString("\n#")
			column = 1
		}
		w.text.WriteString(" " + word)
		column += 1 + len(word)
	}
	value, hasDefault := tag.Lookup("default")
	if !hasDefault {
		value = tag.Get("example")
	}
	mark := "#"
	if installed := tag.Get("installed"); installed != "" {
		value, mark = installed, ""
	}
	line := key + ": " + value
	if strings.HasPrefix(value, "\n") {
		line = key + ":" + value
	}
	w.text.WriteString("\n" + mark + strings.ReplaceAll(line, "\n", "\n"+mark) + "\n")
}
