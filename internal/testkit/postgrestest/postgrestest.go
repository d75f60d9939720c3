// Package postgrestest starts private PostgreSQL servers for tests: real ones, on Unix
// sockets, that end with the test.
package postgrestest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	// Port is part of the socket's name; no server listens on it.
	Port     = "5432"
	database = "postgres"
	asUser   = "postgres"
)

// Server is a real server of a test.
type Server struct {
	tb   testing.TB
	Dir  string // of the socket; the data are in Dir/data
	Bin  string // the directory of its programs
	args []string
	cmd  *exec.Cmd
	host string // "": no TCP
	tcp  string // its port

	mu  sync.Mutex // guards raw
	raw *pgx.Conn  // for SQL; nil: not yet, or the server was killed
}

var shared struct {
	once   sync.Once
	server *Server
}

// Shared is one server for all tests of a package that need nothing of it but a
// schema. Run ends it.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	binary(tb, "initdb")
	shared.once.Do(func() {
		s := &Server{tb: tb, Dir: newDir(tb), args: []string{"-c", "fsync=off"}}
		s.initialise()
		s.Start()
		shared.server = s
	})
	if shared.server == nil {
		tb.Fatal("the shared server did not start")
	}
	return shared.server
}

// Run runs the tests of a package, ends what Shared started, and returns the exit
// code, which is not 0 where goroutines are left.
func Run(m *testing.M) int {
	return await.Run(m, func() {
		if shared.server != nil {
			shared.server.end(syscall.SIGQUIT)
			os.RemoveAll(shared.server.Dir)
		}
	})
}

// binary is where the program is; Debian keeps it out of the path. A test that starts
// a server belongs to the ring all.
func binary(tb testing.TB, name string) string {
	tb.Helper()
	ring.All(tb)
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
		return found[len(found)-1]
	}
	return ring.Program(tb, name)
}

// New starts a server that ends with the test. args are those of the program postgres.
func New(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return NewOf(tb, filepath.Dir(binary(tb, "initdb")), args...)
}

// NewOf is New with the programs of a directory.
func NewOf(tb testing.TB, bin string, args ...string) *Server {
	tb.Helper()
	s := &Server{tb: tb, Dir: newDir(tb), Bin: bin, args: args}
	s.initialise()
	s.endWithTest()
	s.Start()
	return s
}

func (s *Server) endWithTest() {
	s.tb.Cleanup(func() {
		s.end(syscall.SIGQUIT)
		os.RemoveAll(s.Dir)
	})
}

