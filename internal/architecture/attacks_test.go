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

// TestAttacksHaveTests: what docs/security.md names as the test of a bound, or of an attack, is
// there.
func TestAttacksHaveTests(t *testing.T) {
	_, tables, _ := strings.Cut(readDoc(t, "security.md"), "\n## Bounds\n")
	tables, _, found := strings.Cut(tables, "\n## Hardening\n")
	if !found {
		t.Fatal("docs/security.md has no tables of tests")
	}
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"node_modules", ".git", ".venv"}, d.Name()):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, ".py"), d.IsDir():
			return nil
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	must.Succeed(t, err)
	named := 0
	for _, m := range regexp.MustCompile("`((?:Test|Fuzz|test_)\\w+)`").FindAllStringSubmatch(tables, -1) {
		named++
		if test := m[1]; !strings.Contains(all.String(), "func "+test+"(") && !strings.Contains(all.String(), "def "+test+"(") {
			t.Errorf("docs/security.md names %s, which is no test", test)
		}
	}
	if named < 30 {
		t.Errorf("only %d tests are named", named)
	}
}
