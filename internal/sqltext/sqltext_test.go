package sqltext

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

type split struct {
	snowflake.Layout
	epochMS int64
}

func (s split) timeline() snowflake.Timeline {
	return snowflake.Timeline{EpochMS: s.epochMS, BitTS: s.BitTS}
}

// splits are layouts of every kind, with epochs before and after 1970.
var splits = []split{
	{snowflake.DefaultLayout(), snowflake.DefaultEpochMS},
	{snowflake.Layout{BitTS: 52, BitID: 7, BitSeq: 4}, snowflake.DefaultEpochMS},
	{snowflake.Layout{BitTS: 41, BitID: 22, BitSeq: 0}, 1288834974657},
	{snowflake.Layout{BitTS: 42, BitID: 13, BitSeq: 8}, 0},
	{snowflake.Layout{BitTS: 40, BitID: 1, BitSeq: 22}, -86_399_999},
	{snowflake.Layout{BitTS: 32, BitID: 21, BitSeq: 10}, 1_793_000_000_001},
}

// asked is the seven values of an ID in one row.
var asked = map[string]string{
	"postgres": `SELECT kazahana_time_ms(id), to_char(kazahana_time(id) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
		kazahana_machine_id(id), kazahana_sequence(id), kazahana_is_fallback(id)::int,
		to_char(kazahana_time_decoder(id) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') = to_char(kazahana_time_decoder(id::text) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
		kazahana_time_encoder(kazahana_time(id)) - kazahana_min_id(kazahana_time(id)) FROM (SELECT %d::bigint AS id) AS x;`,
	"mysql": `SELECT kazahana_time_ms(id), REPLACE(CONCAT(kazahana_time(id), 'Z'), ' ', 'T'),
		kazahana_machine_id(id), kazahana_sequence(id), kazahana_is_fallback(id), 't', 0 FROM (SELECT %d AS id) AS x;`,
}

func functions(t *testing.T, dialect string, s split) string {
	t.Helper()
	text, err := Write(dialect, s.Layout, s.epochMS)
	must.Succeed(t, err)
	return text
}

var expression = regexp.MustCompile(`(?s)-- (kazahana_\w+):.*?\nSELECT (.*?);\n`)

// expressions are those of SQLite, by name.
func expressions(t *testing.T, s split) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, m := range expression.FindAllStringSubmatch(functions(t, "sqlite", s), -1) {
		all[m[1]] = m[2]
	}
	if len(all) != 7 {
		t.Fatalf("%d expressions", len(all))
	}
	return all
}

func sqliteQuestion(t *testing.T, s split, id int64) string {
	e := expressions(t, s)
	question := fmt.Sprintf("SELECT %s, %s, %s, %s, %s, 't', 0;\n", e["kazahana_time_ms"], e["kazahana_time"],
		e["kazahana_machine_id"], e["kazahana_sequence"], e["kazahana_is_fallback"])
	return strings.ReplaceAll(question, ":id", fmt.Sprint(id))
}

// Every database takes IDs apart as inspect does, and gives the bounds that the
// command bounds gives.
func TestDatabases(t *testing.T) {
	for dialect, open := range openers {
		t.Run(dialect, func(t *testing.T) { compareSQL(t, dialect, open(t)) })
	}
}

// The same on MySQL itself, which comes from a package registry.
func TestMySQL(t *testing.T) {
	ring.Deep(t)
	ask := mysqlDB(t)
	compareSQL(t, "mysql", ask)
	runPage(t, "MySQL and MariaDB", "mysql", "EXPLAIN ", ask)
	dumpMySQL(t, ask)
}

func compareSQL(t *testing.T, dialect string, ask database) {
	t.Helper()
	for _, s := range splits {
		if dialect != "sqlite" { // twice: the text replaces its earlier objects
			ask(t, functions(t, dialect, s)+functions(t, dialect, s))
		}
		compareIDs(t, dialect, ask, s)
		compareBounds(t, dialect, ask, s)
	}
}

func compareIDs(t *testing.T, dialect string, ask database, s split) {
	t.Helper()
	ids, questions := someIDs(s), ""
	for _, id := range ids {
		if dialect == "sqlite" {
			questions += sqliteQuestion(t, s, int64(id))
		} else {
			questions += fmt.Sprintf(asked[dialect], int64(id)) + "\n"
		}
	}
	answers := ask(t, questions)
	if len(answers) != len(ids) {
		t.Fatalf("%d answers to %d questions", len(answers), len(ids))
	}
	for i, row := range answers {
		in, err := snowflake.Inspect(ids[i], s.Layout, s.epochMS, snowflake.Codec{})
		must.Succeed(t, err)
		fallback := map[string]string{snowflake.KindRegular: "0", snowflake.KindFallback: "1"}[in.Kind]
		want := []string{fmt.Sprint(in.TimestampMS), in.Time, fmt.Sprint(in.MachineID), fmt.Sprint(in.Sequence), fallback, "t", "0"}
		if strings.Join(row, " ") != strings.Join(want, " ") {
			t.Errorf("layout %v, epoch %d, ID %d: %v, want %v", s.Layout, s.epochMS, ids[i], row, want)
		}
	}
}

