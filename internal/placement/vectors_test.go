package placement

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A new implementation of the hash, from docs/placement.md alone, can be held against
// the vectors. PL-C9: all of them agree.
func TestOtherLanguagesAgree(t *testing.T) {
	for _, program := range [][]string{{"python3", "-I", "testdata/rendezvous.py"}, {"node", "testdata/rendezvous.mjs"}} {
		t.Run(program[0], func(t *testing.T) {
			if _, err := exec.LookPath(program[0]); err != nil {
				t.Skipf("%s is not installed", program[0])
			}
			out, err := exec.CommandContext(t.Context(), program[0], append(program[1:], vectorFile)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			v := readVectors(t)
			if want := strconv.Itoa(len(v.Scores)+len(v.Placements)) + " agree"; strings.TrimSpace(string(out)) != want {
				t.Errorf("it says %q, want %q", out, want)
			}
		})
	}
}

// The lines of the vectors that docs/placement.md shows are right.
func TestPageShowsTheVectors(t *testing.T) {
	page, err := os.ReadFile("../../docs/placement.md")
	if err != nil {
		t.Fatal(err)
	}
	scores := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\| `([^`]+)` \\| `([0-9a-f]{16})` \\|$").FindAllStringSubmatch(string(page), -1)
	placements := regexp.MustCompile("(?m)^\\| ([0-9]+) \\| `([^`]+)` \\| `([^`]+)` \\| `([^`]+)` \\|$").FindAllStringSubmatch(string(page), -1)
	if len(scores) < 4 || len(placements) < 5 {
		t.Fatalf("the page shows %d scores and %d placements", len(scores), len(placements))
	}
	for _, row := range scores {
		if got := score(Key{row[1], row[2]}, row[3]); got != row[4] {
			t.Errorf("the score of %s/%s for %s is %s, and the page says %s", row[1], row[2], row[3], got, row[4])
		}
	}
	for _, row := range placements {
		n, _ := strconv.Atoi(row[1])
		if got := among(hosts(n)...).Authority(Key{row[2], row[3]}); got != row[4] {
			t.Errorf("the authority of %s/%s among %d is %s, and the page says %s", row[2], row[3], n, got, row[4])
		}
	}
	for _, constant := range []string{"0xbf58476d1ce4e5b9", "0x94d049bb133111eb"} {
		if !strings.Contains(string(page), constant) {
			t.Errorf("the page does not have the constant %s", constant)
		}
	}
}
