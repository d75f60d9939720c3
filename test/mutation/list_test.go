package mutation

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

const (
	root     = "../.."
	listPath = "mutations.txt"
	// least is how many mutations there are at least.
	least = 60
)

// mutation is one change of a file, which breaks a rule.
type mutation struct {
	name, rule  string
	file        string // from the root
	old, mutant string
}

// mutations reads the list.
func mutations(t *testing.T) (all []mutation) {
	t.Helper()
	list, err := os.ReadFile(listPath)
	must.Succeed(t, err)
	for part := range strings.SplitSeq(string(list), "\n\n") {
		m, err := parse(part)
		if err != nil {
			t.Fatalf("%s: %v:\n%s", listPath, err, part)
		}
		if m != (mutation{}) {
			all = append(all, m)
		}
	}
	return all
}

// parse reads one mutation; the zero value stands for a comment.
func parse(part string) (m mutation, err error) {
	var head, old, mutant []string
	for line := range strings.SplitSeq(strings.Trim(part, "\n"), "\n") {
		text, isOld := strings.CutPrefix(line, "- ")
		after, isMutant := strings.CutPrefix(line, "+ ")
		switch {
		case isOld:
			old = append(old, text)
		case isMutant:
			mutant = append(mutant, after)
		case !strings.HasPrefix(line, "#"):
			head = append(head, line)
		}
	}
	if len(head) == 0 {
		return m, nil
	}
	if len(head) != 3 || len(old) == 0 {
		return m, fmt.Errorf("a mutation has a name, a rule, a file, and an old text")
	}
	m = mutation{name: head[0], rule: head[1], file: head[2], old: strings.Join(old, "\n"), mutant: strings.Join(mutant, "\n")}
	return m, nil
}

// applied is the file with the mutation.
func (m mutation) applied(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, m.file))
	must.Succeed(t, err)
	if n := strings.Count(string(text), m.old); n != 1 {
		t.Fatalf("%s: the old text occurs %d times in %s, not once: bring %s up to date:\n%s", m.name, n, m.file, listPath, m.old)
	}
	return strings.Replace(string(text), m.old, m.mutant, 1)
}

// TestMutationsApply: the list is up to date with the files that it changes.
func TestMutationsApply(t *testing.T) {
	all, names := mutations(t), map[string]bool{}
	if len(all) < least {
		t.Errorf("there are %d mutations, fewer than %d", len(all), least)
	}
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			if names[m.name] {
				t.Error("two mutations have this name")
			}
			names[m.name] = true
			if m.old == m.mutant {
				t.Error("it changes nothing")
			}
			if _, err := parser.ParseFile(token.NewFileSet(), m.file, m.applied(t), parser.SkipObjectResolution); err != nil {
				t.Error(err)
			}
		})
	}
}
