// Package architecture holds the rooms of the repository apart: a test fails
// when a package gains an import that it must not have.
package architecture

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

const (
	module = "github.com/kazahana/kazahana/"
	root   = "../.."
)

// own says which packages of this module each room may import; forbidden and permitted, which others.
// A room that is not listed fails the test: its author writes here which packages it may know.
var own = map[string][]string{
	"cmd/kazahanad":                          {"*"},
	"clients/go":                             {"clients/go/internal/boottime", "clients/go/internal/msgpack"},
	"clients/go/internal/boottime":           {},
	"clients/go/internal/msgpack":            {},
	"clients/go/internal/clienttest":         {"clients/go/internal/msgpack"},
	"clients/go/internal/twoway":             {"clients/go", "clients/go/internal/msgpack"},
	"clients/go/kazahanatest":                {"clients/go", "clients/go/internal/twoway"},
	"clients/go/placement":                   {"clients/go", "clients/go/internal/boottime", "clients/go/internal/twoway"},
	"clients/go/placement/placementtest":     {"clients/go", "clients/go/kazahanatest", "clients/go/placement"},
	"clients/go/programs/asker":              {"clients/go"},
	"clients/go/programs/bench":              {"clients/go"},
	"clients/go/programs/load":               {"clients/go"},
	"embed":                                  {"internal/clock", "internal/generator", "internal/issuer", "internal/keeper", "internal/operator/config", "internal/operator/tracing", "internal/record", "internal/sequence", "internal/state"},
	"bench":                                  {"bench/clients", "bench/ids", "bench/leases", "bench/locks", "bench/process"},
	"bench/suite":                            {"bench/process", "bench/report"},
	"bench/stores":                           {"bench/process"},
	"bench/process":                          {},
	"bench/report":                           {},
	"bench/ids":                              {"*"},
	"bench/leases":                           {"bench/process", "bench/report", "bench/stores", "bench/suite", "internal/leaseapi", "internal/provider"},
	"bench/clients":                          {"bench/process", "bench/report", "bench/suite"},
	"bench/locks":                            {"bench/process", "bench/report", "bench/stores", "bench/suite", "internal/clock", "internal/lock", "internal/conn/redisconn", "internal/sequence", "internal/backend", "internal/wire"},
	"examples/fenced-store":                  {},
	"internal/architecture":                  {},
	"internal/snowflake":                     {},
	"internal/sqltext":                       {"internal/snowflake"},
	"internal/clock":                         {},
	"internal/wire":                          {},
	"internal/folder":                        {},
	"internal/unixsock":                      {"internal/folder"},
	"internal/eventloop":                     {},
	"internal/operator/systemd":              {"internal/unixsock"},
	"internal/load":                          {"internal/wire"},
	"internal/operator/logqueue":             {},
	"internal/operator/metrics":              {"internal/wire"},
	"internal/operator/memlimit":             {},
	"internal/operator/admin":                {"internal/operator/limitlistener", "internal/operator/refusals"},
	"internal/operator/limitlistener":        {},
	"internal/operator/refusals":             {},
	"internal/operator/statuspage":           {},
	"internal/testkit":                       {"*"},
	"internal/testkit/ring":                  {},
	"internal/testkit/must":                  {},
	"internal/testkit/await":                 {},
	"internal/testkit/certtest":              {"internal/testkit/must"},
	"internal/testkit/idletest":              {},
	"internal/testkit/proxytest":             {"internal/testkit/await", "internal/testkit/must", "internal/testkit/ring"},
	"internal/testkit/browser":               {"internal/testkit/await", "internal/testkit/must", "internal/testkit/ring"},
	"internal/address":                       {},
	"internal/caller":                        {"internal/address", "internal/wire"},
	"internal/operator/manual":               {"internal/operator/config"},
	"packaging/licences":                     {},
	"packaging/sample":                       {"internal/operator/config"},
	"packaging/validate/apiserver/server":    {},
	"internal/operator/config":               {"internal/didyoumean", "internal/address", "internal/keyname", "internal/snowflake"},
	"internal/conn/connurl":                  {},
	"internal/conn/sqlitefile":               {"internal/conn/connurl", "internal/folder"},
	"internal/lazy":                          {},
	"internal/testkit/disktest":              {"internal/testkit/await", "internal/testkit/must", "internal/testkit/ring"},
	"internal/conn/redisconn":                {"internal/conn/connurl"},
	"internal/testkit/sqlitetest":            {"internal/conn/sqlitefile", "internal/record/sqlite"},
	"internal/testkit/redistest":             {"internal/conn/redisconn", "internal/testkit/await", "internal/testkit/must", "internal/testkit/ring"},
	"internal/conn/etcdconn":                 {"internal/conn/connurl"},
	"internal/testkit/etcdtest":              {"internal/conn/etcdconn", "internal/testkit/await", "internal/testkit/must", "internal/testkit/ring"},
	"internal/conn/postgresconn":             {"internal/conn/connurl"},
	"internal/testkit/postgrestest":          {"internal/conn/postgresconn", "internal/testkit/await", "internal/testkit/must", "internal/testkit/ring"},
	"internal/conn/kubeconn":                 {"internal/conn/connurl", "internal/lazy"},
	"internal/testkit/kubetest":              {"internal/testkit/await", "internal/testkit/must", "internal/testkit/ring"},
	"internal/problem":                       {},
	"internal/conn/httpconn":                 {"internal/conn/connurl", "internal/problem"},
	"internal/didyoumean":                    {},
	"internal/record":                        {},
	"internal/record/recordhttp":             {"internal/conn/httpconn", "internal/problem", "internal/record"},
	"internal/record/memory":                 {"internal/record"},
	"internal/record/sqlite":                 {"internal/record", "internal/conn/sqlitefile"},
	"internal/record/etcd":                   {"internal/clock", "internal/conn/etcdconn", "internal/record", "internal/record/turns"},
	"internal/record/postgres":               {"internal/conn/connurl", "internal/conn/postgresconn", "internal/record", "internal/record/turns"},
	"internal/record/redis":                  {"internal/clock", "internal/conn/redisconn", "internal/record", "internal/record/turns"},
	"internal/record/turns":                  {"internal/record"},
	"internal/record/bounds":                 {"internal/record"},
	"internal/record/recordtest":             {"internal/record", "internal/testkit/await", "internal/testkit/must"},
	"internal/keyname":                       {},
	"internal/sequence":                      {"internal/keyname", "internal/record", "internal/record/bounds", "internal/storecall"},
	"internal/sequence/http":                 {"internal/conn/httpconn", "internal/problem", "internal/record/recordhttp", "internal/sequence"},
	"internal/sequence/sequencetest":         {"internal/sequence"},
	"internal/lock":                          {"internal/keyname", "internal/record", "internal/storecall"},
	"internal/storecall":                     {},
	"internal/placement":                     {"internal/keyname"},
	"internal/placement/driver":              {"internal/lock", "internal/placement", "internal/placement/storage", "internal/record"},
	"internal/placement/storage":             {"internal/placement", "internal/record"},
	"internal/placement/storage/http":        {"internal/conn/httpconn", "internal/placement", "internal/placement/storage", "internal/problem", "internal/record/recordhttp"},
	"internal/placement/storage/storagetest": {"internal/placement", "internal/placement/storage"},
	"internal/lock/locktest":                 {"internal/lock"},
	"internal/lock/http":                     {"internal/conn/httpconn", "internal/lock", "internal/problem", "internal/record", "internal/record/recordhttp"},
	"internal/operator/events":               {"internal/lock", "internal/sequence", "internal/storecall"},
	"internal/testkit/otlptest":              {},
	"internal/operator/tracing":              {"internal/conn/httpconn", "internal/lease", "internal/lock", "internal/provider", "internal/sequence", "internal/storecall"},
	"internal/lease":                         {"internal/snowflake"},
	"internal/generator":                     {"internal/lease", "internal/snowflake"},
	"internal/state":                         {"internal/folder", "internal/lease", "internal/snowflake"},
	"internal/provider":                      {"internal/conn/connurl", "internal/lease", "internal/snowflake"},
	"internal/provider/pool":                 {"internal/lease", "internal/provider", "internal/record", "internal/snowflake"},
	"internal/provider/static":               {"internal/conn/connurl", "internal/lease", "internal/provider", "internal/snowflake"},
	"internal/provider/kubernetes":           {"internal/conn/kubeconn", "internal/lease", "internal/provider", "internal/snowflake"},
	"internal/provider/httplease":            {"internal/conn/httpconn", "internal/lease", "internal/leaseapi", "internal/problem", "internal/provider"},
	"internal/leaseapi":                      {"internal/lease", "internal/problem", "internal/provider"},
	"internal/leaseserver":                   {"internal/keyname", "internal/lease", "internal/leaseapi", "internal/lock", "internal/lock/http", "internal/didyoumean", "internal/operator/admin", "internal/operator/limitlistener", "internal/operator/metrics", "internal/operator/refusals", "internal/operator/statuspage", "internal/placement", "internal/placement/storage", "internal/placement/storage/http", "internal/problem", "internal/provider", "internal/record", "internal/record/bounds", "internal/record/recordhttp", "internal/sequence", "internal/sequence/http", "internal/snowflake"},
	"internal/provider/providertest":         {"internal/lease", "internal/provider", "internal/provider/pool", "internal/record/memory", "internal/snowflake", "internal/testkit/await", "internal/testkit/must", "internal/testkit/proxytest", "internal/testkit/ring"},
	"internal/backend":                       {"internal/conn/connurl", "internal/conn/etcdconn", "internal/conn/httpconn", "internal/conn/kubeconn", "internal/conn/postgresconn", "internal/conn/redisconn", "internal/conn/sqlitefile", "internal/lazy", "internal/lease", "internal/lock", "internal/lock/http", "internal/placement/storage", "internal/placement/storage/http", "internal/provider", "internal/provider/httplease", "internal/provider/kubernetes", "internal/provider/pool", "internal/provider/static", "internal/record", "internal/record/bounds", "internal/record/etcd", "internal/record/memory", "internal/record/postgres", "internal/record/redis", "internal/record/sqlite", "internal/sequence", "internal/sequence/http", "internal/unixsock"},
	"internal/runner":                        {"internal/caller", "internal/clock", "internal/lease", "internal/lock", "internal/provider", "internal/snowflake", "internal/wire"},
	"internal/runner/child":                  {"internal/runner"},
	"internal/keeper":                        {"internal/lease", "internal/provider", "internal/snowflake", "internal/state"},
	"internal/issuer":                        {"internal/clock", "internal/generator", "internal/keeper", "internal/lease", "internal/lock", "internal/operator/config", "internal/operator/events", "internal/operator/tracing", "internal/placement/storage", "internal/provider", "internal/backend", "internal/record/bounds", "internal/sequence", "internal/snowflake", "internal/state"},
	"internal/daemon":                        {"internal/clock", "internal/operator/config", "internal/eventloop", "internal/generator", "internal/issuer", "internal/lock", "internal/operator/limitlistener", "internal/operator/metrics", "internal/operator/refusals", "internal/placement", "internal/placement/driver", "internal/placement/storage", "internal/record", "internal/record/bounds", "internal/sequence", "internal/snowflake", "internal/state", "internal/unixsock", "internal/wire"},
	"internal/door/memcached":                {"internal/daemon", "internal/generator", "internal/issuer", "internal/snowflake", "internal/wire"},
	"internal/door/doortest":                 {"internal/clock", "internal/daemon", "internal/issuer", "internal/operator/config", "internal/operator/metrics", "internal/backend", "internal/snowflake", "internal/state", "internal/testkit/await", "internal/testkit/must", "internal/testkit/ring", "internal/unixsock"},
	"internal/door/http":                     {"internal/daemon", "internal/generator", "internal/issuer", "internal/operator/admin", "internal/problem", "internal/snowflake", "internal/wire"},
	"test/model":                             {},
	"test/mutation":                          {},
	"test/proof":                             {},
	"test/trace":                             {"internal/snowflake"},
	"internal/operator/fences":               {"internal/backend", "internal/issuer", "internal/operator/metrics", "internal/provider", "internal/snowflake"},
	"internal/operator/doctor":               {"internal/conn/connurl", "internal/conn/httpconn", "internal/problem"},
	"test/capacity":                          {},
}