// newDir is a directory of the server's user.
func newDir(tb testing.TB) string {
	dir, err := ring.MemoryDir("kazahana-pg-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if account := ring.Account(tb, asUser); err == nil && account != nil {
		err = os.Chown(dir, int(account.Uid), int(account.Gid))
	}
	must.Succeed(tb, err)
	return dir
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	program := filepath.Join(s.Bin, name)
	if _, err := os.Stat(program); err != nil { // one of the system's, such as rm
		program = binary(s.tb, name)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = s.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = ring.DieWithParent(syscall.SIGQUIT, ring.Account(s.tb, asUser)) // a test binary that is killed cleans nothing up
	return cmd
}

func (s *Server) run(name string, args ...string) {
	s.tb.Helper()
	if out, err := s.command(name, args...).CombinedOutput(); err != nil {
		s.tb.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// Data is the directory of the data.
func (s *Server) Data() string { return filepath.Join(s.Dir, "data") }

func (s *Server) initialise() {
	s.tb.Helper()
	s.run("initdb", "-D", s.Data(), "-A", "trust", "-U", asUser, "--no-sync", "--no-locale", "-E", "UTF8")
}

// Start starts the server, also anew, and waits until it answers.
func (s *Server) Start() {
	s.tb.Helper()
	log, err := os.OpenFile(s.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must.Succeed(s.tb, err)
	defer log.Close()
	args := append([]string{
		"-D", s.Data(), "-k", s.Dir, "-p", s.port(), "-c", "listen_addresses=" + s.host, "-c", "max_connections=200",
		"-c", "shared_buffers=32MB", "-c", "max_wal_senders=4", "-c", "wal_level=replica",
	}, s.args...)
	await.Success(s.tb, "the server answers", func() error {
		if s.cmd == nil || s.cmd.ProcessState != nil { // sessions of a server that was killed may still keep its memory
			s.cmd = s.command("postgres", args...)
			s.cmd.Stdout, s.cmd.Stderr = log, log
			if err := s.cmd.Start(); err != nil {
				return err
			}
		}
		conn, err := s.connect()
		if err == nil {
			return conn.Close(context.Background())
		}
		if end := s.ended(); end != nil {
			text, _ := os.ReadFile(s.Log())
			return fmt.Errorf("%w: %s", end, text)
		}
		return err
	})
}

// ended reports, as an error, that the process is gone.
func (s *Server) ended() error {
	var status syscall.WaitStatus
	if pid, err := syscall.Wait4(s.cmd.Process.Pid, &status, syscall.WNOHANG, nil); err == nil && pid == s.cmd.Process.Pid {
		s.cmd = nil
		return fmt.Errorf("it ended with status %d", status.ExitStatus())
	}
	return nil
}

// Log is the file with what the server says.
func (s *Server) Log() string { return filepath.Join(s.Dir, "log") }

func (s *Server) end(sig syscall.Signal) {
	if s.cmd != nil {
		s.Thaw()
		s.forgetSession()
		_ = s.cmd.Process.Signal(sig)
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Stop shuts the server down; Kill ends it as a crash does.
func (s *Server) Stop() { s.end(syscall.SIGINT) }

// Kill ends the server and its sessions as a crash does.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Restart kills the server and starts it anew.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.Start()
}

// Freeze stops the server and its sessions, Thaw lets them go on.
func (s *Server) Freeze() { s.signalAll(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (s *Server) Thaw() { s.signalAll(syscall.SIGCONT) }

func (s *Server) signalAll(sig syscall.Signal) {
	pid := s.cmd.Process.Pid
	_ = s.cmd.Process.Signal(sig)
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for text := range strings.FieldsSeq(string(children)) {
		if child, err := strconv.Atoi(text); err == nil {
			_ = syscall.Kill(child, sig)
		}
	}
}

// Backup copies the running server's data to a new server, which is not started.
func (s *Server) Backup(args ...string) *Server {
	s.tb.Helper()
	to := &Server{tb: s.tb, Dir: newDir(s.tb), Bin: s.Bin, args: s.args}
	to.endWithTest()
	to.run("pg_basebackup", append([]string{"-h", s.Dir, "-p", Port, "-U", asUser, "-D", to.Data(), "-X", "stream", "-c", "fast", "--no-sync"}, args...)...)
	return to
}

// PutBack replaces the data of the server, which is stopped, by those of a backup.
func (s *Server) PutBack(backup *Server) {
	s.tb.Helper()
	s.run("rm", "-r", s.Data())
	s.run("cp", "-a", backup.Data(), s.Data())
}

// Standby starts a server that follows this one. name is its application_name.
func (s *Server) Standby(name string) *Server {
	s.tb.Helper()
	to := s.Backup("-R")
	info := fmt.Sprintf("host=%s port=%s user=%s application_name=%s", s.Dir, Port, asUser, name)
	to.args = append(to.args, "-c", "primary_conninfo="+info)
	to.Start()
	s.Caught(to)
	// The backup may have brought it all, before the standby is connected.
	await.Eventually(s.tb, "the standby follows", func() bool {
		return s.SQL("SELECT count(*) FROM pg_stat_replication WHERE application_name = '"+name+"'") == "1"
	})
	return to
}

// Caught waits until a standby has all that was written here.
func (s *Server) Caught(standby *Server) {
	s.tb.Helper()
	at := s.SQL("SELECT pg_current_wal_flush_lsn()")
	await.Success(s.tb, "the standby has it all", func() error {
		if got := standby.SQL("SELECT pg_last_wal_replay_lsn() >= '" + at + "'"); got != "true" {
			return fmt.Errorf("it has not replayed %s", at)
		}
		return nil
	})
}

// Promote makes a standby a primary.
func (s *Server) Promote() {
	s.tb.Helper()
	s.SQL("SELECT pg_promote(true, 120)")
}

func (s *Server) connect() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	return pgx.Connect(ctx, fmt.Sprintf("host=%s port=%s user=%s database=%s sslmode=disable", s.Dir, s.port(), asUser, database))
}

// SQL runs statements, and returns the last one's rows as text.
func (s *Server) SQL(statements ...string) string {
	s.tb.Helper()
	out, err := s.do(statements)
	must.Succeed(s.tb, err)
	return out
}

func (s *Server) do(statements []string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raw == nil || s.raw.IsClosed() {
		conn, err := s.connect()
		if err != nil {
			return "", err
		}
		s.raw = conn
	}
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	var out bytes.Buffer
	for _, text := range statements {
		out.Reset()
		rows, err := s.raw.Query(ctx, text, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return "", fmt.Errorf("%s: %w", text, err)
		}
		for rows.Next() {
			values, err := rows.Values()
			if err != nil {
				return "", fmt.Errorf("%s: %w", text, err)
			}
			fmt.Fprintln(&out, values...)
		}
		if rows.Close(); rows.Err() != nil {
			return "", fmt.Errorf("%s: %w", text, rows.Err())
		}
	}
	return strings.TrimSpace(out.String()), nil
}

// forgetSession ends the session of SQL.
func (s *Server) forgetSession() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raw != nil {
		_ = s.raw.Close(context.Background())
		s.raw = nil
	}
}

var schemas atomic.Int64

// URL is of the server, with a schema that no other has. more are further parameters.
func (s *Server) URL(more ...string) string {
	params := append([]string{"host=" + s.Dir, "port=" + Port, fmt.Sprintf("schema=t%d", schemas.Add(1))}, more...)
	return "postgres://" + asUser + "@/" + database + "?" + strings.Join(params, "&")
}

// Config is for the server, with a schema that no other has.
func (s *Server) Config(more ...string) postgresconn.Config {
	s.tb.Helper()
	cfg, _, err := postgresconn.ParseURL(s.URL(more...), nil)
	must.Succeed(s.tb, err)
	return cfg
}

// Clock makes a clock for the configuration's schema, and returns how to set it, in
// Unix ms.
func (s *Server) Clock(cfg *postgresconn.Config) func(unixMS int64) {
	s.tb.Helper()
	table := "public.clock_" + cfg.Schema
	s.SQL("CREATE TABLE "+table+" (ms bigint)", "INSERT INTO "+table+" VALUES (0)")
	cfg.Clock = "(SELECT ms FROM " + table + ")"
	return func(unixMS int64) {
		if _, err := s.do([]string{fmt.Sprintf("UPDATE %s SET ms = %d", table, unixMS)}); err != nil {
			panic(err) // the goroutine may be another one than the test's
		}
	}
}

// Listen has the server listen on TCP too, from the next start on.
func (s *Server) Listen(host, port string) { s.host, s.tcp = host, port }

func (s *Server) port() string {
	if s.tcp != "" {
		return s.tcp
	}
	return Port
}

// Own copies the files to where the server's user, and no other, can read them.
func (s *Server) Own(cert, key string) (string, string) {
	files := []string{cert, key}
	s.tb.Helper()
	for i, file := range files {
		b, err := os.ReadFile(file)
		must.Succeed(s.tb, err)
		files[i] = filepath.Join(s.Dir, filepath.Base(file))
		must.Succeed(s.tb, os.WriteFile(files[i], b, 0o600))
		if account := ring.Account(s.tb, asUser); account != nil {
			must.Succeed(s.tb, os.Chown(files[i], int(account.Uid), int(account.Gid)))
		}
	}
	return files[0], files[1]
}

// AddArgs adds arguments for the next start.
func (s *Server) AddArgs(args ...string) { s.args = append(s.args, args...) }

// Move is a URL of another server, for this one.
func (s *Server) Move(url string, from *Server) string {
	return strings.ReplaceAll(url, from.Dir, s.Dir)
}

// LeadTo has new sessions at the server's socket come to another server. Present sessions stay,
// also SQL's.
func (s *Server) LeadTo(other *Server) {
	s.tb.Helper()
	name := "/.s.PGSQL." + Port
	must.Succeed(s.tb, os.RemoveAll(s.Dir+name))
	must.Succeed(s.tb, os.Symlink(other.Dir+name, s.Dir+name))
}
