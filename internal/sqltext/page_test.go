package sqltext

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

var (
	heading = regexp.MustCompile(`(?m)^## (.*)$`)
	block   = regexp.MustCompile("(?s)```sql\n(.*?)```")
)

// databasesSection is the SQL of one section of docs/databases.md.
func databasesSection(t *testing.T, name string) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/databases.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\n## "+name+"\n")
	if !found {
		t.Fatalf("the page has no section %s", name)
	}
	if next := heading.FindStringIndex(rest); next != nil {
		rest = rest[:next[0]]
	}
	var all []string
	for _, m := range block.FindAllStringSubmatch(rest, -1) {
		all = append(all, m[1])
	}
	return all
}

// orders is an ID for each hour from the first of November to the fifth of December.
func orders() string {
	tl := snowflake.DefaultTimeline()
	var rows []string
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for ; at.Before(time.Date(2026, 12, 5, 0, 0, 0, 0, time.UTC)); at = at.Add(time.Hour) {
		rows = append(rows, fmt.Sprintf("(%d, 'c')", tl.ID(at.UnixMilli(), tl.MaxLow())))
	}
	return strings.Join(rows, ", ")
}

// The SQL of the page does what the page says.
func TestThePage(t *testing.T) {
	explain := map[string]string{"postgres": "EXPLAIN ", "mysql": "EXPLAIN PARTITIONS ", "sqlite": "EXPLAIN QUERY PLAN "}
	for name, dialect := range map[string]string{"PostgreSQL": "postgres", "MySQL and MariaDB": "mysql", "SQLite": "sqlite"} {
		t.Run(dialect, func(t *testing.T) { runPage(t, name, dialect, explain[dialect], openers[dialect](t)) })
	}
}

// runPage runs a section of the page. The plan of its query shows the reads.
func runPage(t *testing.T, name, dialect, explain string, ask database) {
	t.Helper()
	parts := databasesSection(t, name)
	text := functions(t, dialect, splits[0])
	if dialect == "sqlite" {
		text = ""
	}
	ask(t, text+parts[0]+"INSERT INTO orders (id, customer) VALUES "+orders()+";")
	day := ask(t, parts[1])
	if len(day) != 24 || !strings.Contains(day[23][0], "2026-11-20") && dialect != "postgres" {
		t.Errorf("%d rows of a day of 24: %v", len(day), day)
	}
	if general := databasesSection(t, "The functions"); dialect != "sqlite" {
		if got := ask(t, map[string]string{"postgres": "SET timezone = 'UTC';"}[dialect]+general[0]); len(got) != 24 {
			t.Errorf("%d rows of a day of 24", len(got))
		}
	}
	plan := fmt.Sprint(ask(t, explain+parts[1]))
	want := map[string]string{"postgres": "orders_2026_11_pkey", "mysql": "until_2026_11 range", "sqlite": "INTEGER PRIMARY KEY"}[dialect]
	if !strings.Contains(plan, want) || strings.Contains(plan, "2026_12") || strings.Contains(plan, "later") {
		t.Errorf("the plan does not use %s alone: %s", want, plan)
	}
}

func TestPgPartman(t *testing.T) {
	ring.All(t)
	ask, parts := postgresDB(t), databasesSection(t, "pg_partman")
	ask(t, functions(t, "postgres", splits[0])+parts[0])
	const partitions = `SELECT to_char(kazahana_time(split_part(c.relname, '_p', 2)::bigint) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')
		FROM pg_class c JOIN pg_inherits ON inhrelid = c.oid WHERE inhparent = 'events'::regclass AND relname <> 'events_default' ORDER BY 1;`
	days := func(first, n int) (all [][]string) {
		for d := range n {
			all = append(all, []string{time.Date(2026, 11, first+d, 0, 0, 0, 0, time.UTC).Format("2006-01-02 15:04")})
		}
		return all
	}
	if got := ask(t, partitions); fmt.Sprint(got) != fmt.Sprint(days(20, 8)) {
		t.Errorf("partitions at first: %v", got)
	}
	ask(t, `INSERT INTO events SELECT kazahana_min_id('2026-11-20 00:00Z'::timestamptz + n * interval '1 hour'), 'x' FROM generate_series(0, 119) AS n;`)
	ask(t, parts[1])
	if got := ask(t, partitions); fmt.Sprint(got) != fmt.Sprint(days(21, 11)) {
		t.Errorf("partitions after five days, three of which are kept: %v", got)
	}
	if got := ask(t, "SELECT count(*) FROM events_default;"); !slices.Equal(got[0], []string{"0"}) {
		t.Errorf("the default partition has %v rows", got)
	}
}