var forbidden = map[string][]string{
	"internal/snowflake":         {"context", "net", "os", "io", "sync"},
	"internal/generator":         {"net", "os", "io", "go.uber.org/zap"},
	"internal/lease":             {"context", "net", "os", "time", "sync"},
	"internal/wire":              {"net", "os", "go.uber.org/zap"},
	"internal/clock":             {"net", "os"},
	"internal/eventloop":         {"net", "os", "context", "go.uber.org/zap"},
	"internal/address":           {"net/http", "database/sql"},
	"internal/operator/config":   {"net", "database/sql"},
	"internal/keeper":            {"net", "os", "database/sql"},
	"internal/daemon":            {"database/sql", "net/http"},
	"internal/runner":            {"net", "os", "os/exec", "database/sql", "go.uber.org/zap"},
	"internal/lock":              {"net", "os", "database/sql", "go.uber.org/zap"},
	"internal/operator/logqueue": {"net", "os", "go.uber.org/zap"},
	"internal/operator/metrics":  {"net", "os", "net/http"},
	"internal/leaseapi":          {"net", "os", "go.uber.org/zap"},
	"internal/problem":           {"net", "os", "go.uber.org/zap"},
	"internal/provider":          {"net", "os", "database/sql", "go.uber.org/zap"},
	"internal/provider/pool":     {"net", "os", "database/sql", "go.uber.org/zap"},
	"internal/record":            {"net", "os", "sync", "time", "database/sql", "go.uber.org/zap"},
	"internal/sequence":          {"net", "os", "database/sql", "go.uber.org/zap"},
}

