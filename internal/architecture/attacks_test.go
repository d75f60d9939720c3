package architecture

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// TestAttacksHaveTests: what docs/security.md names as the test of an attack is there, and
// so are the rows of make abuse.
func TestAttacksHaveTests(t *testing.T) {
	_, table, _ := strings.Cut(readDoc(t, "security.md"), "| attack | shown by |")
	table, _, found := strings.Cut(table, "\n## ")
	if !found {
		t.Fatal("docs/security.md has no table of tests")
	}
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"node_modules", ".git", ".venv"}, d.Name()):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, ".py") && filepath.Base(filepath.Dir(path)) != "abuse", d.IsDir():
			return nil
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	must.Succeed(t, err)
	named := 0
	for _, m := range regexp.MustCompile("`((?:Test|Fuzz|test_)\\w+)`|\"([^\"]+)\"").FindAllStringSubmatch(table, -1) {
		named++
		if test := m[1]; test != "" && !strings.Contains(all.String(), "func "+test+"(") && !strings.Contains(all.String(), "def "+test+"(") {
			t.Errorf("docs/security.md names %s, which is no test", test)
		}
		if row := m[2]; row != "" && !strings.Contains(all.String(), `name: "`+row+`"`) {
			t.Errorf("docs/security.md names the row %q, which make abuse does not have", row)
		}
	}
	if named < 30 {
		t.Errorf("only %d tests and rows are named", named)
	}
}
