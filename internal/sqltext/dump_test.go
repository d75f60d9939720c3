package sqltext

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// postgresUses has the functions, in a schema of their own, wherever PostgreSQL runs them
// by itself. A dump is restored with an empty search_path. z_next is there because a
// failed COPY took the rows of the next table with it.
const postgresUses = `
CREATE SCHEMA ids; SET search_path = ids;
%FUNCTIONS%
SET search_path = public, ids;
CREATE TABLE a_uses (id bigint PRIMARY KEY,
	made_at timestamptz GENERATED ALWAYS AS (kazahana_time(id)) STORED,
	first_id bigint DEFAULT kazahana_min_id(now()),
	CHECK (kazahana_max_id(kazahana_time(id) + interval '1 second') > id AND NOT kazahana_is_fallback(id)),
	EXCLUDE USING btree (kazahana_time_decoder(id) WITH =));
CREATE INDEX ON a_uses (kazahana_time_decoder(id::text));
CREATE INDEX ON a_uses (kazahana_time_encoder(kazahana_time(id))) WHERE kazahana_sequence(id) >= 0;
CREATE UNIQUE INDEX ON a_uses (kazahana_time_ms(id), kazahana_machine_id(id));
CREATE STATISTICS a_statistics ON kazahana_time(id), kazahana_machine_id(id) FROM a_uses;
CREATE TABLE b_by_id (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE b_by_id_1 PARTITION OF b_by_id FOR VALUES FROM (kazahana_min_id('2026-11-01 00:00Z')) TO (kazahana_min_id('2026-12-05 00:00Z'));
CREATE TABLE c_by_time (id bigint) PARTITION BY RANGE (kazahana_time_decoder(id));
CREATE TABLE c_by_time_1 PARTITION OF c_by_time FOR VALUES FROM ('2026-11-01 00:00Z') TO ('2026-12-05 00:00Z');
CREATE VIEW d_view AS SELECT id, kazahana_time_decoder(id) FROM a_uses;
CREATE FUNCTION e_nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER e_trigger BEFORE INSERT ON a_uses FOR EACH ROW WHEN (kazahana_time_decoder(new.id) < '2026-01-02 00:00Z') EXECUTE FUNCTION e_nothing();
CREATE DOMAIN f_regular AS bigint CHECK (kazahana_time_decoder(value) > '2026-01-02 00:00Z');
CREATE TABLE f_domain (id f_regular);
ALTER TABLE f_domain ENABLE ROW LEVEL SECURITY;
CREATE POLICY f_policy ON f_domain USING (kazahana_time_decoder(id) > '2026-01-02 00:00Z');
INSERT INTO a_uses (id) SELECT kazahana_min_id('2026-11-01 00:00Z'::timestamptz + n * interval '1 hour') FROM generate_series(0, 99) AS n;
INSERT INTO b_by_id SELECT id FROM a_uses;
INSERT INTO c_by_time SELECT id FROM a_uses;
INSERT INTO f_domain SELECT id FROM a_uses;
CREATE MATERIALIZED VIEW d_kept AS SELECT id, kazahana_time_encoder(kazahana_time_decoder(id)) AS id2 FROM a_uses;
CREATE TABLE z_next AS SELECT id FROM a_uses;
`

// postgresCount is what a restore must bring back.
const postgresCount = `SELECT (SELECT count(*) FROM a_uses), (SELECT count(*) FROM b_by_id), (SELECT count(*) FROM c_by_time),
	(SELECT count(*) FROM d_view), (SELECT count(id2) FROM d_kept), (SELECT count(*) FROM f_domain), (SELECT count(*) FROM z_next),
	(SELECT count(*) FROM pg_index WHERE indrelid = 'a_uses'::regclass), (SELECT count(*) FROM pg_statistic_ext),
	(SELECT count(*) FROM pg_trigger), (SELECT count(*) FROM pg_policy)`

