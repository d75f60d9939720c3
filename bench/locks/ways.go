package locks

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/stores"
	"github.com/kazahana/kazahana/bench/suite"
	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/wire"
)

var allStores = []string{stores.SQLite, stores.Redis, stores.Etcd}

const (
	startLimit = 20 * time.Second
	// redisConns is how many connections the store has, so that bare Redis has as
	// many.
	redisConns = 16
)

// subject is one way to use one store, with its clients: one for all, or as many
// as there may be.
type subject struct {
	way     string
	clients []client
}

// bench is a run.
type bench struct {
	*suite.Run
	subjects map[string][]*subject // by store
}

// openAll opens the stores of the rows that were asked for.
func (b *bench) openAll(ctx context.Context, r *suite.Run) error {
	b.Run = r
	for _, name := range allStores {
		if !slices.ContainsFunc(r.Rows, func(row suite.Row) bool { return row.Words[1] == name }) {
			continue
		}
		if err := b.open(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// open starts a store, and all ways to use it.
func (b *bench) open(ctx context.Context, name string) error {
	store, absent, err := stores.Start(ctx, name, b.Dir)
	if err != nil {
		return err
	}
	if absent != "" {
		b.Absent[name] = absent
		return nil
	}
	b.Defer(store.Stop)
	ofDaemon := store.URL
	switch name {
	case stores.SQLite: // only one process can use a file
		ofDaemon = b.file("daemon.db")
	case stores.Redis:
		b.add(name, bare, b.bareRedis(store.Address))
	case stores.Etcd:
		err = b.addBareEtcd(name, store.Address)
	}
	if err != nil {
		return err
	}
	opened, c, err := b.inProcess(store.URL)
	if err != nil {
		return err
	}
	if err := opened.Init(ctx); err != nil {
		return err
	}
	b.add(name, within, c)
	if err := b.addDaemon(ctx, name, ofDaemon); err != nil || name != stores.SQLite {
		return err
	}
	return b.addServer(ctx, name) // one for all stores: its cost is much the same
}

func (b *bench) file(name string) string { return "sqlite:" + filepath.Join(b.Dir, name) }

func (b *bench) add(store, way string, clients ...client) {
	b.subjects[store] = append(b.subjects[store], &subject{way, clients})
}

// inProcess opens a store in this process.
func (b *bench) inProcess(url string) (*backend.Store, client, error) {
	store, err := backend.OpenStore(url, backend.StoreOptions{})
	if err != nil {
		return nil, nil, err
	}
	host := lock.NewHost(store.Locks, elapsed{}, callTimeout)
	b.Defer(func() {
		_ = host.Close(context.Background())
		_ = store.Close()
	})
	return store, inProcess{host, sequence.NewBlocks(store.Sequences, elapsed{}.Elapsed)}, nil
}

type elapsed struct{}

// Elapsed implements lock.Clock.
func (elapsed) Elapsed() time.Duration { return clock.System{}.Boot() }

// start runs the daemon's program for as long as the bench, and returns when it is ready.
func (b *bench) start(ctx context.Context, name string, ready func(context.Context) error, args ...string) error {
	service, err := process.Launch(filepath.Join(b.Dir, name+".log"), b.Daemon, args...)
	if err != nil {
		return err
	}
	b.Defer(service.Stop)
	return service.Await(ctx, startLimit, ready)
}

// addDaemon runs a daemon on a store. Each client has a connection.
func (b *bench) addDaemon(ctx context.Context, name, url string) error {
	path := filepath.Join(b.Dir, name+".sock")
	connect := func() (*wire.Client, error) {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return nil, err
		}
		return wire.NewClient(conn), nil
	}
	ready := func(ctx context.Context) error {
		first, err := connect()
		if err != nil {
			return err
		}
		defer first.Close()
		return first.Call(ctx, "Status", nil)
	}
	err := b.start(ctx, name, ready, "serve", "--config", "none", "--socket", path, "--state-dir", filepath.Join(b.Dir, name+"-state"), "--store", url)
	var clients []client
	for range manyClients {
		if err != nil {
			return err
		}
		var c *wire.Client
		if c, err = connect(); err == nil {
			b.Defer(func() { _ = c.Close() })
			clients = append(clients, throughSocket{c})
		}
	}
	b.add(name, socket, clients...)
	return err
}

// addServer runs a lease server on a file. Each client is a process of its own, as far as the
// server can see.
func (b *bench) addServer(ctx context.Context, name string) error {
	address, err := process.FreeAddress()
	if err != nil {
		return err
	}
	var clients []client
	for range manyClients {
		_, c, err := b.inProcess("http://" + address)
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	b.add(name, server, clients...)
	ready := func(ctx context.Context) error {
		_, err := clients[0].next(ctx, "ready", 1, 0)
		return err
	}
	return b.start(ctx, "lease-server", ready, "lease-server", "--config", "none", "--listen", address,
		"--provider", b.file("leases.db"), "--store", b.file("served.db"), "--rate-limit", "0")
}

func (b *bench) bareRedis(socket string) client {
	redisconn.Silence()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, Protocol: 2, DisableIdentity: true, MaxRetries: -1, PoolSize: redisConns})
	b.Defer(func() { _ = c.Close() })
	return bareRedis{c}
}

// addBareEtcd gives each client an etcd lease.
func (b *bench) addBareEtcd(name, address string) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	b.Defer(func() { _ = c.Close() })
	var clients []client
	for range manyClients {
		session, err := concurrency.NewSession(c)
		if err != nil {
			return err
		}
		b.Defer(func() { _ = session.Close() })
		clients = append(clients, bareEtcd{session})
	}
	b.add(name, bare, clients...)
	return nil
}
