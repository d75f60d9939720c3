package ids

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/stores"
	"github.com/kazahana/kazahana/internal/load"
)

// server is one of the compared servers.
type server struct {
	name    string // as the table shows it
	dialect string // of workloads that have none
	// socket is where a workload is put on it; "" if it takes no part in it.
	socket  func(workload) string
	service *process.Service
}

// reference is a server that the daemon is held against. Where this machine does not have it,
// start returns nil and says in Absent how to get it.
type reference struct {
	name    string
	program string // that scripts/setup installs; "": none is needed
	start   func(context.Context, *bench) (*server, error)
}

// references are in the table's order.
func (b *bench) references() []reference {
	all := []reference{
		{goEcho, "", startGoEcho}, {cEcho, "gcc", startCEcho}, {redis, "redis-server", startRedis}, {katsubushi, "", startKatsubushi},
	}
	if b.before != "" {
		all = append([]reference{{before, "", startBefore}}, all...)
	}
	return all
}

func startBefore(ctx context.Context, b *bench) (*server, error) {
	d, err := b.startDaemon(ctx, b.before, before, throughput)
	if err != nil {
		return nil, err
	}
	return d.server(before), nil
}

// echoSockets are the sockets of an echo server, by IDs per request: one for
// each size of answers.
func (b *bench) echoSockets(name string) map[int]echoSocket {
	sockets := map[int]echoSocket{}
	for _, w := range workloads {
		e := echoSocket{path: filepath.Join(b.Dir, fmt.Sprintf("%s%d.sock", name, w.count))}
		if w.count > 1 {
			e.request, e.answer = load.EchoSizes(w.count)
		}
		sockets[w.count] = e
	}
	return sockets
}

// startEcho starts an echo server, and waits until all its sockets accept: by launch, the program
// at path with these arguments and then its sockets.
func (b *bench) startEcho(ctx context.Context, name, path string, args ...string) (*server, error) {
	sockets := b.echoSockets(name)
	var paths []string
	for _, e := range sockets {
		paths = append(paths, e.path)
		args = append(args, e.argument())
	}
	s := &server{name: name, dialect: load.Echo, socket: func(w workload) string {
		if w.dialect != "" {
			return ""
		}
		return sockets[w.count].path
	}}
	return s, b.launch(ctx, s, paths, path, args...)
}

// launch starts a reference, and waits until all its sockets accept.
func (b *bench) launch(ctx context.Context, s *server, sockets []string, path string, args ...string) (err error) {
	if s.service, err = process.Launch(filepath.Join(b.Dir, s.name+".log"), path, args...); err != nil {
		return err
	}
	b.Defer(s.service.Stop)
	return s.service.AwaitListening(ctx, startLimit, "unix", sockets...)
}

func startGoEcho(ctx context.Context, b *bench) (*server, error) {
	b.Notes = append(b.Notes, goEcho+": a goroutine per connection sends back the request's bytes; in the rows of NextIDs(n), "+
		"an answer of as many bytes as the daemon's, and IDs/s means n for each answer")
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return b.startEcho(ctx, goEcho, self, "echo")
}

//go:embed cecho/epoll_echo.c
var cEchoSource []byte

func startCEcho(ctx context.Context, b *bench) (*server, error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		b.Absent[cEcho] = "there is no gcc (Debian packages gcc and libc6-dev)"
		return nil, nil
	}
	source, path := filepath.Join(b.Dir, "epoll_echo.c"), filepath.Join(b.Dir, "epoll_echo")
	if err := os.WriteFile(source, cEchoSource, 0o600); err != nil {
		return nil, err
	}
	said, err := exec.CommandContext(ctx, gcc, "-O2", "-o", path, source).CombinedOutput()
	if strings.Contains(string(said), "No such file or directory") {
		b.Absent[cEcho] = "gcc finds no C library (Debian package libc6-dev)"
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("compile it: %w\n%s", err, said)
	}
	b.Notes = append(b.Notes, cEcho+": the same in C, gcc -O2, one thread in a level-triggered epoll loop, a read and a write for each event")
	return b.startEcho(ctx, cEcho, path)
}

// incrBy is how many numbers one INCRBY hands out.
const incrBy = 100

func startRedis(ctx context.Context, b *bench) (*server, error) {
	store, absent, err := stores.Start(ctx, redis, b.Dir)
	if err != nil {
		return nil, err
	}
	if absent != "" {
		b.Absent[redis] = absent
		return nil, nil
	}
	b.Defer(store.Stop)
	b.Notes = append(b.Notes, redis+": without persistence; INCR for NextID, INCRBY 100 for NextIDs(100), which sends one integer "+
		"where the daemon sends a hundred; IDs/s means 100 for each answer")
	return &server{name: redis, dialect: load.Redis, service: store.Service, socket: func(w workload) string {
		if w.dialect != "" || w.count > incrBy { // its answers do not grow with the count: one count says all
			return ""
		}
		return store.Address
	}}, nil
}

func startKatsubushi(ctx context.Context, b *bench) (*server, error) {
	path, err := exec.LookPath("katsubushi")
	if err != nil {
		b.Absent[katsubushi] = "it is not on the PATH: put there a binary of github.com/kayac/go-katsubushi/releases (there is no Debian package)"
		return nil, nil
	}
	b.Notes = append(b.Notes, katsubushi+": memcached's text protocol; NextIDs(n) is one GET with n keys; it makes at most 4,096 IDs in a millisecond")
	socket := filepath.Join(b.Dir, "katsubushi.sock")
	s := &server{name: katsubushi, dialect: load.Memcached, socket: func(w workload) string {
		return map[string]string{"": socket, load.Memcached: socket}[w.dialect]
	}}
	return s, b.launch(ctx, s, []string{socket}, path, "-worker-id", "1", "-sock", socket)
}
