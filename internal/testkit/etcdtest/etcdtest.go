// Package etcdtest starts private etcd servers for tests: real ones, on free
// ports, that end with the test.
package etcdtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Member is one etcd server process.
type Member struct {
	name, dir    string
	Client, peer string // host:port
	Args         []string
	cmd          *exec.Cmd
	output       *bytes.Buffer // read after the process has ended
}

// newMembers prepares a cluster of n servers with the further arguments. The test belongs to the ring all.
func newMembers(t testing.TB, dir string, n int, scheme string, args ...string) (all []*Member) {
	t.Helper()
	ring.All(t)
	ring.Program(t, "etcd")
	ports, err := ring.FreePorts(2 * n)
	must.Succeed(t, err)
	var initial []string
	for i := range n {
		m := &Member{
			name: fmt.Sprintf("m%d", i), dir: filepath.Join(dir, fmt.Sprintf("m%d", i)),
			Client: fmt.Sprintf("127.0.0.1:%d", ports[2*i]), peer: fmt.Sprintf("127.0.0.1:%d", ports[2*i+1]),
		}
		initial = append(initial, m.name+"=http://"+m.peer)
		all = append(all, m)
	}
	for _, m := range all {
		m.Args = append([]string{
			"--name", m.name, "--data-dir", m.dir, "--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn",
			"--listen-client-urls", scheme + "://" + m.Client, "--advertise-client-urls", scheme + "://" + m.Client,
			"--listen-peer-urls", "http://" + m.peer, "--initial-advertise-peer-urls", "http://" + m.peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", filepath.Base(dir),
			"--heartbeat-interval", "50", "--election-timeout", "500",
		}, args...)
	}
	return all
}

// Start runs the server. Its data stay from one start to the next.
func (m *Member) Start() error {
	m.output = &bytes.Buffer{}
	m.cmd = exec.Command("etcd", m.Args...)
	m.cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH="+os.Getenv("ETCD_UNSUPPORTED_ARCH"))
	m.cmd.Stdout, m.cmd.Stderr = m.output, m.output
	// The server ends with this process, even if that is killed.
	m.cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil)
	return m.cmd.Start()
}

// Signal sends the process a signal.
func (m *Member) Signal(s os.Signal) { _ = m.cmd.Process.Signal(s) }

// Kill ends the server as a power failure would.
func (m *Member) Kill() {
	if m.cmd == nil || m.cmd.ProcessState != nil {
		return
	}
	m.Signal(syscall.SIGCONT)
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// Save copies the data of a server that does not run.
func (m *Member) Save(to string) error { return os.CopyFS(to, os.DirFS(m.dir)) }

// PutBack replaces the data of a server that does not run by what Save has copied.
func (m *Member) PutBack(from string) error {
	if err := os.RemoveAll(m.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil { // etcd wants no other mode
		return err
	}
	return os.CopyFS(m.dir, os.DirFS(from))
}

// NewClient is a plain client of the member, for tests that look inside.
func NewClient(cfg clientv3.Config) (*clientv3.Client, error) {
	etcdconn.Quiet()
	cfg.Logger, cfg.DialTimeout = zap.NewNop(), 5*time.Second
	return clientv3.New(cfg)
}

// PID is the process of the server.
func (m *Member) PID() int { return m.cmd.Process.Pid }

// Writable waits until the members take writes.
func Writable(members ...*Member) error {
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, m.Client)
	}
	cl, err := NewClient(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		return err
	}
	defer cl.Close()
	for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err = cl.Put(ctx, "/ready", "")
		cancel()
		if err == nil {
			return nil
		}
	}
	for _, m := range members {
		m.Kill()
	}
	return fmt.Errorf("etcd cannot be written to: %w\n%s", err, members[0].output)
}

// Cluster starts n servers for one test.
func Cluster(t testing.TB, n int, scheme string, args ...string) []*Member {
	t.Helper()
	members := newMembers(t, ring.Dir(t), n, scheme, args...)
	for _, m := range members {
		must.Succeed(t, m.Start())
		t.Cleanup(m.Kill)
	}
	if scheme == "http" {
		must.Succeed(t, Writable(members...))
	}
	return members
}

// shared is the server that most tests use, each with a prefix of its own.
var shared struct {
	sync.Once
	member *Member
}

var prefixes atomic.Int64

// Run runs the tests of a package, ends what Shared started, and returns the
// exit code, which is not 0 where goroutines are left.
func Run(m *testing.M) int {
	return await.Run(m, func() {
		if shared.member != nil {
			shared.member.Kill()
			os.RemoveAll(filepath.Dir(shared.member.dir))
		}
	})
}

// Shared is one server for all tests of a package that need nothing of it but
// keys, with a prefix that no other has. Run ends it.
func Shared(t testing.TB) etcdconn.Config {
	t.Helper()
	ring.All(t)
	shared.Do(func() {
		dir, err := ring.MemoryDir("kazahana-etcd-")
		must.Succeed(t, err)
		m := newMembers(t, dir, 1, "http", "--quota-backend-bytes", "4294967296")[0]
		must.Succeed(t, m.Start())
		must.Succeed(t, Writable(m))
		shared.member = m
	})
	if shared.member == nil {
		t.Fatal("the shared server did not start")
	}
	return etcdconn.Config{Endpoints: []string{shared.member.Client}, Prefix: fmt.Sprintf("/test%d/", prefixes.Add(1))}
}

// SharedMember is the server of Shared, which must have been called.
func SharedMember() *Member { return shared.member }
