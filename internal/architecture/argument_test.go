package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quoted     = regexp.MustCompile("`([^`]+)`")
	stepName   = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	definition = regexp.MustCompile(`(?m)^([A-Z][A-Za-z]+)(\([^)]*\))? ==`)
	invariants = regexp.MustCompile(`(?m)^([A-Z][A-Za-z]+) ==`)
	numbered   = regexp.MustCompile(`(?m)^ *\d+\. `)
)

// argument is the part of docs/uniqueness.md that goes by the names of the specification.
type argument struct {
	text, steps string              // the rules and the argument; the argument alone
	holds       map[string]bool     // the table of what holds in every state
	code        map[string][]string // the table of steps: package: function
	befall      map[string]bool     // what no code does
}

func readArgument(t *testing.T) argument {
	t.Helper()
	page := readDoc(t, "uniqueness.md")
	between := func(from, to string) string {
		t.Helper()
		_, rest, found := strings.Cut(page, from)
		text, _, ends := strings.Cut(rest, to)
		if !found || !ends {
			t.Fatalf("the page has no part from %q to %q", from, to)
		}
		return text
	}
	a := argument{
		text: between("\n## Three rules\n", "\n### A store that may forget\n"), steps: between("\n## The argument\n", "\nNo step needs"),
		holds: map[string]bool{}, code: map[string][]string{}, befall: map[string]bool{},
	}
	for line := range strings.Lines(between("\n## Where each step lives\n", "\n## What each rule prevents\n")) {
		cells := strings.Split(line, " | ")
		row := len(cells) == 3 && strings.HasPrefix(line, "| `")
		switch {
		case row && !strings.Contains(cells[2], "`internal/"):
			a.holds[names(cells[0])[0]] = true
		case row:
			a.code[names(cells[0])[0]] = quotedIn(cells[2])
		case strings.HasPrefix(line, "`"):
			for _, name := range names(line) {
				a.befall[name] = true
			}
		}
	}
	return a
}

func readDoc(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func quotedIn(text string) (all []string) {
	for _, found := range quoted.FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

// names are those in the text that can be the specification's. Single letters stand for
// grants and times.
func names(text string) []string {
	return slices.DeleteFunc(quotedIn(text), func(name string) bool { return !stepName.MatchString(name) })
}

// TestArgumentNamesItsSteps: each step of the argument in docs/uniqueness.md has a name, which
// the specification defines and a table leads to its code; and the page has each invariant.
func TestArgumentNamesItsSteps(t *testing.T) {
	a, specification := readArgument(t), readDoc(t, "model/Pool.tla")
	defined := map[string]bool{}
	for _, found := range definition.FindAllStringSubmatch(specification, -1) {
		defined[found[1]] = true
	}
	for _, name := range slices.Concat(names(a.text), slices.Collect(maps.Keys(a.holds)), slices.Collect(maps.Keys(a.code)), slices.Collect(maps.Keys(a.befall))) {
		if !defined[name] {
			t.Errorf("the page names %s, which docs/model/Pool.tla does not define", name)
		}
		if !a.holds[name] && a.code[name] == nil && !a.befall[name] {
			t.Errorf("the argument names %s, and no table has it", name)
		}
	}
	starts := numbered.FindAllStringIndex(a.steps, -1)
	for i, at := range starts {
		end := len(a.steps)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		if step := a.steps[at[0]:end]; len(names(step)) == 0 && !strings.HasSuffix(strings.TrimSpace(step), "was released, and `C` for `created` of `H`.") {
			t.Errorf("this step of the argument has no name:\n%s", step)
		}
	}
	if len(starts) < 9 {
		t.Errorf("the argument has %d steps", len(starts))
	}
	_, promises, _ := strings.Cut(specification, "What must hold in every state.")
	for _, found := range invariants.FindAllStringSubmatch(promises, -1) {
		if !a.holds[found[1]] {
			t.Errorf("%s holds in every state of the specification, and the page's table lacks it", found[1])
		}
	}
}

// TestArgumentNamesItsCode: the functions that the table of steps names exist.
func TestArgumentNamesItsCode(t *testing.T) {
	for step, references := range readArgument(t).code {
		var folder string
		functions := map[string]map[string]bool{}
		for _, r := range references {
			if strings.HasSuffix(r, ".lua") {
				if _, err := os.Stat(filepath.Join("../provider/redis/lua", r)); err != nil {
					t.Errorf("%s: %v", step, err)
				}
				continue
			}
			name := r
			if before, after, found := strings.Cut(r, ": "); found {
				folder, name = before, after
			}
			if functions[folder] == nil {
				functions[folder] = functionsOf(t, filepath.Join("../..", folder))
			}
			if !functions[folder][name] && !functions[folder]["."+name] {
				t.Errorf("%s: %s has no function %s", step, folder, name)
			}
		}
	}
}

// functionsOf are the functions of a package, with their receivers' types.
func functionsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				all[receiver(f)+"."+f.Name.Name] = true
			}
		}
	}
	return all
}

// receiver is the name of the type whose method it is, "" for none.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}
