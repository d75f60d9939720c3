package sqltext

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// orms are the programs around the recipes of docs/databases.md that are run: they
// insert two rows and read them.
var orms = []struct{ name, packages, before, after string }{
	{"Drizzle", "drizzle-orm@0.45 pg@8", "", `
const db = require('drizzle-orm/node-postgres').drizzle(pool);
const rows = [await insert(db, 'a'), await insert(db, 'b')];
const read = await db.select().from(orders).orderBy(orders.id);
report(rows.map((row) => row.id), read.map((row) => row.id));`},
	{"TypeORM", "typeorm@1.1 pg@8 reflect-metadata", "require('reflect-metadata');", `
const { DataSource } = require('typeorm');
const source = await new DataSource({ type: 'postgres', ...connection, entities: [Order] }).initialize();
const rows = [await insert(source, 'a'), await insert(source, 'b')];
const read = await source.getRepository(Order).find({ order: { id: 'ASC' } });
report(rows.map((row) => row.id), read.map((row) => row.id));
await source.destroy();`},
	{"Sequelize", "sequelize@6.37 pg@8", "", `
const { Sequelize } = require('sequelize');
const sequelize = new Sequelize({ dialect: 'postgres', ...connection, username: 'postgres', logging: false });
const Order = define(sequelize);
const rows = [await Order.create({ customer: 'a' }), await Order.create({ customer: 'b' })];
const read = await Order.findAll({ order: ['id'] });
report(rows.map((row) => row.id), read.map((row) => row.id));
await sequelize.close();`},
}

const nodeProgram = `%BEFORE%
%RECIPE%
const connection = { host: process.env.PGHOST, port: 5432, user: 'postgres', username: 'postgres', database: 'postgres' };
const { Pool } = require('pg');
function report(made, read) {
  if (made.length !== 2 || !(BigInt(made[0]) < BigInt(made[1])) || String(made) !== String(read)) throw new Error(made + ' / ' + read);
  console.log('ok');
}
(async () => {
  const pool = new Pool(connection);
  await pool.query('DROP TABLE IF EXISTS orders');
  await pool.query('CREATE TABLE orders (id bigint PRIMARY KEY, customer text NOT NULL)');
  %AFTER%
  await pool.end();
  await ids.close();
})().catch((error) => { console.error(error); process.exit(1); });
`

// ormRecipe is what the page has below a name, in a language.
func ormRecipe(t *testing.T, name, language string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/databases.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)\\*\\*" + name + "\\*\\*\n\n```" + language + "\n(.*?)```").FindSubmatch(page)
	if m == nil {
		t.Fatalf("the page has no recipe for %s", name)
	}
	return string(m[1])
}

func runIn(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// ormSite has a database server and a daemon. The recipes come from package
// registries, so its tests belong to the deep ring.
func ormSite(t *testing.T) (root string, env []string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "kz-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary, socket := filepath.Join(dir, "kazahanad"), filepath.Join(dir, "s")
	runIn(t, root, nil, "go", "build", "-o", binary, "./cmd/kazahanad")
	ctx, stop := context.WithCancel(context.Background())
	daemon := exec.CommandContext(ctx, binary, "serve", "--config", "none", "--socket", socket, "--state-dir", filepath.Join(dir, "state"), "--live-dir", "none")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = daemon.Wait() })
	await.Eventually(t, "the daemon answers", func() bool {
		return exec.Command(binary, "health", "--quiet", "--socket", socket).Run() == nil
	})
	server := postgrestest.New(t, "-c", "fsync=off")
	return root, []string{"KAZAHANA_SOCKET=" + socket, "PGHOST=" + server.Dir}
}

func TestNodeORMs(t *testing.T) {
	ring.Deep(t)
	root, env := ormSite(t)
	node := filepath.Join(root, "clients", "node")
	runIn(t, node, nil, "scripts/test", "build")
	for _, orm := range orms {
		t.Run(orm.name, func(t *testing.T) {
			dir := t.TempDir()
			runIn(t, dir, nil, "npm", "init", "-y")
			runIn(t, dir, nil, "npm", append([]string{"install", "--silent", "--no-audit", "--no-fund"}, strings.Fields(orm.packages)...)...)
			if err := os.Symlink(node, filepath.Join(dir, "node_modules", "kazahana")); err != nil {
				t.Fatal(err)
			}
			program := strings.NewReplacer("%BEFORE%", orm.before, "%RECIPE%", ormRecipe(t, orm.name, "js"), "%AFTER%", orm.after).Replace(nodeProgram)
			if err := os.WriteFile(filepath.Join(dir, "program.js"), []byte(program), 0o600); err != nil {
				t.Fatal(err)
			}
			if out := runIn(t, dir, env, "node", "program.js"); !strings.HasSuffix(out, "ok\n") {
				t.Error(out)
			}
		})
	}
}

const gormProgram = `package main

import (
	"context"
	"fmt"
	"os"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

var ids *kazahana.Client

%RECIPE%

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	client, err := kazahana.New()
	must(err)
	ids = client
	db, err := gorm.Open(postgres.Open("host=" + os.Getenv("PGHOST") + " user=postgres dbname=postgres"))
	must(err)
	db = db.WithContext(context.Background())
	must(db.AutoMigrate(&Order{}))
	a, b := Order{Customer: "a"}, Order{Customer: "b"}
	must(db.Create(&a).Error)
	must(db.Create(&b).Error)
	var read []Order
	must(db.Order("id").Find(&read).Error)
	if a.ID == 0 || a.ID >= b.ID || len(read) != 2 || read[0] != a || read[1] != b {
		panic(fmt.Sprint(a, b, read))
	}
	fmt.Println("ok")
}
`

func TestGORM(t *testing.T) {
	ring.Deep(t)
	root, env := ormSite(t)
	dir := t.TempDir()
	program := strings.Replace(gormProgram, "%RECIPE%", ormRecipe(t, "GORM", "go"), 1)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	runIn(t, dir, nil, "go", "mod", "init", "example")
	runIn(t, dir, nil, "go", "mod", "edit", "-require=github.com/kazahana/kazahana@v0.0.0", "-replace=github.com/kazahana/kazahana="+root)
	runIn(t, dir, nil, "go", "get", "gorm.io/gorm@v1.31.1", "gorm.io/driver/postgres@v1.6.0")
	runIn(t, dir, nil, "go", "mod", "tidy")
	if out := runIn(t, dir, env, "go", "run", "."); !strings.HasSuffix(out, "ok\n") {
		t.Error(out)
	}
}