// postgresRestores are ways to dump the database shop and to restore it as other.
var postgresRestores = map[string]string{
	"plain":        `pg_dump shop | psql -q -v ON_ERROR_STOP=1 -d other; psql -q -v ON_ERROR_STOP=1 -d other < functions`,
	"custom":       `pg_dump -Fc -f custom shop; pg_restore --exit-on-error -d other custom`,
	"parallel":     `pg_dump -Fd -j 2 -f parallel shop; pg_restore --exit-on-error -j 3 -d other parallel`,
	"schema first": `pg_dump --schema-only shop | psql -q -v ON_ERROR_STOP=1 -d other; pg_dump --data-only shop | psql -q -v ON_ERROR_STOP=1 -d other; psql -q -d other -c 'REFRESH MATERIALIZED VIEW d_kept'`,
	"whole server": `pg_dumpall > all; dropdb other; psql -qc 'ALTER DATABASE shop RENAME TO other_shop'; psql -q -d postgres < all; dropdb other; psql -qc 'ALTER DATABASE shop RENAME TO other' -c 'ALTER DATABASE other_shop RENAME TO shop'`,
}

// Every use of the functions survives a dump and a restore, and works with an empty
// search_path.
func TestPostgresDumps(t *testing.T) {
	ring.All(t)
	dumpPostgres(t, postgrestest.New(t, "-c", "fsync=off"))
}

func dumpPostgres(t *testing.T, server *postgrestest.Server) {
	dir := t.TempDir()
	env := []string{"PATH=" + server.Bin + ":" + os.Getenv("PATH"), "PGHOST=" + server.Dir, "PGUSER=postgres"}
	sh := func(t *testing.T, script string) string {
		t.Helper()
		return runIn(t, dir, env, "sh", "-e", "-c", script)
	}
	text := functions(t, "postgres", splits[0])
	writeIn(t, dir, "functions", "SET search_path = ids;"+text)
	writeIn(t, dir, "uses", strings.Replace(postgresUses, "%FUNCTIONS%", text, 1))
	sh(t, `createdb shop; psql -q -v ON_ERROR_STOP=1 -d shop < uses`)
	const want = "100|100|100|100|100|100|100|5|1|1|1\n"
	for name, script := range postgresRestores {
		t.Run(name, func(t *testing.T) {
			said := sh(t, `dropdb -f --if-exists other; createdb other; exec 2>&1; `+script)
			if got := sh(t, fmt.Sprintf(`psql -Atq -d other -c "%s"`, postgresCount)); got != want {
				t.Errorf("restored %s, want %s: %s", got, want, said)
			}
		})
	}
	if got := sh(t, `psql -Atq -d shop -c "SET timezone = 'UTC'" -c "SET search_path = ''" \
		-c 'SELECT ids.kazahana_time_decoder(id), ids.kazahana_time_decoder(id::text), ids.kazahana_time_encoder(ids.kazahana_time(id)) - id
			FROM public.a_uses ORDER BY id LIMIT 1'`); got != "2026-11-01 00:00:00+00|2026-11-01 00:00:00+00|0\n" {
		t.Errorf("without a search_path: %s", got)
	}
	if got := sh(t, `psql -Atq -d shop -c 'EXPLAIN (VERBOSE, COSTS off) SELECT ids.kazahana_time_decoder(id::text), ids.kazahana_is_fallback(id) FROM z_next'`); strings.Contains(got, "kazahana") {
		t.Errorf("a function is not inlined: %s", got)
	}
}

// mysqlUses has the functions where MySQL allows them.
const mysqlUses = `
CREATE TABLE a_orders (id BIGINT PRIMARY KEY, made_at DATETIME(3) NULL);
CREATE TRIGGER b_made BEFORE INSERT ON a_orders FOR EACH ROW SET NEW.made_at = kazahana_time(NEW.id);
CREATE SQL SECURITY INVOKER VIEW c_orders AS SELECT id, kazahana_time(id) AS at, kazahana_time_ms(id) AS ms, kazahana_machine_id(id) AS machine_id,
	kazahana_sequence(id) AS sequence, kazahana_is_fallback(id) AS fallback, kazahana_max_id(kazahana_time(id)) - kazahana_min_id(kazahana_time(id)) AS width FROM a_orders;
INSERT INTO a_orders (id) VALUES (121037547114594304);
`

