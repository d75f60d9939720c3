//go:build linux

package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/wire"
)

// The stores.
const (
	onSQLite = "SQLite"
	onRedis  = "Redis"
	onEtcd   = "etcd"
)

var allStores = []string{onSQLite, onRedis, onEtcd}

func isStore(word string) bool { return slices.Contains(allStores, word) }

// Ways to use a store.
const (
	bare   = "bare"
	within = "in process"
	apart  = "processes" // likewise, with a store for each client
	socket = "socket"
	server = "HTTP" // of a lease server
)

var allWays = []string{bare, within, apart, socket, server}

const (
	startLimit = 20 * time.Second
	warmup     = 10 // a measurement's part before it that does not count
	// apartLonger: stores that race for a record are measured longer. In a second each client is
	// served some fifteen times, and which one least often is chance.
	apartLonger = 5
	// redisConns is how many connections the store has, so that bare Redis has as
	// many.
	redisConns = 16
)

// subject is one way to use one store, with its clients: one for all, or as many
// as there may be.
type subject struct {
	store, way string
	clients    []client
	services   []*process.Service // of its store
}

func (s *subject) name() string { return s.store + ", " + s.way }

// used is the CPU time of this process and the services, up to now. Those that the subject
// does not use are idle.
func (s *subject) used() (time.Duration, error) {
	all, err := process.CPUTime(os.Getpid())
	for _, p := range s.services {
		one, failed := process.CPUTime(p.PID())
		all, err = all+one, cmp.Or(err, failed)
	}
	return all, err
}

// bench is a run.
type bench struct {
	plan
	dir      string
	launch   process.Launcher
	closers  []func() // in the order of opening
	subjects []*subject
	services []*process.Service // started for the store that is being opened
	absent   []string           // stores that there are not, and why
	samples  report.Samples
}

func run(ctx context.Context, name string, p plan) (err error) {
	dir, err := p.Begin()
	if err != nil {
		return err
	}
	b := &bench{plan: p, dir: dir, launch: process.Launcher{Core: -1}}
	defer func() {
		for _, end := range slices.Backward(b.closers) {
			end()
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	for _, store := range allStores {
		if !p.wants(store, isStore) {
			continue
		}
		open := map[string]func(context.Context) error{onSQLite: b.openSQLite, onRedis: b.openRedis, onEtcd: b.openEtcd}[store]
		b.services = nil
		if err := open(ctx); err != nil {
			return fmt.Errorf("%s: %w", store, err)
		}
		for _, s := range b.subjects {
			if s.store == store {
				s.services = b.services
			}
		}
	}
	for round := range p.Rounds {
		fmt.Fprintf(os.Stderr, "bench %s: round %d of %d\n", name, round+1, p.Rounds)
		if err := b.round(ctx, round); err != nil {
			return err
		}
	}
	return b.print(os.Stdout)
}

// round measures everything once.
func (b *bench) round(ctx context.Context, round int) error {
	for _, r := range b.rows {
		for _, s := range b.subjects {
			if s.way == apart && !r.apart {
				continue
			}
			name := fmt.Sprintf("%s-%d", r.key, round)
			duration := b.Duration
			if s.way == apart {
				duration *= apartLonger
			}
			_, err := r.measure(ctx, s, name+"-warm", b.Duration/warmup)
			var got map[string]float64
			if err == nil {
				got, err = r.measure(ctx, s, name, duration)
			}
			if errors.Is(err, errors.ErrUnsupported) {
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %s: %w", r.title, s.name(), err)
			}
			for quantity, value := range got {
				b.samples.Add(round, report.Series{Row: r.on(s.store), Subject: s.way, Quantity: quantity}, value)
			}
			if r.key != handovers.key {
				continue
			}
			spaced, err := unhurried.measure(ctx, s, name+"-trip", b.Duration/2)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", unhurried.title, s.name(), err)
			}
			b.samples.Add(round, report.Series{Row: r.on(s.store), Subject: s.way, Quantity: trips}, 2*got[p50]/spaced[p50])
		}
	}
	return nil
}

func (b *bench) defers(f func()) { b.closers = append(b.closers, f) }

// add opens a store in process, and a daemon on another URL or the same.
func (b *bench) add(ctx context.Context, name, url, ofDaemon string) error {
	store, c, err := b.open(url)
	if err != nil {
		return err
	}
	if err := store.Init(ctx); err != nil {
		return err
	}
	b.subjects = append(b.subjects, &subject{store: name, way: within, clients: []client{c}})
	return b.addDaemon(ctx, name, ofDaemon)
}

// open opens a store in process.
func (b *bench) open(url string) (*backend.Store, client, error) {
	store, err := backend.OpenStore(url, backend.StoreOptions{})
	if err != nil {
		return nil, nil, err
	}
	host := lock.NewHost(store.Locks, elapsed{}, callTimeout)
	b.defers(func() {
		_ = host.Close(context.Background())
		_ = store.Close()
	})
	return store, inProcess{host, sequence.NewBlocks(store.Sequences, elapsed{}.Elapsed)}, nil
}

// addApart opens a store for each client. They share this process' memory, and nothing of the
// store.
func (b *bench) addApart(name, url string) error {
	s := &subject{store: name, way: apart}
	for range manyClients {
		_, c, err := b.open(url)
		if err != nil {
			return err
		}
		s.clients = append(s.clients, c)
	}
	b.subjects = append(b.subjects, s)
	return nil
}

type elapsed struct{}

// Elapsed implements lock.Clock.
func (elapsed) Elapsed() time.Duration { return clock.System{}.Boot() }

// start runs a program for as long as the bench, and returns when it is ready.
func (b *bench) start(ctx context.Context, ready func(context.Context) error, program string, args ...string) error {
	service, err := b.launch.Launch(filepath.Join(b.dir, fmt.Sprintf("%s-%d.log", filepath.Base(program), len(b.closers))), program, args...)
	if err != nil {
		return fmt.Errorf("%w (make build makes the daemon)", err)
	}
	b.defers(service.Stop)
	b.services = append(b.services, service)
	return service.Await(ctx, startLimit, ready)
}

func (b *bench) addDaemon(ctx context.Context, name, url string) error {
	path := filepath.Join(b.dir, name+".sock")
	ready := func(ctx context.Context) error {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return err
		}
		first := wire.NewClient(conn)
		defer first.Close()
		return first.Call(ctx, "Status", nil)
	}
	err := b.start(ctx, ready, b.Daemon, "serve", "--config", "none", "--socket", path, "--state-dir", filepath.Join(b.dir, name+"-state"), "--store", url)
	s := &subject{store: name, way: socket}
	b.subjects = append(b.subjects, s)
	for range manyClients {
		if err != nil {
			return err
		}
		var conn net.Conn
		if conn, err = net.Dial("unix", path); err == nil {
			c := wire.NewClient(conn)
			b.defers(func() { _ = c.Close() })
			s.clients = append(s.clients, throughSocket{c})
		}
	}
	return err
}

