// Package stores starts the servers behind which leases, locks and sequences are kept, each a
// process of its own on empty files.
//
// What etcd and PostgreSQL have answered is on the disk; Redis runs without persistence.
package stores

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/bench/process"
)

// Names of the stores.
const (
	SQLite     = "SQLite" // a file, without a server
	Redis      = "Redis"
	Etcd       = "etcd"
	PostgreSQL = "PostgreSQL"
)

// StartLimit is how long a store may take to be ready.
const StartLimit = 30 * time.Second

// Store is a store that runs.
type Store struct {
	URL     string // as the daemon takes it
	Address string // of its socket; "": it is a file
	Service *process.Service
}

// Stop ends the server of the store.
func (s *Store) Stop() {
	if s.Service != nil {
		s.Service.Stop()
	}
}

// start is what a store is started with.
type start struct {
	ctx context.Context
	dir string
}

var starts = map[string]struct {
	programs []string
	start    func(start) (*Store, error)
}{
	SQLite: {nil, func(s start) (*Store, error) {
		return &Store{URL: "sqlite:" + filepath.Join(s.dir, "bench.db")}, nil
	}},
	Redis:      {[]string{"redis-server"}, start.redis},
	Etcd:       {[]string{"etcd"}, start.etcd},
	PostgreSQL: {[]string{"initdb", "postgres"}, start.postgres},
}

// Start starts the store of this name with its files in dir. absent says that this machine does
// not have it.
func Start(ctx context.Context, name, dir string) (s *Store, absent string, err error) {
	for _, program := range starts[name].programs {
		if find(program) == "" {
			return nil, "there is no " + program, nil
		}
	}
	s, err = starts[name].start(start{ctx, dir})
	return s, "", err
}

// find returns the path of a program, or "". Debian keeps those of PostgreSQL apart.
func find(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
	return slices.Max(append(found, ""))
}

// launch starts the server, and waits until it accepts connections.
func (s start) launch(url, network, address string, command ...string) (*Store, error) {
	service, err := process.Launch(filepath.Join(s.dir, filepath.Base(command[0])+".log"), command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	if err := service.AwaitListening(s.ctx, StartLimit, network, address); err != nil {
		service.Stop()
		return nil, err
	}
	return &Store{URL: url, Address: address, Service: service}, nil
}

func (s start) redis() (*Store, error) {
	socket := filepath.Join(s.dir, "redis.sock")
	return s.launch("redis+unix:"+socket, "unix", socket, find("redis-server"),
		"--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", s.dir)
}

func (s start) etcd() (*Store, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	peer, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	peer = "http://" + peer
	return s.launch("etcd://"+address, "tcp", address, find("etcd"),
		"--name", "bench", "--data-dir", filepath.Join(s.dir, "etcd"), "--log-level", "error",
		"--listen-client-urls", "http://"+address, "--advertise-client-urls", "http://"+address,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "bench="+peer)
}

// postgres runs the server as another user where this one is root, which PostgreSQL
// refuses to be.
func (s start) postgres() (*Store, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	home, as := filepath.Join(s.dir, "postgres"), []string(nil)
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, err
	}
	if os.Getuid() == 0 {
		owner, err := user.Lookup("postgres")
		if err != nil {
			return nil, err
		}
		uid, err := strconv.Atoi(owner.Uid)
		if err != nil {
			return nil, err
		}
		if err := os.Chown(home, uid, -1); err != nil {
			return nil, err
		}
		if err := os.Chmod(s.dir, 0o711); err != nil {
			return nil, err
		}
		as = []string{find("setpriv"), "--reuid=" + owner.Uid, "--regid=" + owner.Gid, "--clear-groups"}
	}
	data := filepath.Join(home, "data")
	initdb := append(slices.Clone(as), find("initdb"), "-D", data, "-A", "trust", "-U", "bench", "--no-locale", "-E", "UTF8")
	if _, err := process.Run(s.ctx, exec.CommandContext(s.ctx, initdb[0], initdb[1:]...)); err != nil {
		return nil, err
	}
	return s.launch(fmt.Sprintf("postgres://bench@%s/postgres", address), "tcp", address,
		append(as, find("postgres"), "-D", data, "-k", home, "-h", host, "-p", port)...)
}
