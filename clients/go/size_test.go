//go:build go1.25

package kazahana

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// parts are the parts of the client: how many lines each may have, without comments and
// blank ones, and how many it should have, where there is an aim. docs/decisions.md says
// why the core misses its one.
var parts = []struct {
	name      string
	most, aim int // 0: none
	files     []string
}{
	{"the core: IDs, batches, prefetch, errors, connections and the wire", 1311, 850, []string{
		"client.go", "doc.go", "errors.go", "id.go", "options.go", "prefetch.go",
		"calls.go", "conn.go", "request.go", "dial.go", "internal/msgpack/*.go"}},
	{"locks and sequences", 302, 350, []string{"lock.go", "lock_errors.go", "sequence.go", "internal/boottime/*.go"}},
	{"beside: IDs without a daemon, other methods", 273, 0, []string{"external.go", "layout.go", "other.go", "status.go"}},
	{"the fake, and connections for it and for placement", 612, 0, []string{"kazahanatest/*.go", "internal/twoway/*.go"}},
	{"placement and its fake", 1005, 0, []string{"placement/*.go", "placement/placementtest/*.go"}},
	{"tests only", 233, 0, []string{"internal/clienttest/*.go"}},
}

// A user can read the client: its parts stay small.
func TestSizes(t *testing.T) {
	counted := map[string]string{}
	for _, part := range parts {
		lines := 0
		for _, pattern := range part.files {
			files, err := filepath.Glob(pattern)
			if err != nil || len(files) == 0 {
				t.Fatalf("there is no %s: %v", pattern, err)
			}
			for _, file := range files {
				if strings.HasSuffix(file, "_test.go") {
					continue
				}
				if other := counted[file]; other != "" {
					t.Errorf("%s belongs to %s, and to %s", file, other, part.name)
				}
				lines += codeLines(t, file)
				counted[file] = part.name
			}
		}
		if lines > part.most {
			t.Errorf("%s: %d lines, and %d are the most", part.name, lines, part.most)
		}
		t.Logf("%s: %d lines (aim: %d)", part.name, lines, part.aim)
	}
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case file == "programs": // a module of its own, which no user gets
			return fs.SkipDir
		case strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") && counted[file] == "":
			t.Errorf("%s belongs to no part", file)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// codeLines counts the lines with a token that is no comment.
func codeLines(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	f := files.AddFile(file, -1, len(text))
	var s scanner.Scanner
	s.Init(f, text, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		for i := range strings.Count(literal, "\n") + 1 {
			if tok != token.SEMICOLON || literal == ";" {
				lines[f.Line(pos)+i] = true
			}
		}
	}
}

// The module requires no other: a user's versions stay theirs.
func TestRequiresNothing(t *testing.T) {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if word, _, _ := strings.Cut(line, " "); word != "module" && word != "go" && word != "" {
			t.Errorf("go.mod has the line %q", line)
		}
	}
	if _, err := os.Stat("go.sum"); err == nil {
		t.Error("there is a go.sum")
	}
}
