//go:build go1.25

package kazahana

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every exported name has its documentation.
func TestExportedNamesAreDocumented(t *testing.T) {
	for _, dir := range []string{".", "kazahanatest"} {
		files := token.NewFileSet()
		var parsed []*ast.File
		err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || path != "." && d.IsDir() {
				return fs.SkipDir
			}
			if filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") {
				file, err := parser.ParseFile(files, filepath.Join(dir, path), nil, parser.ParseComments)
				if err != nil {
					return err
				}
				parsed = append(parsed, file)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := doc.NewFromFiles(files, parsed, dir)
		if err != nil {
			t.Fatal(err)
		}
		names := 0
		want := func(name, text string) {
			if names++; strings.TrimSpace(text) == "" {
				t.Errorf("%s: %s has no documentation", dir, name)
			}
		}
		want("the package", p.Doc)
		values := func(all []*doc.Value) {
			for _, v := range all {
				want(strings.Join(v.Names, ", "), v.Doc+specDocs(v.Decl))
			}
		}
		functions := func(of string, all []*doc.Func) {
			for _, f := range all {
				// What these do is said by the interfaces that they are for.
				if f.Name != "Error" && f.Name != "Unwrap" {
					want(of+f.Name, f.Doc)
				}
			}
		}
		values(append(p.Consts, p.Vars...))
		functions("", p.Funcs)
		for _, typ := range p.Types {
			want(typ.Name, typ.Doc)
			values(append(typ.Consts, typ.Vars...))
			functions("", typ.Funcs)
			functions(typ.Name+".", typ.Methods)
		}
		if names < 10 {
			t.Errorf("%s: only %d names found", dir, names)
		}
	}
}

// specDocs are the comments of a group's exported members, or nothing if one of
// them has none.
func specDocs(group *ast.GenDecl) (text string) {
	for _, spec := range group.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok || !v.Names[0].IsExported() {
			continue
		}
		if v.Doc.Text()+v.Comment.Text() == "" {
			return ""
		}
		text += v.Doc.Text() + v.Comment.Text()
	}
	return text
}