// A user makes the functions, in any sql_mode, and is deleted. They work for others, and
// in a database that a dump with --routines made.
func TestMySQLDumps(t *testing.T) {
	ring.All(t)
	dumpMySQL(t, mariadbDB(t))
}

func dumpMySQL(t *testing.T, ask database) {
	socket := ask(t, "SELECT @@socket;")[0][0]
	dir, common := t.TempDir(), "--no-defaults -S "+socket
	sh := func(script string) string {
		t.Helper()
		return runIn(t, dir, nil, "sh", "-e", "-c", strings.ReplaceAll(script, "@", common))
	}
	const want = "121037547114594304 2026-12-01 00:00:00.001 1796083200001 0 0 0 -1\n"
	for i, mode := range []string{"", "ANSI,TRADITIONAL", "NO_UNSIGNED_SUBTRACTION,HIGH_NOT_PRECEDENCE"} {
		from, to := fmt.Sprintf("from%d", i), fmt.Sprintf("to%d", i)
		ask(t, fmt.Sprintf(`CREATE DATABASE %[1]s CHARACTER SET ucs2; CREATE DATABASE %[2]s;
			CREATE USER author%[3]d; GRANT ALL ON *.* TO author%[3]d WITH GRANT OPTION;
			CREATE USER reader%[3]d; GRANT SELECT, EXECUTE ON %[1]s.* TO reader%[3]d; GRANT SELECT, EXECUTE ON %[2]s.* TO reader%[3]d;`, from, to, i))
		writeIn(t, dir, "functions", "SET sql_mode = '"+mode+"';"+functions(t, "mysql", splits[0]))
		writeIn(t, dir, "uses", mysqlUses)
		sh(fmt.Sprintf("mariadb @ -u author%d %s < functions; mariadb @ -u root %[2]s < uses; mariadb @ -u root -e 'DROP USER author%[1]d'", i, from))
		sh(fmt.Sprintf("mariadb-dump @ -u root --routines %s > dump; mariadb @ -u root %s < dump", from, to))
		for _, name := range []string{from, to} {
			if got := strings.ReplaceAll(sh(fmt.Sprintf("mariadb @ -u reader%d -BN -e 'SELECT * FROM c_orders' %s", i, name)), "\t", " "); got != want {
				t.Errorf("%s, mode %q: %s, want %s", name, mode, got, want)
			}
		}
	}
}

// SQLite's expressions survive a dump wherever a schema may have them.
func TestSQLiteDumps(t *testing.T) {
	ring.All(t)
	e, dir, shell := expressions(t, splits[0]), t.TempDir(), ring.Program(t, "sqlite3")
	at, ms := strings.ReplaceAll(e["kazahana_time"], ":id", "id"), strings.ReplaceAll(e["kazahana_time_ms"], ":id", "id")
	writeIn(t, dir, "uses", fmt.Sprintf(`CREATE TABLE orders (id INTEGER PRIMARY KEY, at TEXT AS (%[1]s), kept TEXT AS (%[1]s) STORED, CHECK (%[2]s > 0));
		CREATE INDEX by_at ON orders (%[1]s) WHERE %[2]s > 0;
		CREATE VIEW seen AS SELECT id, %[1]s AS at FROM orders;
		INSERT INTO orders VALUES (121037547114594304);`, at, ms))
	const script = `sqlite3 -bail from < uses; sqlite3 from .dump | sqlite3 -bail to; sqlite3 to 'SELECT at, kept, (SELECT at FROM seen) FROM orders; PRAGMA integrity_check'`
	cmd := exec.Command("sh", "-e", "-c", strings.ReplaceAll(script, "sqlite3", shell))
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	const time = "2026-12-01T00:00:00.001Z"
	if err != nil || string(out) != time+"|"+time+"|"+time+"\nok\n" {
		t.Errorf("%v: %s", err, out)
	}
}
