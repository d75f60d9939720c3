package proof

import (
	"fmt"
	"os"
	"regexp"
	"testing"
)

// TestPageHasTheRules: the table of docs/uniqueness.md has the rules of the code in their order.
func TestPageHasTheRules(t *testing.T) {
	page, err := os.ReadFile("../../docs/uniqueness.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| \d+ \| .*$`).FindAllString(string(page), -1)
	if want := int(allRules) - 1; len(rows) != want {
		t.Fatalf("the page has %d rows; there are %d rules", len(rows), want)
	}
	for r := noRule + 1; r < allRules; r++ {
		if want := fmt.Sprintf("| %d | %s | %s |", r, ruleTexts[r].rule, ruleTexts[r].breach); rows[r-1] != want {
			t.Errorf("row %d of the page is\n%s\nand should be\n%s", r, rows[r-1], want)
		}
	}
}
