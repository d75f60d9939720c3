package etcd

import (
	"bytes"
	"context"
	"fmt"
	"net"
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
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/provider"
)

// startPatience is how long a server may take until it can be written to.
const startPatience = 20 * time.Second

// member is one etcd server process.
type member struct {
	name, dir    string
	client, peer string // host:port
	args         []string
	cmd          *exec.Cmd
	output       *bytes.Buffer // read after the process has ended
}

// freePorts returns n ports that nobody listens on at this moment.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func hasEtcd() bool {
	_, err := exec.LookPath("etcd")
	return err == nil
}

// newMembers prepares a cluster of n servers with the further arguments.
func newMembers(dir string, n int, scheme string, args ...string) ([]*member, error) {
	ports, err := freePorts(2 * n)
	if err != nil {
		return nil, err
	}
	var all []*member
	var initial []string
	for i := range n {
		m := &member{
			name: fmt.Sprintf("m%d", i), dir: filepath.Join(dir, fmt.Sprintf("m%d", i)),
			client: fmt.Sprintf("127.0.0.1:%d", ports[2*i]), peer: fmt.Sprintf("127.0.0.1:%d", ports[2*i+1]),
		}
		initial = append(initial, m.name+"=http://"+m.peer)
		all = append(all, m)
	}
	for _, m := range all {
		m.args = append([]string{
			"--name", m.name, "--data-dir", m.dir, "--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn",
			"--listen-client-urls", scheme + "://" + m.client, "--advertise-client-urls", scheme + "://" + m.client,
			"--listen-peer-urls", "http://" + m.peer, "--initial-advertise-peer-urls", "http://" + m.peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", filepath.Base(dir),
			"--heartbeat-interval", "50", "--election-timeout", "500",
		}, args...)
	}
	return all, nil
}

// start runs the server. Its data stay from one start to the next.
func (m *member) start() error {
	m.output = &bytes.Buffer{}
	m.cmd = exec.Command("etcd", m.args...)
	m.cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH="+os.Getenv("ETCD_UNSUPPORTED_ARCH"))
	m.cmd.Stdout, m.cmd.Stderr = m.output, m.output
	// Whatever becomes of this process, the server ends with it.
	m.cmd.SysProcAttr = parentDeath()
	return m.cmd.Start()
}

func (m *member) signal(s os.Signal) { _ = m.cmd.Process.Signal(s) }

// kill ends the server as a power failure would.
func (m *member) kill() {
	if m.cmd == nil || m.cmd.ProcessState != nil {
		return
	}
	m.signal(syscall.SIGCONT)
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// newClient is a plain client of the member, for tests that look inside.
func newClient(cfg clientv3.Config) (*clientv3.Client, error) {
	quiet()
	cfg.Logger, cfg.DialTimeout = zap.NewNop(), 5*time.Second
	return clientv3.New(cfg)
}

// writable waits until the members take writes.
func writable(members ...*member) error {
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, m.client)
	}
	cl, err := newClient(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		return err
	}
	defer cl.Close()
	deadline := time.Now().Add(startPatience)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := cl.Put(ctx, "/ready", "")
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			for _, m := range members {
				m.kill()
			}
			return fmt.Errorf("etcd cannot be written to: %w\n%s", err, members[0].output)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// cluster starts n servers for one test.
func cluster(t testing.TB, n int, scheme string, args ...string) []*member {
	t.Helper()
	if !hasEtcd() {
		t.Skip("etcd is not installed (Debian: etcd-server)")
	}
	members, err := newMembers(memoryDir(t), n, scheme, args...)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.kill)
	}
	if scheme == "http" {
		if err := writable(members...); err != nil {
			t.Fatal(err)
		}
	}
	return members
}

// memoryDir is a directory that need not survive anything.
func memoryDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "kazahana-etcd-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// shared is the server that most tests use, each with a prefix of its own.
var shared struct {
	sync.Once
	member *member
	err    error
	dir    string
}

var prefixes atomic.Int64

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.member != nil {
		shared.member.kill()
	}
	os.RemoveAll(shared.dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// server is the shared server's address, and a prefix that nobody else has.
func server(t testing.TB) (endpoint, prefix string) {
	t.Helper()
	if !hasEtcd() {
		t.Skip("etcd is not installed (Debian: etcd-server)")
	}
	shared.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("/dev/shm", "kazahana-etcd-"); shared.err != nil {
			shared.dir, shared.err = os.MkdirTemp("", "kazahana-etcd-")
		}
		if shared.err != nil {
			return
		}
		var members []*member
		if members, shared.err = newMembers(shared.dir, 1, "http", "--quota-backend-bytes", "4294967296"); shared.err != nil {
			return
		}
		if shared.err = members[0].start(); shared.err == nil {
			shared.member = members[0]
			shared.err = writable(members[0])
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.member.client, fmt.Sprintf("/test%d/", prefixes.Add(1))
}

// config is on a new, empty prefix of the shared server.
func config(t testing.TB, services provider.Services, nowMS func() int64) Config {
	t.Helper()
	endpoint, prefix := server(t)
	return Config{Endpoints: []string{endpoint}, Prefix: prefix, Services: services, NowMS: nowMS}
}

func mustOpen(t testing.TB, cfg Config) *Provider {
	t.Helper()
	p, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func defaultServices() provider.Services {
	return provider.Services{Default: provider.DefaultTerms()}
}
