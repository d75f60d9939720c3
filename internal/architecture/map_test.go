package architecture

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// TestSourcePageHasTheFolders: the map in docs/source.md has a row for each folder at
// the top, in cmd and in internal, and no other.
func TestSourcePageHasTheFolders(t *testing.T) {
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(readDoc(t, "source.md"), -1) {
		listed = append(listed, row[1])
	}
	slices.Sort(listed)
	exist := folders(t, "")
	for _, parent := range []string{"cmd", "internal"} {
		delete(exist, parent)
		maps.Copy(exist, folders(t, parent))
	}
	if want := slices.Sorted(maps.Keys(exist)); !slices.Equal(listed, want) {
		t.Errorf("docs/source.md lists %q, and these exist: %q", listed, want)
	}
}

// TestSourcePageNamesFiles: where docs/source.md says that a rule is, there is a file, with
// the functions that the page names.
func TestSourcePageNamesFiles(t *testing.T) {
	_, table, found := strings.Cut(readDoc(t, "source.md"), "## Where a rule is")
	paths := regexp.MustCompile("`([a-z_]+/[a-z_/.]+)`(?:: ((?:`\\w+`(?:, )?)+))?").FindAllStringSubmatch(table, -1)
	if !found || len(paths) == 0 {
		t.Fatal("docs/source.md does not say where a rule is")
	}
	for _, path := range paths {
		below := filepath.Join(root, "internal")
		if strings.HasPrefix(path[1], "clients/") {
			below = root
		}
		if _, err := os.Stat(filepath.Join(below, path[1])); err != nil {
			t.Error(err)
		}
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(path[2], -1) {
			text, _ := os.ReadFile(filepath.Join(below, path[1]))
			if !regexp.MustCompile(`(?m)^(func|class)\b.*\b` + name + `\b`).Match(text) {
				t.Errorf("%s has no %s", path[1], name)
			}
		}
	}
}

// folders are those in the parent that hold a file of the repository.
func folders(t *testing.T, parent string) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, parent))
	must.Succeed(t, err)
	built := []string{"bin", "dist"} // .gitignore has them
	found := map[string]bool{}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(built, e.Name()) {
			found[filepath.ToSlash(filepath.Join(parent, e.Name()))] = true
		}
	}
	return found
}
