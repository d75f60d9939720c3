//go:build linux

package ids

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/internal/load"
)

// server is one of those that are compared.
type server struct {
	name    string // as the table shows it
	dialect string
	// socket is where a workload is put on it; "" if it takes no part in it.
	socket  func(workload) string
	doors   map[string]string // sockets for workloads with a dialect of their own
	service *process.Service
	note    string // what it is, for below the table
}

// speaks is where and how a workload is put on the server; "" if it takes no part in it.
func (s *server) speaks(w workload) (socket, dialect string) {
	if w.dialect != "" {
		return s.doors[w.dialect], w.dialect
	}
	return s.socket(w), s.dialect
}

// Names of servers: columns of the table.
const (
	kazahanad  = "kazahanad"
	goEcho     = "Go echo"
	cEcho      = "C echo"
	redis      = "Redis"
	katsubushi = "katsubushi"
)

// reference is a server that the daemon is held against.
type reference struct {
	name    string
	program string // that scripts/setup installs; "": none is needed
	start   func(context.Context, *bench) (*server, error)
}

// references are in the table's order.
var references = []reference{
	{goEcho, "", startGoEcho},
	{cEcho, "gcc", startCEcho},
	{redis, "redis-server", startRedis},
	{katsubushi, "", startKatsubushi},
}

// absence is the error of a reference that this machine does not have.
type absence struct{ why string }

func (a absence) Error() string { return a.why }

// startServers starts the daemon and the references that there are.
func (b *bench) startServers(ctx context.Context) error {
	d, err := b.startDaemon(ctx, kazahanad, throughput)
	if d != nil {
		b.main = d
		b.servers = append(b.servers, &server{
			name: kazahanad, dialect: load.RPC, service: d.Service, socket: func(workload) string { return d.socket }, doors: map[string]string{load.Memcached: d.memcached, load.HTTP: d.http},
		})
	}
	if err != nil {
		return err
	}
	for _, r := range references {
		s, err := r.start(ctx, b)
		if s != nil {
			b.servers = append(b.servers, s)
		}
		if absent, ok := errors.AsType[absence](err); ok {
			b.absent[r.name] = absent.why
		} else if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// startReference launches a server, and waits until all its sockets accept.
func (b *bench) startReference(ctx context.Context, s *server, sockets []string, path string, args ...string) (_ *server, err error) {
	s.service, err = b.launch.Launch(filepath.Join(b.dir, filepath.Base(sockets[0])+".log"), path, args...)
	if err != nil {
		return nil, err
	}
	return s, s.service.Await(ctx, startLimit, func(ctx context.Context) error {
		var dialer net.Dialer
		for _, socket := range sockets {
			conn, err := dialer.DialContext(ctx, "unix", socket)
			if err != nil {
				return err
			}
			conn.Close()
		}
		return nil
	})
}

// echoSockets are the sockets of an echo server, by IDs per request: one for
// each size of answers.
func (b *bench) echoSockets(name string) map[int]echoSocket {
	sockets := map[int]echoSocket{}
	for _, w := range workloads {
		e := echoSocket{path: filepath.Join(b.dir, fmt.Sprintf("%s%d.sock", name, w.count))}
		if w.count > 1 {
			e.request, e.answer = load.EchoSizes(w.count)
		}
		sockets[w.count] = e
	}
	return sockets
}

// startEcho starts an echo server: the program at path, with these arguments
// and then its sockets.
func (b *bench) startEcho(ctx context.Context, s *server, file, path string, args ...string) (*server, error) {
	sockets := b.echoSockets(file)
	var paths []string
	for _, e := range sockets {
		paths = append(paths, e.path)
		args = append(args, e.argument())
	}
	s.dialect = load.Echo
	s.socket = func(w workload) string { return sockets[w.count].path }
	return b.startReference(ctx, s, paths, path, args...)
}

func startGoEcho(ctx context.Context, b *bench) (*server, error) {
	return b.startEcho(ctx, &server{name: goEcho,
		note: "Go echo: a goroutine per connection sends back the request's bytes; in the rows of NextIDs(n), an answer of as many bytes " +
			"as the daemon's, and IDs/s means n for each answer",
	}, "goecho", b.launch.Self, "echo")
}
