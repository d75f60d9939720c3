package proof

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// pagePath is the page that tells people of the proof.
const pagePath = "../../docs/uniqueness.md"

var writePage = flag.Bool("proof.page", false, "write the table and the figures of this run to docs/uniqueness.md")

// pageRow is the beginning of a rule's row in the page's table.
func pageRow(r rule) string {
	return fmt.Sprintf("| %d | %s | %s | ", r, ruleTexts[r].rule, ruleTexts[r].breach)
}

func readPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// TestPageHasTheRules: the page's table has the rules of the code in their order,
// and a story for each.
func TestPageHasTheRules(t *testing.T) {
	page := readPage(t)
	rows := regexp.MustCompile(`(?m)^\| \d+ \| .*$`).FindAllString(page, -1)
	stories := regexp.MustCompile(`(?m)^\*\*(\d+)\. `).FindAllStringSubmatch(page, -1)
	if want := int(allRules) - 1; len(rows) != want || len(stories) != want {
		t.Fatalf("the page has %d rows and %d stories; there are %d rules", len(rows), len(stories), want)
	}
	for r := noRule + 1; r < allRules; r++ {
		if row := rows[r-1]; !strings.HasPrefix(row, pageRow(r)) {
			t.Errorf("row %d of the page is\n%s\nand should begin with\n%s", r, row, pageRow(r))
		}
		if number := stories[r-1][1]; number != fmt.Sprint(int(r)) {
			t.Errorf("story %d of the page has the number %s", r, number)
		}
	}
}

// rewrite replaces the line of the page that begins so.
func rewrite(t *testing.T, begin, line string) {
	t.Helper()
	if !*writePage {
		return
	}
	page, old := readPage(t), regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(begin)+`.*$`)
	if !old.MatchString(page) {
		t.Fatalf("the page has no line that begins with %q", begin)
	}
	page = old.ReplaceAllLiteralString(page, line)
	if err := os.WriteFile(pagePath, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}
