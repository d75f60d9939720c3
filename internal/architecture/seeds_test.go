package architecture

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// seedRequirements is how many rows docs/seeds.md has for each seed: none gets lost.
var seedRequirements = map[string]int{"000": 97, "001": 25, "002": 32, "003": 70, "004": 78}

// ofEmbed are the requirements that the Go library meets: its own tests show them.
var ofEmbed = []string{
	"003-2-6", "003-3.2-1", "003-3.2-2", "003-3.2-3", "003-3.2-4",
	"003-6-1", "003-6-2", "003-6-3", "003-6.1-1", "003-6.1-2", "003-6.1-3",
}

var (
	seedForm    = regexp.MustCompile(`^\| (00[0-4])-([A-Za-z0-9.-]+) \| [^|]+ \|( [^|]+ \|)? ([^|]*) \|$`)
	countForm   = regexp.MustCompile(`(?m)^\| \[(00[0-4])\]\(#seed-00[0-4]\) \| [^|]+ \| (\d+) \| (\d+) \| (\d+) \|$`)
	makeForm    = regexp.MustCompile("`make ([a-z-]+)`")
	elsewhere   = regexp.MustCompile(`\[((?:LS|PL)-[A-Z0-9.-]+)\]\((locks|placement)\.md#requirements\)`)
	seriesForm  = regexp.MustCompile(`^(?:(.+)-)?(\d+)$`)
	targetForms = regexp.MustCompile(`(?m)^([a-z-]+):`)
	numberForm  = regexp.MustCompile(`\b00[0-4]-[A-Z0-9]+(?:[.-][A-Z0-9]+)*`)
)

// TestSeedsPage: each row of docs/seeds.md has a number, and what shows it: a test, a target of
// make, or a row of another page's table. A test carries the number of each row that names it in
// a comment of its body, beside the code that shows it. A row that differs has a reason too. In each section
// the numbers ascend in both tables, and none is missing. The sums at the top are those of the rows.
func TestSeedsPage(t *testing.T) {
	page := readDoc(t, "seeds.md")
	counts, sections, last, seen := map[string][3]int{}, map[string][]int{}, map[string]int{}, []string{}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| 00") {
			continue
		}
		row := seedForm.FindStringSubmatch(line)
		if row == nil {
			t.Errorf("this row is neither `| number | requirement | shown by |` nor `| number | requirement | what is different | shown by |`: %s", line)
			continue
		}
		id, differs := row[1]+"-"+row[2], row[3] != ""
		if slices.Contains(seen, id) {
			t.Errorf("%s has two rows", id)
		}
		seen = append(seen, id)
		if n := seriesForm.FindStringSubmatch(row[2]); n != nil {
			section := row[1] + "-" + n[1]
			number, err := strconv.Atoi(n[2])
			must.Succeed(t, err)
			sections[section] = append(sections[section], number)
			inTable := fmt.Sprint(section, differs)
			if number <= last[inTable] {
				t.Errorf("%s comes after number %d", id, last[inTable])
			}
			last[inTable] = number
		}
		count := counts[row[1]]
		count[0]++
		if differs {
			count[2]++
		} else {
			count[1]++
		}
		counts[row[1]] = count
		checkShown(t, id, row[4])
	}
	for section, numbers := range sections {
		slices.Sort(numbers)
		for i, number := range numbers {
			if number != i+1 {
				t.Errorf("section %s has no number %d", section, i+1)
				break
			}
		}
	}
	for seed, want := range seedRequirements {
		if counts[seed][0] != want {
			t.Errorf("seed %s has %d rows, want %d", seed, counts[seed][0], want)
		}
	}
	sums := countForm.FindAllStringSubmatch(page, -1)
	if len(sums) != len(seedRequirements) {
		t.Errorf("the page sums up %d seeds", len(sums))
	}
	for _, sum := range sums {
		if got := fmt.Sprint(sum[2:]); got != fmt.Sprint(counts[sum[1]]) {
			t.Errorf("seed %s is summed up as %s, and its rows are %v", sum[1], got, counts[sum[1]])
		}
	}
	for _, id := range requirements["locks.md"] {
		if !slices.Contains(seen, "002-"+id) {
			t.Errorf("002-%s has no row", id)
		}
	}
}

// checkShown checks that a cell shows something, and that all it names exists.
func checkShown(t *testing.T, id, cell string) {
	t.Helper()
	shown := 0
	for _, r := range referenceForm.FindAllStringSubmatch(cell, -1) {
		shown++
		comments, declared := commentsOf(t, r[1], r[2])
		switch {
		case !declared || !isTest(r[2]) && !strings.HasPrefix(r[2], "Fuzz") && !strings.HasPrefix(r[2], "Example"):
			t.Errorf("%s: %s has no test %s", id, r[1], r[2])
		case !slices.Contains(numberForm.FindAllString(comments, -1), id):
			t.Errorf("%s: beside no code of %s in %s stands this number: does the test show the row?", id, r[2], r[1])
		}
	}
	for _, m := range makeForm.FindAllStringSubmatch(cell, -1) {
		shown++
		if !slices.ContainsFunc(targetForms.FindAllStringSubmatch(readFile(t, "Makefile"), -1), func(target []string) bool { return target[1] == m[1] }) {
			t.Errorf("%s: make has no target %s", id, m[1])
		}
	}
	for _, m := range elsewhere.FindAllStringSubmatch(cell, -1) {
		shown++
		if table := requirementTables[m[2]+".md"]; !strings.Contains(readFile(t, table), "\n| "+m[1]+": ") {
			t.Errorf("%s: %s has no row %s", id, table, m[1])
		}
	}
	if slices.Contains(ofEmbed, id) && !strings.Contains(cell, "`embed/") {
		t.Errorf("%s: no test of package embed shows it", id)
	}
	if shown == 0 {
		t.Errorf("%s: nothing shows it", id)
	}
}

// TestNoManagers: a type of placement is named after its task.
func TestNoManagers(t *testing.T) {
	err := filepath.WalkDir(filepath.Join(root, "internal/placement"), func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^type (\w*(?:Manager|Service|Helper))\b`).FindAllStringSubmatch(string(text), -1) {
			t.Errorf("%s: %s says nothing of what it does", path, m[1]) // seed 004-7
		}
		return err
	})
	must.Succeed(t, err)
}
