package redis

import (
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
	"go.uber.org/goleak"

	"github.com/kazahana/kazahana/internal/provider"
)

// startTimeout is for a slow machine.
const startTimeout = 30 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		shared.server.kill()
		os.RemoveAll(shared.server.dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// server is a real redis-server or redis-sentinel of a test.
type server struct {
	tb   testing.TB
	dir  string
	sock string
	port int
	bin  string
	args []string
	cmd  *exec.Cmd
}

var shared struct {
	once   sync.Once
	server *server
}

// sharedServer is one server for all tests that need nothing of it but keys.
func sharedServer(tb testing.TB) *server {
	tb.Helper()
	binary(tb, "redis-server")
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "kazahana-redis-")
		if err != nil {
			tb.Fatal(err)
		}
		shared.server = launch(tb, dir, "shared")
	})
	return shared.server
}

func binary(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Skipf("%s is not installed (scripts/setup installs it)", name)
	}
	return path
}

// newServer starts a server that ends with the test.
func newServer(tb testing.TB, args ...string) *server {
	tb.Helper()
	dir, err := os.MkdirTemp("", "kazahana-redis-") // short: a socket's path has 108 bytes
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	s := launch(tb, dir, "s", args...)
	tb.Cleanup(s.kill)
	return s
}

// newPortServer has a TCP port too.
func newPortServer(tb testing.TB, args ...string) *server {
	tb.Helper()
	port := freePort(tb)
	s := newServer(tb, append([]string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1"}, args...)...)
	s.port = port
	return s
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func launch(tb testing.TB, dir, name string, args ...string) *server {
	tb.Helper()
	s := &server{tb: tb, dir: dir, sock: filepath.Join(dir, name+".sock"), bin: binary(tb, "redis-server")}
	s.args = append([]string{"--port", "0", "--unixsocket", s.sock, "--dir", dir, "--save", "", "--appendonly", "no",
		"--daemonize", "no", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, args...)
	s.start()
	return s
}

// start starts the server, also anew, and waits until it answers.
func (s *server) start() {
	s.tb.Helper()
	log, err := os.OpenFile(s.sock+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(s.bin, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = parentDeath() // a test binary that is killed cleans nothing up
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	eventually(s.tb, "the server answers", func() error {
		c, err := net.Dial("unix", s.sock)
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

// kill ends the server as a crash does.
func (s *server) kill() {
	if s.cmd != nil {
		s.signal(syscall.SIGCONT)
		s.signal(syscall.SIGKILL)
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *server) restart() {
	s.tb.Helper()
	s.kill()
	s.start()
}

func (s *server) signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

// raw is a client for what the provider does not do.
func (s *server) raw() *redis.Client {
	silence()
	return redis.NewClient(&redis.Options{Network: "unix", Addr: s.sock, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
}

// do runs one command and returns its answer as text.
func (s *server) do(tb testing.TB, args ...any) string {
	tb.Helper()
	c := s.raw()
	defer c.Close()
	answer, err := c.Do(context.Background(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		tb.Fatalf("%v: %v", args, err)
	}
	return fmt.Sprint(answer)
}

// follow makes the server a replica of another, and waits until it has its data.
func (s *server) follow(primary *server) {
	s.tb.Helper()
	s.do(s.tb, "REPLICAOF", "127.0.0.1", primary.port)
	eventually(s.tb, "the replica is in step", func() error {
		if info := s.do(s.tb, "INFO", "replication"); !strings.Contains(info, "master_link_status:up") {
			return errors.New(info)
		}
		if info := primary.do(s.tb, "INFO", "replication"); !strings.Contains(info, "state=online") {
			return errors.New(info)
		}
		return nil
	})
	inStep(s.tb, primary)
}

// inStep waits until one replica has all that was written.
func inStep(tb testing.TB, primary *server) {
	tb.Helper()
	eventually(tb, "the replica has it all", func() error {
		c := primary.raw()
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

func (s *server) promote() { s.do(s.tb, "REPLICAOF", "NO", "ONE") }

// eventually waits until f has no error.
func eventually(tb testing.TB, what string, f func() error) {
	tb.Helper()
	deadline := time.Now().Add(startTimeout)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %v: %v", what, startTimeout, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

var prefixes atomic.Int64

// config is for a server, with keys of its own.
func (s *server) config(services provider.Services) Config {
	return Config{
		Scheme: schemeUnix, Addrs: []string{s.sock}, Prefix: fmt.Sprintf("{t%d}:", prefixes.Add(1)), Services: services,
	}
}

func defaultServices() provider.Services {
	return provider.Services{Default: provider.DefaultTerms()}
}

func mustOpen(tb testing.TB, cfg Config) *Provider {
	tb.Helper()
	p, err := Open(testContext(tb), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	return p
}

// testContext is long enough for a slow machine.
func testContext(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

// mustInit declares the default service's pool new.
func mustInit(tb testing.TB, p *Provider) {
	tb.Helper()
	if err := p.Init(testContext(tb), ""); err != nil {
		tb.Fatal(err)
	}
}

const (
	stop   = syscall.SIGSTOP
	resume = syscall.SIGCONT
)
