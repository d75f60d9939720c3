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
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// orms are programs that do as docs/databases.md says: they insert two rows and read them.
var orms = []struct{ name, packages, recipe, after string }{
	{"Prisma", "prisma@7 @prisma/client@7 @prisma/adapter-pg@7 pg@8", `
const { PrismaPg } = require('@prisma/adapter-pg');
const { PrismaClient } = require('@prisma/client');
const { Client } = require('kazahana');

const ids = new Client();
const prisma = new PrismaClient({ adapter: new PrismaPg(process.env.DATABASE_URL) });
const insert = async (customer) =>
  prisma.order.create({ data: { id: await ids.nextId(), customer } });`, `
const rows = [await insert('a'), await insert('b')];
const read = await prisma.order.findMany({ orderBy: { id: 'asc' } });
report(rows.map((row) => row.id), read.map((row) => row.id));
await prisma.$disconnect();`},
	{"Drizzle", "drizzle-orm@0.45 pg@8", `
const { bigint, pgTable, text } = require('drizzle-orm/pg-core');
const { Client } = require('kazahana');

const ids = new Client();
const orders = pgTable('orders', {
  id: bigint('id', { mode: 'bigint' }).primaryKey(),
  customer: text('customer').notNull(),
});
const insert = async (db, customer) =>
  (await db.insert(orders).values({ id: await ids.nextId(), customer }).returning())[0];`, `
const db = require('drizzle-orm/node-postgres').drizzle(pool);
const rows = [await insert(db, 'a'), await insert(db, 'b')];
const read = await db.select().from(orders).orderBy(orders.id);
report(rows.map((row) => row.id), read.map((row) => row.id));`},
	{"TypeORM", "typeorm@1.1 pg@8 reflect-metadata", `
require('reflect-metadata');
const { EntitySchema } = require('typeorm');
const { Client } = require('kazahana');

const ids = new Client();
const Order = new EntitySchema({
  name: 'Order',
  tableName: 'orders',
  columns: { id: { type: 'bigint', primary: true }, customer: { type: 'text' } },
});
const insert = async (source, customer) =>
  source.getRepository(Order).save({ id: await ids.nextId({ format: 'string' }), customer });`, `
const { DataSource } = require('typeorm');
const source = await new DataSource({ type: 'postgres', ...connection, entities: [Order] }).initialize();
const rows = [await insert(source, 'a'), await insert(source, 'b')];
const read = await source.getRepository(Order).find({ order: { id: 'ASC' } });
report(rows.map((row) => row.id), read.map((row) => row.id));
await source.destroy();`},
	{"Sequelize", "sequelize@6.37 pg@8", `
const { DataTypes } = require('sequelize');
const { Client } = require('kazahana');

const ids = new Client();
const define = (sequelize) => {
  const Order = sequelize.define('Order', {
    id: { type: DataTypes.BIGINT, primaryKey: true },
    customer: { type: DataTypes.TEXT, allowNull: false },
  }, { tableName: 'orders', timestamps: false });
  Order.beforeValidate(async (order) => {
    order.id ??= await ids.nextId({ format: 'string' });
  });
  return Order;
};`, `
const { Sequelize } = require('sequelize');
const sequelize = new Sequelize({ dialect: 'postgres', ...connection, username: 'postgres', logging: false });
const Order = define(sequelize);
const rows = [await Order.create({ customer: 'a' }), await Order.create({ customer: 'b' })];
const read = await Order.findAll({ order: ['id'] });
report(rows.map((row) => row.id), read.map((row) => row.id));
await sequelize.close();`},
}

const prismaSchema = `generator client {
  provider = "prisma-client-js"
}
datasource db {
  provider = "postgresql"
}
model Order {
  id       BigInt @id
  customer String
  @@map("orders")
}
`

