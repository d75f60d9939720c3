package mutation

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	pagePath = root + "/docs/model/mutations.md"
	pageHead = "| mutation | the rule that it breaks | caught by | what it said | after |\n| --- | --- | --- | --- | --- |\n"
)

var (
	seeds = flag.Int("mutation.seeds", 200, "worlds that a simulation runs for each mutation")
	limit = flag.Duration("mutation.limit", 30*time.Minute, "how long the tests of one judge may run")
	one   = flag.String("mutation.only", "", "run the mutations whose name matches this expression")
	page  = flag.Bool("mutation.page", false, "ask the judges in their order, and write the table of this run to docs/model/mutations.md")
)

// TestEachMutationIsCaught breaks one rule at a time. It prints the table of `make mutants`.
func TestEachMutationIsCaught(t *testing.T) {
	ring.Deep(t)
	names, err := regexp.Compile(*one)
	must.Succeed(t, err)
	all := mutations(t)
	imported := importsOfJudges(t, all)
	before, done := known(t, all), 0
	rows := slices.Clone(before)
	var mu sync.Mutex
	t.Run("mutants", func(t *testing.T) {
		for i, m := range all {
			if !ring.Sampled(t, i) || !names.MatchString(m.name) {
				continue
			}
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				row := m.judged(t, before[i], imported)
				mu.Lock()
				defer mu.Unlock()
				rows[i] = row
				done++
				t.Logf("%3d of %d: %s", done, len(all), row)
			})
		}
	})
	if done == 0 {
		t.Errorf("there is no mutation whose name matches %q", *one)
	}
	table := pageHead
	for _, row := range rows {
		if row != "" {
			table += row + "\n"
		}
	}
	t.Logf("\n%s", table)
	if *page && !t.Failed() {
		rewrite(t, table)
	}
}

// known are the page's rows, for mutations that this run leaves out.
func known(t *testing.T, all []mutation) []string {
	rows := make([]string, len(all))
	_, table, _ := readPage(t)
	for line := range strings.Lines(table) {
		for i, m := range all {
			if strings.HasPrefix(line, m.row()) {
				rows[i] = strings.TrimSpace(line)
			}
		}
	}
	return rows
}

// judged asks one judge after the other, and returns the mutation's row. The judge that caught it
// before comes first, except where the order itself is to be found: a simulation that catches
// nothing runs all its worlds.
func (m mutation) judged(t *testing.T, before string, imported map[string][]string) string {
	overlay, all := m.overlay(t), judges(m)
	if !*page {
		named := func(j judge) bool { return strings.HasPrefix(before, m.row()+j.name+" | ") }
		if at := slices.IndexFunc(all, named); at > 0 {
			all = slices.Concat(all[at:at+1], all[:at], all[at+1:])
		}
	}
	for _, j := range all {
		if !concerns(imported[j.key()], m) {
			continue
		}
		if v := j.ask(t, overlay); v.caught {
			return m.row() + fmt.Sprintf("%s | %s | %s s |", j.name, v.message, v.seconds)
		}
	}
	t.Errorf("nobody catches it: in %s\n%s\nbecame\n%s", m.file, m.old, m.mutant)
	return m.row() + "nobody | | |"
}

// row is the beginning of the mutation's row.
func (m mutation) row() string { return fmt.Sprintf("| %s | %s | ", m.name, m.rule) }

func readPage(t *testing.T) (before, table, after string) {
	t.Helper()
	text, err := os.ReadFile(pagePath)
	must.Succeed(t, err)
	before, rest, found := strings.Cut(string(text), pageHead)
	if !found {
		t.Fatalf("%s has no table", pagePath)
	}
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "| ") {
			break
		}
		table += line
	}
	return before, table, rest[len(table):]
}

func rewrite(t *testing.T, table string) {
	t.Helper()
	before, _, after := readPage(t)
	must.Succeed(t, os.WriteFile(pagePath, []byte(before+table+after), 0o644))
}

// TestPageHasTheMutations: the page's table has those of the list, in their order, each caught by
// a judge that the mutation's file has. Enough of them are caught by what runs the rules together:
// the simulations.
func TestPageHasTheMutations(t *testing.T) {
	_, table, _ := readPage(t)
	rows, all := strings.Split(strings.TrimSuffix(table, "\n"), "\n"), mutations(t)
	if len(rows) != len(all) {
		t.Fatalf("the page has %d rows, and there are %d mutations; make mutants MUTANTS=-mutation.page writes it", len(rows), len(all))
	}
	imported, together := importsOfJudges(t, all), 0
	for i, m := range all {
		rest, found := strings.CutPrefix(rows[i], m.row())
		if !found {
			t.Errorf("row %d of the page is\n%s\nand should begin with\n%s", i+1, rows[i], m.row())
			continue
		}
		by, _, _ := strings.Cut(rest, " | ")
		at := slices.IndexFunc(judges(m), func(j judge) bool { return by == j.name && concerns(imported[j.key()], m) })
		if at < 0 {
			t.Errorf("the page says that %s is caught by %q, which does not run %s", m.name, by, m.file)
		}
		if by != roomTests {
			together++
		}
	}
	if together < least {
		t.Errorf("the simulations catch %d mutations, fewer than %d", together, least)
	}
}