// year10000 is where the dates of MySQL and SQLite end.
var year10000 = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()

func someIDs(s split) []snowflake.ID {
	r := rand.New(rand.NewPCG(uint64(s.BitTS), uint64(s.BitSeq)))
	tl := s.timeline()
	span := min(tl.EndMS(), year10000) - tl.EpochMS
	ids := []snowflake.ID{0, tl.ID(tl.EpochMS, tl.MaxLow()), tl.ID(tl.EpochMS+span-1, tl.MaxLow())}
	for range 100 {
		ids = append(ids, tl.ID(tl.EpochMS+r.Int64N(span), r.Int64N(tl.MaxLow()+1)))
	}
	return ids
}

// compareBounds: where the command refuses, because no ID is in the interval,
// the database's range is empty.
func compareBounds(t *testing.T, dialect string, ask database, s split) {
	t.Helper()
	intervals, questions := someIntervals(s, dialect), ""
	for _, i := range intervals {
		questions += boundsQuestion(t, dialect, s, i) + "\n"
	}
	answers := ask(t, questions)
	if len(answers) != len(intervals) {
		t.Fatalf("%d answers to %d questions", len(answers), len(intervals))
	}
	for n, row := range answers {
		checkBounds(t, s, intervals[n], row)
	}
}

func checkBounds(t *testing.T, s split, i [2]time.Time, row []string) {
	t.Helper()
	smallest, largest, err := s.timeline().Bounds(i[0], i[1])
	if err == nil && (row[0] != fmt.Sprint(int64(smallest)) || row[1] != fmt.Sprint(int64(largest))) {
		t.Errorf("layout %v, %v: %v, want %d %d", s.Layout, i, row, smallest, largest)
	}
	if err != nil && row[0] != "NULL" {
		low, _ := strconv.ParseInt(row[0], 10, 64)
		if high, failed := strconv.ParseInt(row[1], 10, 64); failed != nil || low <= high {
			t.Errorf("layout %v, %v: %v, want nothing between them: %v", s.Layout, i, row, err)
		}
	}
}

func boundsQuestion(t *testing.T, dialect string, s split, i [2]time.Time) string {
	t.Helper()
	const layout = "2006-01-02 15:04:05.000000"
	from, until := i[0].UTC().Format(layout), i[1].UTC().Format(layout)
	switch dialect {
	case "postgres":
		return fmt.Sprintf("SELECT kazahana_min_id('%sZ'), kazahana_max_id('%sZ');", from, until)
	case "mysql":
		return fmt.Sprintf("SELECT kazahana_min_id('%s'), kazahana_max_id('%s');", from, until)
	}
	e := expressions(t, s)
	return strings.NewReplacer(":from_time", "'"+from[:23]+"'", ":until_time", "'"+until[:23]+"'").
		Replace("SELECT " + e["kazahana_min_id"] + ", " + e["kazahana_max_id"] + ";")
}

// someIntervals lie within the layout's time, across its ends and outside.
func someIntervals(s split, dialect string) [][2]time.Time {
	r := rand.New(rand.NewPCG(uint64(s.BitTS), 7))
	tl, unit := s.timeline(), time.Microsecond
	if dialect == "sqlite" {
		unit = time.Millisecond
	}
	epoch := time.UnixMilli(tl.EpochMS)
	end := time.UnixMilli(min(tl.EndMS(), year10000-1))
	var all [][2]time.Time
	add := func(from, until time.Time) {
		if until.After(from) && until.UnixMilli() < year10000 {
			all = append(all, [2]time.Time{from, until})
		}
	}
	for _, at := range []time.Time{epoch, end, epoch.Add(1000 * time.Hour)} {
		for _, before := range []time.Duration{-time.Hour, -time.Millisecond, -time.Microsecond, 0, time.Millisecond} {
			for _, long := range []time.Duration{time.Microsecond, time.Millisecond, 1500 * time.Microsecond, 2 * time.Hour} {
				add(at.Add(before).Truncate(unit), at.Add(before+long).Truncate(unit))
			}
		}
	}
	for range 60 {
		from := time.UnixMilli(tl.EpochMS + r.Int64N(end.UnixMilli()-tl.EpochMS)).Add(time.Duration(r.Int64N(1000)) * time.Microsecond)
		add(from.Truncate(unit), from.Add(time.Duration(r.Int64N(int64(48*time.Hour)))).Truncate(unit))
	}
	return all
}

func TestAnEpochThatSQLCannotWriteIsRefused(t *testing.T) {
	for _, dialect := range []string{"postgres", "mysql", "sqlite"} {
		if text, err := Write(dialect, snowflake.DefaultLayout(), year10000); err == nil {
			t.Errorf("%s: %s", dialect, text)
		}
	}
}
