// Command sample writes the commented configurations of the packages from the structs of
// package config: the comment of each field, and its default or an example.
//
//	go run ./packaging/sample
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// samples are the files, and the structs that they show.
var samples = map[string]string{"kazahanad.yaml": "Serve", "lease-server.yaml": "LeaseServer"}

func main() {
	for file, name := range samples {
		text, err := sample("internal/operator/config", "packaging/sample", file, name)
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
func sample(source, own, file, name string) (string, error) {
	head, err := os.ReadFile(filepath.Join(own, file+".head"))
	if err != nil {
		return "", err
	}
	structs, err := structsIn(source)
	if err != nil {
		return "", err
	}
	w := &writer{structs: structs}
	w.text.Write(head)
	w.keys(structs[name], "")
	return w.text.String(), nil
}

// structsIn are the structs that a package declares, by name.
func structsIn(dir string) (map[string]*ast.StructType, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	all := map[string]*ast.StructType{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if t, ok := n.(*ast.TypeSpec); ok {
				if s, ok := t.Type.(*ast.StructType); ok {
					all[t.Name.Name] = s
				}
			}
			return true
		})
	}
	return all, nil
}

// writer writes keys under the headings of their groups.
type writer struct {
	structs map[string]*ast.StructType
	text    strings.Builder
	group   string
}

// keys writes the keys of a struct; fields without a group have the struct's.
func (w *writer) keys(of *ast.StructType, group string) {
	for _, field := range of.Fields.List {
		tag := reflect.StructTag("")
		if field.Tag != nil {
			text, _ := strconv.Unquote(field.Tag.Value)
			tag = reflect.StructTag(text)
		}
		own := tag.Get("group")
		if own == "" {
			own = group
		}
		if name, is := field.Type.(*ast.Ident); is && len(field.Names) == 0 && w.structs[name.Name] != nil {
			w.keys(w.structs[name.Name], own)
		} else if key := tag.Get("name"); key != "" && own != "" {
			w.heading(own)
			w.key(strings.ReplaceAll(key, "-", "_"), field.Doc.Text(), tag)
		}
	}
}

// width is the width of a heading.
const width = 78

func (w *writer) heading(group string) {
	if w.group == group {
		return
	}
	w.group = group
	line := "# ---- " + group + " "
	fmt.Fprintf(&w.text, "\n\n%s%s\n", line, strings.Repeat("-", width-len(line)))
}

// key writes the comment of a key, and a line that sets it. A key without a comment shares the
// comment of the key before.
func (w *writer) key(key, doc string, tag reflect.StructTag) {
	if doc != "" {
		w.text.WriteString("\n")
		for line := range strings.Lines(doc) {
			w.text.WriteString("# " + line)
		}
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
	for part := range strings.SplitSeq(line, "\n") {
		w.text.WriteString(mark + part + "\n")
	}
}
