package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// requirements are the requirements that a page promises, and requirementTables lead from each to
// its code and its tests.
var requirements = map[string][]string{
	// LS-SPEC-001.
	"locks.md": {
		"LS-INV-001", "LS-INV-002", "LS-INV-003", "LS-INV-004",
		"LS-ACQ-001", "LS-ACQ-002", "LS-ACQ-003", "LS-ACQ-004",
		"LS-RNW-001", "LS-RNW-002", "LS-RNW-003",
		"LS-REL-001", "LS-REL-002", "LS-REL-003",
		"LS-CC-001", "LS-EXP-001", "LS-AUTH-001", "LS-FENCE-001",
		"LS-ACC-01", "LS-ACC-02", "LS-ACC-03", "LS-ACC-04",
	},
	// The design of placement: its table of traceability, and its contracts.
	"placement.md": {
		"PL-1.1", "PL-1.2", "PL-1.3", "PL-2.1", "PL-2.2", "PL-3.1", "PL-3.5", "PL-4.1", "PL-4.2", "PL-4.4",
		"PL-C1", "PL-C2", "PL-C3", "PL-C4", "PL-C5", "PL-C6", "PL-C7", "PL-C8", "PL-C9", "PL-C10", "PL-C11",
	},
}

var requirementTables = map[string]string{
	"locks.md": "internal/lock/requirements.txt", "placement.md": "internal/placement/requirements.txt",
}

var (
	rowForm       = regexp.MustCompile(`^\| ([A-Z]+-[A-Z0-9.-]+): [^|]+ \| ([^|]+) \| ([^|]+) \|$`)
	referenceForm = regexp.MustCompile("`([^`: ]+): ([A-Za-z0-9_]+)`")
)

// TestRequirementsTables holds the tables, to which pages of docs lead, to the lists of requirements,
// and to the code and the tests that they name.
func TestRequirementsTables(t *testing.T) {
	for page, wanted := range requirements {
		t.Run(page, func(t *testing.T) { checkRequirements(t, page, wanted) }) // seed 002-4-5
	}
}

func checkRequirements(t *testing.T, page string, wanted []string) {
	family, _, _ := strings.Cut(wanted[0], "-")
	seen := map[string]bool{}
	if !strings.Contains(readDoc(t, page), "(../"+requirementTables[page]+")") {
		t.Errorf("%s does not lead to %s", page, requirementTables[page])
	}
	for line := range strings.Lines(readFile(t, requirementTables[page])) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| "+family+"-") {
			continue
		}
		row := rowForm.FindStringSubmatch(line)
		if row == nil {
			t.Errorf("this row is not `| ID: requirement | code | test |`: %s", line)
			continue
		}
		id := row[1]
		switch {
		case !slices.Contains(wanted, id):
			t.Errorf("%s is no requirement", id)
		case seen[id]:
			t.Errorf("%s has two rows", id)
		}
		seen[id] = true
		checkReferences(t, id, row[2], func(name string) bool { return !isTest(name) })
		checkReferences(t, id, row[3], isTest)
		if !carried(t, id, row[3]) {
			t.Errorf("%s: none of its tests carries its number", id)
		}
	}
	for _, id := range wanted {
		if !seen[id] {
			t.Errorf("%s has no row", id)
		}
	}
}

func isTest(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "test")
}

// checkReferences checks that a cell names functions that exist, and of the right
// kind.
func checkReferences(t *testing.T, id, cell string, kind func(string) bool) {
	t.Helper()
	references := referenceForm.FindAllStringSubmatch(cell, -1)
	if len(references) == 0 || len(references) != strings.Count(cell, ": ") {
		t.Errorf("%s: %q is not a list of `file: function`", id, cell)
	}
	for _, r := range references {
		if !declares(t, r[1], r[2]) {
			t.Errorf("%s: %s has no function %s", id, r[1], r[2])
		}
		if !kind(r[2]) {
			t.Errorf("%s: %s is in the wrong column", id, r[2])
		}
	}
}

func declares(t *testing.T, path, function string) bool {
	t.Helper()
	_, ok := commentsOf(t, path, function)
	return ok
}

// commentsOf returns the comments in the body of a function that stand beside code, at the end of its
// line or above it, and whether the file has the function.
func commentsOf(t *testing.T, path, function string) (text string, declared bool) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, filepath.Join(root, path), nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%v", err)
		return "", false
	}
	i := slices.IndexFunc(file.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && f.Name.Name == function
	})
	if i < 0 {
		return "", false
	}
	f := file.Decls[i].(*ast.FuncDecl)
	code := map[int]bool{} // lines
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if n != nil {
			code[files.Position(n.Pos()).Line], code[files.Position(n.End()).Line] = true, true
		}
		return true
	})
	for _, group := range file.Comments {
		inside := f.Body.Pos() <= group.Pos() && group.End() <= f.Body.End()
		if inside && (code[files.Position(group.Pos()).Line] || code[files.Position(group.End()).Line+1]) {
			text += group.Text()
		}
	}
	return text, true
}

// carried reports whether the file of one of the tests has the requirement's number.
func carried(t *testing.T, id, cell string) bool {
	t.Helper()
	for _, r := range referenceForm.FindAllStringSubmatch(cell, -1) {
		own, err := os.ReadFile(filepath.Join(root, r[1]))
		if err == nil && regexp.MustCompile(regexp.QuoteMeta(id)+`\b`).Match(own) {
			return true
		}
	}
	return false
}