const nodeProgram = `%RECIPE%
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
	page, err := os.ReadFile("../../docs/databases.md")
	must.Succeed(t, err)
	m := regexp.MustCompile("(?s)\\*\\*" + name + "\\*\\*[^\n]*\n\n```" + language + "\n(.*?)```").FindSubmatch(page)
	if m == nil {
		t.Fatalf("the page has no recipe for %s", name)
	}
	return string(m[1])
}

// ormShows checks that the page's table has the program's code for a name.
func ormShows(t *testing.T, name, program string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/databases.md")
	must.Succeed(t, err)
	program = strings.Join(strings.Fields(program), " ")
	row := regexp.MustCompile(`(?m)^\| ` + name + ` .*$`).Find(page)
	shown := regexp.MustCompile("`([^`]+)`").FindAllSubmatch(row, -1)
	if len(shown) < 2 {
		t.Fatalf("the page has no row for %s", name)
	}
	for _, m := range shown {
		if !strings.Contains(program, string(m[1])) {
			t.Errorf("the page shows %s, which is not run", m[1])
		}
	}
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

func writeIn(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	must.Succeed(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
}

// goModule makes a module that uses this tree.
func goModule(t *testing.T, dir, root string) {
	t.Helper()
	const client = "github.com/kazahana/kazahana/clients/go"
	runIn(t, dir, nil, "go", "mod", "init", "example")
	runIn(t, dir, nil, "go", "mod", "edit", "-require="+client+"@v0.0.0", "-replace="+client+"="+filepath.Join(root, "clients", "go"))
}

// ormSite has a database server and a daemon. The recipes come from package
// registries, so its tests belong to the deep ring.
func ormSite(t *testing.T) (root string, env []string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	must.Succeed(t, err)
	dir := ring.Dir(t)
	binary, socket := filepath.Join(dir, "kazahanad"), filepath.Join(dir, "s")
	runIn(t, root, nil, "go", "build", "-tags", "grpcnotrace,nopgxregisterdefaulttypes", "-o", binary, "./cmd/kazahanad")
	ctx, stop := context.WithCancel(context.Background())
	daemon := exec.CommandContext(ctx, binary, "serve", "--config", "none", "--socket", socket, "--state-dir", filepath.Join(dir, "state"), "--live-dir", "none")
	must.Succeed(t, daemon.Start())
	t.Cleanup(func() { stop(); _ = daemon.Wait() })
	await.Eventually(t, "the daemon answers", func() bool {
		return exec.Command(binary, "health", "--quiet", "--socket", socket).Run() == nil
	})
	server := postgrestest.New(t, "-c", "fsync=off")
	return root, []string{
		"KAZAHANA_SOCKET=" + socket, "PGHOST=" + server.Dir, "PGUSER=postgres",
		"DATABASE_URL=postgresql://postgres@localhost/postgres?host=" + server.Dir,
	}
}

func TestNodeORMs(t *testing.T) {
	ring.Deep(t)
	root, env := ormSite(t)
	node := filepath.Join(root, "clients", "node")
	runIn(t, node, nil, "scripts/test", "build")
	for _, orm := range orms {
		t.Run(orm.name, func(t *testing.T) {
			ormShows(t, orm.name, prismaSchema+orm.recipe)
			dir := t.TempDir()
			runIn(t, dir, nil, "npm", "init", "-y")
			// Scripts of packages may download from elsewhere, as Prisma's do.
			runIn(t, dir, nil, "npm", append([]string{"install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"}, strings.Fields(orm.packages)...)...)
			if orm.name == "Prisma" {
				writeIn(t, dir, "schema.prisma", prismaSchema)
				// Only migrations use the engine that it would download.
				runIn(t, dir, []string{"PRISMA_SCHEMA_ENGINE_BINARY=/bin/true", "CHECKPOINT_DISABLE=1"}, "npx", "prisma", "generate", "--schema", "schema.prisma")
			}
			must.Succeed(t, os.Symlink(node, filepath.Join(dir, "node_modules", "kazahana")))
			program := strings.NewReplacer("%RECIPE%", orm.recipe, "%AFTER%", orm.after).Replace(nodeProgram)
			writeIn(t, dir, "program.js", program)
			if out := runIn(t, dir, env, "node", "program.js"); !strings.HasSuffix(out, "ok\n") {
				t.Error(out)
			}
		})
	}
}

// mysql2Program reads an ID with the options that the page gives.
const mysql2Program = `const mysql = require('mysql2/promise');
const { bigint, mysqlTable } = require('drizzle-orm/mysql-core');
(async () => {
  const pool = mysql.createPool({ socketPath: process.argv[2], user: 'root', database: 'test', %OPTIONS% });
  const ids = mysqlTable('ids', { id: bigint('id', { mode: 'bigint' }).primaryKey() });
  await pool.query('CREATE TABLE ids (id BIGINT PRIMARY KEY)');
  const db = require('drizzle-orm/mysql2').drizzle(pool);
  await db.insert(ids).values({ id: 120340656182453477n });
  console.log((await pool.query('SELECT id FROM ids'))[0][0].id, (await db.select().from(ids))[0].id);
  await pool.end();
})().catch((error) => { console.error(error); process.exit(1); });
`

func TestMySQL2(t *testing.T) {
	ring.Deep(t)
	page, err := os.ReadFile("../../docs/databases.md")
	must.Succeed(t, err)
	options := regexp.MustCompile("`(supportBigNumbers[^`]*)`").FindSubmatch(page)
	if options == nil {
		t.Fatal("the page has no options for mysql2")
	}
	socket, dir := mariadbDB(t)(t, "SELECT @@socket;")[0][0], t.TempDir()
	runIn(t, dir, nil, "npm", "init", "-y")
	runIn(t, dir, nil, "npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "mysql2@3", "drizzle-orm@0.45")
	writeIn(t, dir, "program.js", strings.Replace(mysql2Program, "%OPTIONS%", string(options[1]), 1))
	if out := runIn(t, dir, nil, "node", "program.js", socket); out != "120340656182453477 120340656182453477n\n" {
		t.Error(out)
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

type Order struct {
	ID       kazahana.ID ` + "`" + `gorm:"primaryKey;autoIncrement:false"` + "`" + `
	Customer string
}

func (o *Order) BeforeCreate(tx *gorm.DB) (err error) {
	if o.ID == 0 {
		o.ID, err = ids.NextID(tx.Statement.Context) // ids, err := kazahana.New()
	}
	return err
}

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
	program := gormProgram
	ormShows(t, "GORM", program)
	writeIn(t, dir, "main.go", program)
	goModule(t, dir, root)
	runIn(t, dir, nil, "go", "get", "gorm.io/gorm@v1.31.1", "gorm.io/driver/postgres@v1.6.0")
	runIn(t, dir, nil, "go", "mod", "tidy")
	if out := runIn(t, dir, env, "go", "run", "."); !strings.HasSuffix(out, "ok\n") {
		t.Error(out)
	}
}

const entSchema = `package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

type Order struct{ ent.Schema }

func (Order) Fields() []ent.Field {
	return []ent.Field{field.Int64("id"), field.String("customer")}
}
`

const entProgram = `package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"example/ent"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

func useIDs(client *ent.Client, ids *kazahana.Client) {
	client.Use(func(next ent.Mutator) ent.Mutator {
		return ent.MutateFunc(func(ctx context.Context, m ent.Mutation) (ent.Value, error) {
			if row, ok := m.(interface{ SetID(int64) }); ok && m.Op().Is(ent.OpCreate) {
				id, err := ids.NextID(ctx)
				if err != nil {
					return nil, err
				}
				row.SetID(int64(id))
			}
			return next.Mutate(ctx, m)
		})
	})
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ids, err := kazahana.New()
	must(err)
	db, err := sql.Open("pgx", "host="+os.Getenv("PGHOST")+" user=postgres dbname=postgres")
	must(err)
	ctx, client := context.Background(), ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, db)))
	must(client.Schema.Create(ctx))
	useIDs(client, ids)
	a, err := client.Order.Create().SetCustomer("a").Save(ctx)
	must(err)
	b, err := client.Order.Create().SetCustomer("b").Save(ctx)
	must(err)
	read, err := client.Order.Query().Order(ent.Asc("id")).IDs(ctx)
	must(err)
	if a.ID < 1<<40 || a.ID >= b.ID || len(read) != 2 || read[0] != a.ID || read[1] != b.ID {
		panic(fmt.Sprint(a, b, read))
	}
	fmt.Println("ok")
}
`

func TestEnt(t *testing.T) {
	ring.Deep(t)
	root, env := ormSite(t)
	dir := t.TempDir()
	goModule(t, dir, root)
	writeIn(t, dir, "ent/schema/order.go", entSchema)
	runIn(t, dir, nil, "go", "get", "entgo.io/ent@v0.14.5", "entgo.io/ent/cmd/ent@v0.14.5")
	runIn(t, dir, []string{"GOFLAGS=-mod=mod"}, "go", "run", "entgo.io/ent/cmd/ent", "generate", "./ent/schema")
	ormShows(t, "ent", entSchema+entProgram)
	writeIn(t, dir, "main.go", entProgram)
	runIn(t, dir, nil, "go", "mod", "tidy")
	if out := runIn(t, dir, env, "go", "run", "."); !strings.HasSuffix(out, "ok\n") {
		t.Error(out)
	}
}

const railsProgram = `require 'active_record'
%RECIPE%
ActiveRecord::Base.establish_connection(adapter: 'postgresql', host: ENV['PGHOST'], username: 'postgres', database: 'postgres')
ActiveRecord::Migration.verbose = false
ActiveRecord::Schema.define { create_table(:orders, id: :bigint, default: nil) { |t| t.text :customer } }
class Order < ApplicationRecord; end
made = %w[a b].map { |customer| Order.create!(customer: customer).id }
raise made.to_s unless made[0] > 1 << 40 && made[0] < made[1] && Order.order(:id).ids == made
puts 'ok'
`

func TestActiveRecord(t *testing.T) {
	ring.Deep(t)
	_, env := ormSite(t)
	dir := t.TempDir()
	writeIn(t, dir, "program.rb", strings.Replace(railsProgram, "%RECIPE%", ormRecipe(t, "ActiveRecord", "ruby"), 1))
	if out := runIn(t, dir, env, ring.Program(t, "ruby"), "program.rb"); !strings.HasSuffix(out, "ok\n") {
		t.Error(out)
	}
}
