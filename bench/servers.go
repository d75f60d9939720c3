//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/wire"
)

// server is one of those that are compared. The first one is the subject, the
// others are what it is held against.
type server struct {
	name    string // as the table shows it
	dialect string
	// socket is where a workload is put on it; "" if it takes no part in it.
	socket  func(workload) string
	service *service
	// finish looks at the server after the last round: an error if what was
	// measured is not what should have been, else remarks for the table.
	finish func(context.Context) (remarks []string, err error)
}

const startLimit = 15 * time.Second

// startServers starts all. Whatever the error, those returned must be stopped.
func startServers(ctx context.Context, l launcher, daemon, dir string) (all []*server, err error) {
	for _, start := range []func(context.Context, launcher, string, string) (*server, error){startDaemon, startEcho} {
		s, err := start(ctx, l, daemon, dir)
		if s != nil {
			all = append(all, s)
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// startDaemon starts the daemon as a user would, except that everything it
// writes is in dir and that it gets enough leases.
func startDaemon(ctx context.Context, l launcher, path, dir string) (*server, error) {
	socket := filepath.Join(dir, "kazahanad.sock")
	state := filepath.Join(dir, "state")
	process, err := l.launch(filepath.Join(dir, "kazahanad.log"), path, "serve", "--config", "none",
		"--socket", socket, "--state-dir", state, "--provider", "sqlite:"+filepath.Join(state, "leases.db"),
		"--max-throughput-per-ms", strconv.Itoa(throughput))
	if err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	s := &server{
		name: "kazahanad", dialect: dialectRPC, service: process,
		socket: func(workload) string { return socket },
		finish: func(ctx context.Context) ([]string, error) { return finishDaemon(ctx, socket) },
	}
	err = process.await(ctx, startLimit, func(ctx context.Context) error {
		st, err := statusOf(ctx, socket)
		if err == nil && (st.Mode != "regular" || st.throughput() < throughput) {
			err = fmt.Errorf("mode %s, leases for %d of %d IDs per millisecond", st.Mode, st.throughput(), throughput)
		}
		return err
	})
	if err != nil {
		return s, fmt.Errorf("the daemon: %w", err)
	}
	return s, nil
}

// daemonStatus is what is needed of the daemon's answer to Status.
type daemonStatus struct {
	Version  string `json:"version"`
	Mode     string `json:"mode"`
	UptimeMS uint64 `json:"uptime_ms"`
	Services []struct {
		Throughput int64 `json:"throughput_per_ms"`
		Issued     struct {
			FallbackCached uint64 `json:"fallback_cached"`
			FallbackRandom uint64 `json:"fallback_random"`
		} `json:"ids_issued"`
		Exhaustions uint64 `json:"sequence_exhaustions"`
	} `json:"services"`
}

func (st daemonStatus) throughput() (sum int64) {
	for _, s := range st.Services {
		sum += s.Throughput
	}
	return sum
}

func statusOf(ctx context.Context, socket string) (st daemonStatus, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return st, err
	}
	client := wire.NewClient(conn)
	defer client.Close()
	err = client.Call(ctx, "Status", &st)
	return st, err
}

// finishDaemon refuses a run in which IDs were not made from leases: such IDs
// cost something else.
func finishDaemon(ctx context.Context, socket string) (remarks []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	st, err := statusOf(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("the daemon's status after the run: %w", err)
	}
	remarks = append(remarks, fmt.Sprintf("kazahanad %s, SQLite provider, max_throughput_per_ms %d, otherwise as shipped",
		st.Version, throughput))
	for _, s := range st.Services {
		if n := s.Issued.FallbackCached + s.Issued.FallbackRandom; n > 0 {
			return nil, fmt.Errorf("%d IDs were fallback IDs: the daemon had no valid lease for some time, and the run says nothing", n)
		}
		// A few are normal: a quiet service begins its milliseconds late.
		if s.Exhaustions*100 > st.UptimeMS {
			remarks = append(remarks, fmt.Sprintf("the leases were used up in %d of the run's %d milliseconds: "+
				"they limit the rows with batches", s.Exhaustions, st.UptimeMS))
		}
	}
	return remarks, nil
}

// startEcho starts the plain Go echo server, with a socket for each size of
// answers.
func startEcho(ctx context.Context, l launcher, _, dir string) (*server, error) {
	sockets := map[int]echoSocket{} // by IDs per request
	args := []string{"echo"}
	for _, w := range workloads {
		if _, known := sockets[w.count]; known {
			continue
		}
		e := echoSocket{path: filepath.Join(dir, fmt.Sprintf("echo%d.sock", w.count))}
		if w.count > 1 {
			rpc := newRPC(w.count)
			e.request, e.answer = len(rpc.request), rpc.answerSize()
		}
		sockets[w.count] = e
		args = append(args, e.argument())
	}
	process, err := l.launch(filepath.Join(dir, "echo.log"), l.self, args...)
	if err != nil {
		return nil, fmt.Errorf("start the echo server: %w", err)
	}
	s := &server{
		name: "Go echo", dialect: dialectEcho, service: process,
		socket: func(w workload) string { return sockets[w.count].path },
		finish: func(context.Context) ([]string, error) {
			return []string{"Go echo: a goroutine per connection sends back the request's bytes; " +
				"in the rows of NextIDs(n), an answer of as many bytes as the daemon's, and IDs/s means n for each answer"}, nil
		},
	}
	err = process.await(ctx, startLimit, func(context.Context) error {
		for _, e := range sockets {
			conn, err := net.Dial("unix", e.path)
			if err != nil {
				return err
			}
			conn.Close()
		}
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("the echo server: %w", err)
	}
	return s, nil
}