// permitted is all that a room may import from outside: every other package fails, also a package that does
// not exist yet. The core of placement does no I/O, and what it imports does none either.
var permitted = map[string][]string{
	"internal/keyname":   {"crypto/rand", "crypto/sha256", "encoding/base64", "encoding/hex", "fmt", "unicode", "unicode/utf8"},
	"internal/placement": {"cmp", "errors", "fmt", "slices", "strings", "time", "unicode/utf8", "github.com/cespare/xxhash/v2"},
}

// The Go client is a module of its own. The daemon's module does without it, so that a build
// needs no release of the client, and no workspace; and so the other way round.
const client = "clients/go"

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	ofPlacement, elsewhere := map[string]string{}, map[string]bool{} // libraries
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		room := filepath.ToSlash(rel)
		seen[room] = true
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			check(t, room, path, name) // seeds 004-5 and 004-8
			switch host, _, _ := strings.Cut(name, "/"); {
			case !strings.Contains(host, ".") || strings.HasPrefix(name, module) || strings.HasSuffix(room, "test"):
			case strings.HasPrefix(room+"/", "internal/placement/"):
				ofPlacement[name] = path
			case strings.HasPrefix(room, "internal/"):
				elsewhere[name] = true
			}
		}
		return nil
	})
	must.Succeed(t, err)
	for room := range seen {
		if _, ok := own[room]; !ok {
			t.Errorf("%s is a new room: say here what it may know", room)
		}
	}
	for name, path := range ofPlacement { // seed 004-69
		if !elsewhere[name] {
			t.Errorf("%s imports %s, which nothing but placement needs", path, name)
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d rooms found: the walk is wrong", len(seen))
	}
}

func check(t *testing.T, room, path, imported string) {
	t.Helper()
	if inner, ok := strings.CutPrefix(imported, module); ok {
		if ofClient := func(room string) bool { return strings.HasPrefix(room+"/", client+"/") }; ofClient(room) != ofClient(inner) {
			t.Errorf("%s imports %s, which belongs to another module", path, inner)
		}
		allowed := own[room]
		if !slices.Contains(allowed, "*") && !slices.Contains(allowed, inner) {
			t.Errorf("%s imports %s, which %s must not know", path, inner, room)
		}
		return
	}
	if list, limited := permitted[room]; limited && !slices.Contains(list, imported) { // seeds 004-5 and 004-8
		t.Errorf("%s imports %s, which is not in the list of %s", path, imported, room)
	}
	if slices.Contains(forbidden[room], imported) {
		t.Errorf("%s imports %s, which %s must do without", path, imported, room)
	}
}
