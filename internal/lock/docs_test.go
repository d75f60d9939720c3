package lock_test

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

// requirements is every ID of LS-SPEC-001.
var requirements = []string{
	"LS-INV-001", "LS-INV-002", "LS-INV-003", "LS-INV-004",
	"LS-ACQ-001", "LS-ACQ-002", "LS-ACQ-003", "LS-ACQ-004",
	"LS-RNW-001", "LS-RNW-002", "LS-RNW-003",
	"LS-REL-001", "LS-REL-002", "LS-REL-003",
	"LS-CC-001", "LS-EXP-001", "LS-AUTH-001", "LS-FENCE-001",
	"LS-ACC-01", "LS-ACC-02", "LS-ACC-03", "LS-ACC-04",
}

var (
	rowForm       = regexp.MustCompile(`^\| (LS-[A-Z]+-\d+): [^|]+ \| ([^|]+) \| ([^|]+) \|$`)
	referenceForm = regexp.MustCompile("`([^`: ]+): ([A-Za-z0-9_]+)`")
)

// TestRequirementsTable holds docs/locks.md to the list of requirements, and to
// the code and the tests that it names.
func TestRequirementsTable(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs", "locks.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| LS-") {
			continue
		}
		row := rowForm.FindStringSubmatch(line)
		if row == nil {
			t.Errorf("this row is not `| ID: requirement | code | test |`: %s", line)
			continue
		}
		id := row[1]
		switch {
		case !slices.Contains(requirements, id):
			t.Errorf("%s is no requirement of LS-SPEC-001", id)
		case seen[id]:
			t.Errorf("%s has two rows", id)
		}
		seen[id] = true
		checkReferences(t, root, id, row[2], func(name string) bool { return !isTest(name) })
		checkReferences(t, root, id, row[3], isTest)
		if !carried(t, root, id, row[3]) {
			t.Errorf("%s: none of its tests carries its number", id)
		}
	}
	for _, id := range requirements {
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
func checkReferences(t *testing.T, root, id, cell string, kind func(string) bool) {
	t.Helper()
	references := referenceForm.FindAllStringSubmatch(cell, -1)
	if len(references) == 0 || len(references) != strings.Count(cell, ": ") {
		t.Errorf("%s: %q is not a list of `file: function`", id, cell)
	}
	for _, r := range references {
		if !declares(t, filepath.Join(root, r[1]), r[2]) {
			t.Errorf("%s: %s has no function %s", id, r[1], r[2])
		}
		if !kind(r[2]) {
			t.Errorf("%s: %s is in the wrong column", id, r[2])
		}
	}
}

func declares(t *testing.T, path, function string) bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%v", err)
		return false
	}
	return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && f.Name.Name == function
	})
}

// carried reports whether one of the tests runs under the requirement's number:
// in the suite's list, or in the text of its own file.
func carried(t *testing.T, root, id, cell string) bool {
	t.Helper()
	const suite = "internal/lock/locktest"
	list, err := os.ReadFile(filepath.Join(root, suite, "locktest.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range referenceForm.FindAllStringSubmatch(cell, -1) {
		if strings.HasPrefix(r[1], suite) {
			if strings.Contains(string(list), `{"`+id+`", `+r[2]+`}`) {
				return true
			}
			continue
		}
		own, err := os.ReadFile(filepath.Join(root, r[1]))
		if err == nil && strings.Contains(string(own), id) {
			return true
		}
	}
	return false
}
