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

// mostDeciding is how many files may decide on a lease.
const mostDeciding = 14

// TestWaysNameFiles: the files exist that the comments of packages name on the way of a lease and of
// an ID. A name without a folder is in the folder that was named last, or in the package's own.
func TestWaysNameFiles(t *testing.T) {
	names := regexp.MustCompile(`([a-z_/]+/)?[a-z_]+\.go\b`)
	for own, least := range map[string]int{"keeper/": mostDeciding, "daemon/": 8} {
		doc, err := os.ReadFile(filepath.Join(root, "internal", own, "doc.go"))
		must.Succeed(t, err)
		_, way, _ := strings.Cut(string(doc), "# The way of")
		way, _, _ = strings.Cut(way, "// # ")
		deciding, _, _ := strings.Cut(way, "// Others carry it")
		if n := len(names.FindAllString(deciding, -1)); own == "keeper/" && n > mostDeciding {
			t.Errorf("%d files decide on a lease", n)
		}
		last, found := own, names.FindAllStringSubmatch(way, -1)
		for _, name := range found {
			if name[1] != "" {
				last = name[1]
			}
			exists := slices.ContainsFunc([]string{own, last}, func(folder string) bool {
				_, err := os.Stat(filepath.Join(root, "internal", folder, filepath.Base(name[0])))
				return err == nil
			})
			if !exists {
				t.Errorf("package %s names %s, which is not there", own, name[0])
			}
		}
		if len(found) < least {
			t.Errorf("the way in package %s names %d files", own, len(found))
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
