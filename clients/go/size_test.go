//go:build go1.25

package kazahana

import (
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// parts are the parts of the client, and how many lines they may have, without comments
// and blank ones.
var parts = []struct {
	name  string
	most  int
	files []string
}{
	{"IDs, batches, prefetch, errors", 888, []string{
		"client.go", "doc.go", "errors.go", "external.go", "id.go", "layout.go", "options.go", "prefetch.go", "status.go"}},
	{"the connection and the wire", 1178, []string{
		"conn.go", "channel.go", "request.go", "dial.go", "internal/msgpack/*.go", "internal/boottime/*.go"}},
	{"locks and sequences", 269, []string{"lock.go", "lock_errors.go", "sequence.go"}},
	{"the fake", 399, []string{"kazahanatest/*.go"}},
	{"placement", 614, []string{"placement/*.go"}},
	{"placement's fake", 381, []string{"placement/placementtest/*.go"}},
	{"tests only", 234, []string{"internal/clienttest/*.go"}},
}

// A user can read the client: its parts stay small.
func TestSizes(t *testing.T) {
	counted := map[string]bool{}
	for _, part := range parts {
		lines := 0
		for _, pattern := range part.files {
			files, err := filepath.Glob(pattern)
			if err != nil || len(files) == 0 {
				t.Fatalf("there is no %s: %v", pattern, err)
			}
			for _, file := range files {
				if !strings.HasSuffix(file, "_test.go") {
					lines += codeLines(t, file)
					counted[file] = true
				}
			}
		}
		if lines > part.most {
			t.Errorf("%s: %d lines, at most %d are to be read", part.name, lines, part.most)
		}
		t.Logf("%s: %d lines", part.name, lines)
	}
	for _, pattern := range []string{"*.go", "*/*.go", "*/*/*.go"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if !counted[file] && !strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "programs/") {
				t.Errorf("%s belongs to no part", file)
			}
		}
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
