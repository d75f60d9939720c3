//go:build linux

package leases

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"time"

	"github.com/kazahana/kazahana/bench/process"
)

// store is a store behind the lease server.
type store struct {
	name     string
	programs []string
	// start returns the provider's URL, and the server that it stands for, if there is
	// one. The files are in dir.
	start func(ctx context.Context, b *bench, dir string) (url string, server *process.Service, err error)
}

// stores are the columns of the table. What SQLite, etcd and PostgreSQL have answered is on
// the disk; Redis runs without persistence.
var stores = []store{
	{"SQLite", nil, func(_ context.Context, _ *bench, dir string) (string, *process.Service, error) {
		return "sqlite:" + filepath.Join(dir, "leases.db"), nil, nil
	}},
	{"Redis", []string{"redis-server"}, startRedis},
	{"etcd", []string{"etcd"}, startEtcd},
	{"PostgreSQL", []string{"initdb", "postgres"}, startPostgres},
}

// find returns the path of a program, or "". Debian keeps those of PostgreSQL apart.
func find(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
	return slices.Max(append(found, ""))
}

// listens waits until a server accepts connections.
func listens(ctx context.Context, s *process.Service, network, address string) (*process.Service, error) {
	err := s.Await(ctx, startTimeout, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	if err != nil {
		s.Stop()
	}
	return s, err
}

func startRedis(ctx context.Context, b *bench, dir string) (string, *process.Service, error) {
	socket := filepath.Join(dir, "redis.sock")
	s, err := b.launch.Launch(socket+".log", find("redis-server"), "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no",
		"--daemonize", "no", "--dir", dir)
	if err == nil {
		s, err = listens(ctx, s, "unix", socket)
	}
	return "redis+unix:" + socket, s, err
}

func startEtcd(ctx context.Context, b *bench, dir string) (string, *process.Service, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return "", nil, err
	}
	peer, err := process.FreeAddress()
	if err != nil {
		return "", nil, err
	}
	peer = "http://" + peer
	s, err := b.launch.Launch(filepath.Join(dir, "etcd.log"), find("etcd"), "--name", "bench", "--data-dir", filepath.Join(dir, "etcd"), "--log-level", "error",
		"--listen-client-urls", "http://"+address, "--advertise-client-urls", "http://"+address,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "bench="+peer)
	if err == nil {
		s, err = listens(ctx, s, "tcp", address)
	}
	return "etcd://" + address, s, err
}

// startPostgres runs the server as another user where this one is root, which PostgreSQL
// refuses to be.
func startPostgres(ctx context.Context, b *bench, dir string) (string, *process.Service, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return "", nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", nil, err
	}
	home, as := filepath.Join(dir, "postgres"), []string(nil)
	if err := os.Mkdir(home, 0o700); err != nil {
		return "", nil, err
	}
	if os.Getuid() == 0 {
		owner, err := user.Lookup("postgres")
		if err != nil {
			return "", nil, err
		}
		if said, err := exec.CommandContext(ctx, "chown", owner.Uid, home).CombinedOutput(); err != nil {
			return "", nil, fmt.Errorf("%w: %s", err, said)
		}
		if err := os.Chmod(dir, 0o711); err != nil {
			return "", nil, err
		}
		as = []string{find("setpriv"), "--reuid=" + owner.Uid, "--regid=" + owner.Gid, "--clear-groups"}
	}
	data := filepath.Join(home, "data")
	initdb := append(slices.Clone(as), find("initdb"), "-D", data, "-A", "trust", "-U", "bench", "--no-locale", "-E", "UTF8")
	if said, err := exec.CommandContext(ctx, initdb[0], initdb[1:]...).CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("initdb: %w: %s", err, said)
	}
	server := append(as, find("postgres"), "-D", data, "-k", home, "-h", host, "-p", port)
	s, err := b.launch.Launch(filepath.Join(dir, "postgres.log"), server[0], server[1:]...)
	if err == nil {
		s, err = listens(ctx, s, "tcp", address)
	}
	return fmt.Sprintf("postgres://bench@%s/postgres", address), s, err
}

// initialized tells a store that can forget that it is new. Otherwise it would grant
// nothing for as long as a lease that it may have forgotten could last.
func (b *bench) initialized(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var failed error
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, b.Daemon, "leases", "init", "--yes", "--provider", url)
		cmd.Env = process.Environment()
		said, err := cmd.CombinedOutput()
		if err == nil || bytes.Contains(said, []byte("needs no declaration")) || bytes.Contains(said, []byte("there is no such file")) {
			return nil
		}
		failed = fmt.Errorf("%w: %s", err, said) // a server that has just begun to listen
		time.Sleep(100 * time.Millisecond)
	}
	return errors.Join(context.Cause(ctx), failed)
}
