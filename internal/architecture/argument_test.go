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

	"github.com/kazahana/kazahana/internal/testkit/must"
)

var (
	quoted     = regexp.MustCompile("`([^`]+)`")
	stepName   = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	definition = regexp.MustCompile(`(?m)^([A-Z][A-Za-z]+)(\([^)]*\))? ==`)
	invariants = regexp.MustCompile(`(?m)^([A-Z][A-Za-z]+) ==`)
	item       = regexp.MustCompile(`(?m)^ *(\d+\.|-) `)
)

// argument is the part of docs/uniqueness.md that goes by the names of the specification.
type argument struct {
	text   string              // the rules, the argument, and the part about leases and stores
	holds  map[string][]string // the table of invariants of every state: their reasons
	code   map[string][]string // the table of steps: package: function
	befall map[string]bool     // what no code does
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
		text:  between("\n## Three rules\n", "\n## Where each step lives\n"),
		holds: map[string][]string{}, code: map[string][]string{}, befall: map[string]bool{},
	}
	for line := range strings.Lines(between("\n## Where each step lives\n", "\n## What each rule prevents\n")) {
		cells := strings.Split(line, " | ")
		row := len(cells) == 3 && strings.HasPrefix(line, "| `")
		switch {
		case row && !strings.Contains(cells[2], "`internal/"):
			a.holds[names(cells[0])[0]] = names(cells[2])
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

// readFile reads a file of the repository, and readDoc one of its pages.
func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	must.Succeed(t, err)
	return string(text)
}

func readDoc(t *testing.T, page string) string {
	t.Helper()
	return readFile(t, "docs/"+page)
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

// paragraphs are those of a text: its items too, each for itself, but no headings and no tables.
func paragraphs(text string) (all []string) {
	for block := range strings.SplitSeq(text, "\n\n") {
		block = strings.Trim(block, "\n")
		if strings.HasPrefix(block, "#") {
			_, block, _ = strings.Cut(block, "\n")
		}
		from := 0
		for _, at := range item.FindAllStringIndex(block, -1) {
			all = append(all, block[from:at[0]])
			from = at[0]
		}
		all = append(all, block[from:])
	}
	return slices.DeleteFunc(all, func(p string) bool { return strings.TrimSpace(p) == "" || strings.HasPrefix(p, "|") })
}

// definedIn are the names that a specification defines.
func definedIn(specification string) map[string]bool {
	defined := map[string]bool{}
	for _, found := range definition.FindAllStringSubmatch(specification, -1) {
		defined[found[1]] = true
	}
	return defined
}

// TestArgumentNamesItsSteps: each paragraph of the argument in docs/uniqueness.md has a name, which
// the specification defines and a table leads to its code; and the page has each invariant.
func TestArgumentNamesItsSteps(t *testing.T) {
	a, specification := readArgument(t), readDoc(t, "model/Pool.tla")
	defined := definedIn(specification)
	for _, name := range slices.Concat(names(a.text), slices.Collect(maps.Keys(a.holds)), slices.Collect(maps.Keys(a.code)), slices.Collect(maps.Keys(a.befall))) {
		if !defined[name] {
			t.Errorf("the page names %s, which docs/model/Pool.tla does not define", name)
		}
		if a.holds[name] == nil && a.code[name] == nil && !a.befall[name] {
			t.Errorf("the argument names %s, and no table has it", name)
		}
	}
	all := paragraphs(a.text)
	for _, p := range all {
		if !slices.ContainsFunc(names(p), a.leadsToCode) {
			t.Errorf("this paragraph of the argument names nothing that leads to code:\n%s", p)
		}
	}
	if len(all) < 35 {
		t.Errorf("the argument has %d paragraphs", len(all))
	}
	_, promises, _ := strings.Cut(specification, "What must hold in every state.")
	for _, found := range invariants.FindAllStringSubmatch(promises, -1) {
		if !a.leadsToCode(found[1]) {
			t.Errorf("%s holds in every state of the specification, and the page's table does not lead to its code", found[1])
		}
	}
}

// leadsToCode reports whether the table of steps has the name, or one of its reasons.
func (a argument) leadsToCode(name string) bool {
	return a.code[name] != nil || slices.ContainsFunc(a.holds[name], func(step string) bool { return a.code[step] != nil })
}

// TestArgumentNamesItsCode: the functions that the table of steps names exist.
func TestArgumentNamesItsCode(t *testing.T) {
	for step, references := range readArgument(t).code {
		mustExist(t, step, references)
	}
}

// mustExist sees that there are the functions, named by package: function, and scripts of Redis.
func mustExist(t *testing.T, step string, references []string) {
	t.Helper()
	folder, functions := "", map[string]map[string]bool{}
	for _, r := range references {
		if strings.HasSuffix(r, ".lua") {
			if _, err := os.Stat(filepath.Join("../record/redis/lua", r)); err != nil {
				t.Errorf("%s: %v", step, err)
			}
			continue
		}
		name := r
		if before, after, found := strings.Cut(r, ": "); found {
			folder, name = before, after
		}
		if functions[folder] == nil {
			functions[folder] = functionsOf(t, filepath.Join(root, folder))
		}
		if !functions[folder][name] && !functions[folder]["."+name] {
			t.Errorf("%s: %s has no function %s", step, folder, name)
		}
	}
}

// TestOtherPromisesNameTheirCode: the pages of locks and of placement have a table of what holds
// in every state of their specification, with the steps that it rests on and their code.
func TestOtherPromisesNameTheirCode(t *testing.T) {
	for page, module := range map[string]string{"locks.md": "Locks", "placement.md": "Placement"} {
		specification := readDoc(t, "model/"+module+".tla")
		defined, rows := definedIn(specification), map[string]bool{}
		for line := range strings.Lines(readDoc(t, page)) {
			cells := strings.Split(line, " | ")
			if len(cells) != 3 || !strings.HasPrefix(line, "| `") || len(names(cells[0])) != 1 || !defined[names(cells[0])[0]] {
				continue
			}
			name := names(cells[0])[0]
			rows[name] = true
			for _, step := range names(cells[1]) {
				if !defined[step] {
					t.Errorf("%s: %s rests on %s, which docs/model/%s.tla does not define", page, name, step, module)
				}
			}
			if len(names(cells[1])) < 3 || len(quotedIn(cells[2])) < 3 {
				t.Errorf("%s: %s rests on the steps %q, and on the code %q", page, name, names(cells[1]), quotedIn(cells[2]))
			}
			mustExist(t, page+": "+name, quotedIn(cells[2]))
		}
		_, promises, _ := strings.Cut(specification, "\nSpec ==")
		found := invariants.FindAllStringSubmatch(promises, -1)
		for _, f := range found {
			if !rows[f[1]] {
				t.Errorf("%s has no row for %s, which holds in every state of docs/model/%s.tla", page, f[1], module)
			}
		}
		if len(found) < 2 {
			t.Errorf("docs/model/%s.tla has %d invariants", module, len(found))
		}
	}
}

// functionsOf are the functions of a package, with their receivers' types.
func functionsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	must.Succeed(t, err)
	all := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		must.Succeed(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				all[receiver(f)+"."+f.Name.Name] = true
			}
		}
	}
	return all
}

// receiver is the name of the type that has the method, "" for none.
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
