// Package redistest starts private Redis servers for tests: real ones, on Unix
// sockets or free ports, that end with the test.
package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Server is a real redis-server or redis-sentinel of a test.
type Server struct {
	tb   testing.TB
	Dir  string
	Sock string // of the Unix socket
	Port int    // 0: none
	bin  string
	args []string
	cmd  *exec.Cmd
}

var shared struct {
	once   sync.Once
	server *Server
}

// Shared is one server for all tests of a package that need nothing of it but
// keys. Run ends it.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	Binary(tb, "redis-server")
	shared.once.Do(func() {
		dir, err := ring.MemoryDir("kazahana-redis-")
		must.Succeed(tb, err)
		shared.server = launch(tb, dir, "shared")
	})
	return shared.server
}

// Run runs the tests of a package, ends what Shared started, and returns the
// exit code, which is not 0 where goroutines are left.
func Run(m *testing.M) int {
	return await.Run(m, func() {
		if shared.server != nil {
			shared.server.Kill()
			os.RemoveAll(shared.server.Dir)
		}
	})
}

// Binary is where the program of a server is. A test that starts one belongs to the
// ring all.
func Binary(tb testing.TB, name string) string {
	tb.Helper()
	ring.All(tb)
	return ring.Program(tb, name)
}

// New starts a server that ends with the test.
func New(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := launch(tb, ring.Dir(tb), "s", args...)
	tb.Cleanup(s.Kill)
	return s
}

// NewWithPort has a TCP port too.
func NewWithPort(tb testing.TB, args ...string) *Server {
	tb.Helper()
	port := ring.FreePort(tb)
	s := New(tb, append([]string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1"}, args...)...)
	s.Port = port
	return s
}

// Address is host:port of a server with a port.
func (s *Server) Address() string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

// URL returns the URL of a provider or store in a server with a port, to which parameters can be
// added.
func (s *Server) URL() string { return "redis://" + s.Address() + "/0?" }

func launch(tb testing.TB, dir, name string, args ...string) *Server {
	tb.Helper()
	s := &Server{tb: tb, Dir: dir, Sock: filepath.Join(dir, name+".sock"), bin: Binary(tb, "redis-server")}
	s.args = append([]string{"--port", "0", "--unixsocket", s.Sock, "--dir", dir, "--save", "", "--appendonly", "no",
		"--daemonize", "no", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, args...)
	s.Start()
	return s
}

// Start starts the server, also anew, and waits until it answers.
func (s *Server) Start() {
	s.tb.Helper()
	log, err := os.OpenFile(s.Sock+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must.Succeed(s.tb, err)
	defer log.Close()
	s.cmd = exec.Command(s.bin, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil) // a test binary that is killed cleans nothing up
	must.Succeed(s.tb, s.cmd.Start())
	await.Success(s.tb, "the server answers", func() error {
		c, err := net.Dial("unix", s.Sock)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte("PING\r\n")); err != nil {
			return err
		}
		b := make([]byte, 64)
		n, err := c.Read(b)
		if text := string(b[:n]); err == nil && !strings.HasPrefix(text, "+PONG") && !strings.HasPrefix(text, "-NOAUTH") {
			err = errors.New(text)
		}
		return err
	})
}

// Kill ends the server as a crash does.
func (s *Server) Kill() {
	if s.cmd != nil {
		s.Signal(syscall.SIGCONT)
		s.Signal(syscall.SIGKILL)
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Restart kills the server and starts it anew: data that was not on its disk is forgotten.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.Start()
}

// Signal sends the process a signal.
func (s *Server) Signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

// Raw is a client for what the provider does not do.
func (s *Server) Raw() *redis.Client {
	redisconn.Silence()
	return redis.NewClient(&redis.Options{Network: "unix", Addr: s.Sock, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
}

// Do runs one command and returns its answer as text.
func (s *Server) Do(tb testing.TB, args ...any) string {
	tb.Helper()
	c := s.Raw()
	defer c.Close()
	answer, err := c.Do(context.Background(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		tb.Fatalf("%v: %v", args, err)
	}
	return fmt.Sprint(answer)
}

// SetUser gives a user these rights, and no others.
func (s *Server) SetUser(tb testing.TB, name string, rights []string) {
	tb.Helper()
	args := []any{"ACL", "SETUSER", name, "reset"}
	for _, r := range rights {
		args = append(args, r)
	}
	s.Do(tb, args...)
}

// Follow makes the server a replica of another, and waits until it has its data.
func (s *Server) Follow(primary *Server) {
	s.tb.Helper()
	s.Do(s.tb, "REPLICAOF", "127.0.0.1", primary.Port)
	await.Success(s.tb, "the replica is in step", func() error {
		return cmp.Or(s.replication(s.tb, "master_link_status:up"), primary.replication(s.tb, "state=online"))
	})
	InStep(s.tb, primary)
}

// Pair starts a primary and its replica.
func Pair(tb testing.TB, args ...string) (primary, replica *Server) {
	tb.Helper()
	primary, replica = NewWithPort(tb, args...), NewWithPort(tb, args...)
	replica.Follow(primary)
	return primary, replica
}

// CutOff stops the replica, so that nothing more reaches it, not even what the primary
// would leave in the connection.
func CutOff(tb testing.TB, primary, replica *Server) {
	tb.Helper()
	replica.Signal(syscall.SIGSTOP)
	await.Success(tb, "the replica is cut off", func() error {
		primary.Do(tb, "CLIENT", "KILL", "TYPE", "replica")
		return primary.replication(tb, "connected_slaves:0")
	})
}

// FailOverAndBack promotes the replica b, which CutOff stopped, makes a its replica, and
// promotes a again. With forgets, a waits until it knows no more that it was a replica:
// its argument --repl-backlog-ttl says how long that takes.
func FailOverAndBack(tb testing.TB, a, b *Server, forgets bool) {
	tb.Helper()
	a.Do(tb, "CONFIG", "SET", "port", ring.FreePort(tb)) // b must not come back to it
	b.Signal(syscall.SIGCONT)
	b.Promote()
	a.Do(tb, "CONFIG", "SET", "port", a.Port)
	a.Follow(b)
	a.Promote()
	if forgets {
		await.Success(tb, "the backlog is dropped", func() error {
			return a.replication(tb, "master_replid2:"+strings.Repeat("0", 40))
		})
	}
}

// replication returns an error where INFO does not say the words of the replication.
func (s *Server) replication(tb testing.TB, words string) error {
	if info := s.Do(tb, "INFO", "replication"); !strings.Contains(info, words) {
		return errors.New(info)
	}
	return nil
}

// InStep waits until one replica has all that was written.
func InStep(tb testing.TB, primary *Server) {
	tb.Helper()
	await.Success(tb, "the replica has it all", func() error {
		c := primary.Raw()
		defer c.Close()
		conn := c.Conn()
		defer conn.Close()
		if err := conn.Set(context.Background(), "in-step", 1, 0).Err(); err != nil {
			return err
		}
		n, err := conn.Wait(context.Background(), 1, 100*time.Millisecond).Result()
		if err == nil && n < 1 {
			err = errors.New("not yet")
		}
		return err
	})
}

// Promote makes a replica a primary.
func (s *Server) Promote() { s.Do(s.tb, "REPLICAOF", "NO", "ONE") }

var prefixes atomic.Int64

// Config is for the server, with a prefix that no other has.
func (s *Server) Config() redisconn.Config {
	return redisconn.Config{Scheme: redisconn.SchemeUnix, Addrs: []string{s.Sock}, Prefix: fmt.Sprintf("{t%d}:", prefixes.Add(1))}
}