func (b *bench) openSQLite(ctx context.Context) error {
	// Processes without a live directory in common cannot use one file.
	if err := b.add(ctx, onSQLite, "sqlite:"+filepath.Join(b.dir, "locks.db"), "sqlite:"+filepath.Join(b.dir, "daemon.db")); err != nil {
		return err
	}
	// One lease server can use a file.
	return b.addServer(ctx, onSQLite, "sqlite:"+filepath.Join(b.dir, "served.db"))
}

// addServer runs a lease server on a store. Each client has a connection, and asks
// as a program does that can ask again.
func (b *bench) addServer(ctx context.Context, name, url string) error {
	address, err := process.FreeAddress()
	if err != nil {
		return err
	}
	s := &subject{store: name, way: server}
	for range manyClients {
		store, err := backend.OpenStore("http://"+address, backend.StoreOptions{})
		if err != nil {
			return err
		}
		b.defers(func() { _ = store.Close() })
		s.clients = append(s.clients, overHTTP{store.Locks, sequence.NewBlocks(store.Sequences, elapsed{}.Elapsed)})
	}
	b.subjects = append(b.subjects, s)
	ready := func(ctx context.Context) error {
		_, err := s.clients[0].next(ctx, "ready", 1, 0)
		return err
	}
	return b.start(ctx, ready, b.Daemon, "lease-server", "--config", "none", "--listen", address,
		"--provider", "sqlite:"+filepath.Join(b.dir, "leases.db"), "--store", url, "--rate-limit", "0")
}

// installed is where the program is; where it is not, a store is left out.
func (b *bench) installed(store, program string) (string, bool) {
	path, err := exec.LookPath(program)
	if err != nil {
		b.absent = append(b.absent, fmt.Sprintf("%s: not measured: there is no %s", store, program))
	}
	return path, err == nil
}

func (b *bench) openRedis(ctx context.Context) error {
	path, ok := b.installed(onRedis, "redis-server")
	if !ok {
		return nil
	}
	sock := filepath.Join(b.dir, "redis.sock")
	redisconn.Silence()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: sock, Protocol: 2, DisableIdentity: true, MaxRetries: -1, PoolSize: redisConns})
	b.defers(func() { _ = c.Close() })
	ready := func(ctx context.Context) error { return c.Ping(ctx).Err() }
	if err := b.start(ctx, ready, path, "--port", "0", "--unixsocket", sock, "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", b.dir); err != nil {
		return err
	}
	b.subjects = append(b.subjects, &subject{store: onRedis, way: bare, clients: []client{bareRedis{c}}})
	if err := b.add(ctx, onRedis, "redis+unix:"+sock, "redis+unix:"+sock); err != nil {
		return err
	}
	return b.addApart(onRedis, "redis+unix:"+sock)
}

func (b *bench) openEtcd(ctx context.Context) error {
	path, ok := b.installed(onEtcd, "etcd")
	if !ok {
		return nil
	}
	address, err := process.FreeAddress()
	if err != nil {
		return err
	}
	peer, err := process.FreeAddress()
	if err != nil {
		return err
	}
	peer = "http://" + peer
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	b.defers(func() { _ = c.Close() })
	ready := func(ctx context.Context) error {
		_, err := c.Get(ctx, "ready")
		return err
	}
	if err := b.start(ctx, ready, path, "--name", "bench", "--data-dir", filepath.Join(b.dir, "etcd"), "--log-level", "error",
		"--listen-client-urls", "http://"+address, "--advertise-client-urls", "http://"+address,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "bench="+peer); err != nil {
		return err
	}
	s := &subject{store: onEtcd, way: bare}
	for range manyClients {
		session, err := concurrency.NewSession(c)
		if err != nil {
			return err
		}
		b.defers(func() { _ = session.Close() })
		s.clients = append(s.clients, bareEtcd{session})
	}
	b.subjects = append(b.subjects, s)
	return b.add(ctx, onEtcd, "etcd://"+address, "etcd://"+address)
}
