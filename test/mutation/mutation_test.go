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

const tablePath = "caught.txt"

var (
	seeds = flag.Int("mutation.seeds", 200, "worlds that a simulation runs for each mutation")
	limit = flag.Duration("mutation.limit", 5*time.Minute, "how long the tests of one judge may run")
	one   = flag.String("mutation.only", "", "run the mutations whose name or file matches this expression")
	page  = flag.Bool("mutation.page", false, "ask the judges in their order, and write the table of this run to caught.txt")
)

// TestEachMutationIsCaught breaks one rule at a time. It prints the table of `make mutants`.
func TestEachMutationIsCaught(t *testing.T) {
	ring.Deep(t)
	only, err := regexp.Compile(*one)
	must.Succeed(t, err)
	all := mutations(t)
	imported := importsOfJudges(t, all)
	before, done := known(t, all), 0
	rows := slices.Clone(before)
	var mu sync.Mutex
	t.Run("mutants", func(t *testing.T) {
		for i, m := range all {
			if !ring.Sampled(t, i) || !m.matches(only) {
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
		t.Errorf("there is no mutation whose name or file matches %q", *one)
	}
	table := ""
	for _, row := range rows {
		if row != "" {
			table += row + "\n"
		}
	}
	t.Logf("\n%s", table)
	if *page && !t.Failed() {
		comment, _ := readTable(t)
		must.Succeed(t, os.WriteFile(tablePath, []byte(comment+table), 0o644))
	}
}

// known are the table's rows, for mutations that this run leaves out.
func known(t *testing.T, all []mutation) []string {
	rows := make([]string, len(all))
	_, table := readTable(t)
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
			return m.row() + fmt.Sprintf("%s | %s | %s s", j.name, v.message, v.seconds)
		}
	}
	t.Errorf("nobody catches it: in %s\n%s\nbecame\n%s", m.file, m.old, m.mutant)
	return m.row() + "nobody | | "
}

// matches reports whether -mutation.only means the mutation: by its name, or by its file, so that
// a package's name runs all that breaks the package.
func (m mutation) matches(only *regexp.Regexp) bool {
	return only.MatchString(m.name) || only.MatchString(m.file)
}

// TestOnlyMatchesNamesAndFiles: a package's name means each mutation of its files.
func TestOnlyMatchesNamesAndFiles(t *testing.T) {
	for only, m := range map[string]mutation{
		"pool":          {name: "grant-end", file: "internal/provider/pool/grant.go"},
		"internal/lock": {name: "fencing-token", file: "internal/lock/core.go"},
		"^grant-":       {name: "grant-end", file: "internal/provider/pool/grant.go"},
	} {
		pattern := regexp.MustCompile(only)
		if !m.matches(pattern) {
			t.Errorf("%q does not mean %s of %s", only, m.name, m.file)
		}
		if other := (mutation{name: "lease-end", file: "internal/generator/supply.go"}); other.matches(pattern) {
			t.Errorf("%q means %s of %s", only, other.name, other.file)
		}
	}
}

// row is the beginning of the mutation's row.
func (m mutation) row() string { return m.name + " | " }

// readTable returns the comment at the beginning of the table, and its rows.
func readTable(t *testing.T) (comment, table string) {
	t.Helper()
	text, err := os.ReadFile(tablePath)
	must.Succeed(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			comment += line
		} else {
			table += line
		}
	}
	return comment, table
}

// TestTableHasTheMutations: the table has those of the list, in their order, each caught by
// a judge that the mutation's file has. Enough of them are caught by what runs the rules together:
// the simulations.
func TestTableHasTheMutations(t *testing.T) {
	_, table := readTable(t)
	rows, all := strings.Split(strings.TrimSuffix(table, "\n"), "\n"), mutations(t)
	if len(rows) != len(all) {
		t.Fatalf("the table has %d rows, and there are %d mutations; make mutants MUTANTS=-mutation.page writes it", len(rows), len(all))
	}
	imported, together := importsOfJudges(t, all), 0
	for i, m := range all {
		rest, found := strings.CutPrefix(rows[i], m.row())
		if !found {
			t.Errorf("row %d of the table is\n%s\nand should begin with\n%s", i+1, rows[i], m.row())
			continue
		}
		by, _, _ := strings.Cut(rest, " | ")
		at := slices.IndexFunc(judges(m), func(j judge) bool { return by == j.name && concerns(imported[j.key()], m) })
		if at < 0 {
			t.Errorf("the table says that %s is caught by %q, which does not run %s", m.name, by, m.file)
		}
		if by != roomTests {
			together++
		}
	}
	if together < least {
		t.Errorf("the simulations catch %d mutations, fewer than %d", together, least)
	}
}
