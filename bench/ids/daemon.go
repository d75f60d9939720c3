//go:build linux

package ids

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// throughput is what the daemon is given to issue per millisecond: the most
	// that one acquire gets, 256 leases, in wideLayout. It is more than one core can send.
	throughput = 256 << 10
	// wideLayout is that of the recipe for high throughput: 1,024 IDs per
	// millisecond and lease.
	wideLayout = "bit_id=12&bit_seq=10"
	// startLimit is how long a server may take to be ready, or to stop.
	startLimit = 15 * time.Second
)

// daemon is the one that is measured. All that it writes is in the run's directory.
type daemon struct {
	*process.Service
	socket, memcached, http string
}

// daemonArguments is the command line of a daemon as a user would start it, but
// for its directories, and where its sockets will be.
func daemonArguments(dir string, throughput int) (args []string, sockets daemon) {
	state := filepath.Join(dir, "state")
	sockets = daemon{socket: filepath.Join(dir, "kazahanad.sock"), memcached: filepath.Join(dir, "memcached.sock"), http: filepath.Join(dir, "http.sock")}
	return []string{
		"serve", "--config", "none", "--socket", sockets.socket, "--state-dir", state,
		"--provider", "sqlite:" + filepath.Join(state, "leases.db") + "?" + wideLayout,
		"--max-throughput-per-ms", strconv.Itoa(throughput),
		"--memcached-listen", "unix:" + sockets.memcached, "--http-listen", "unix:" + sockets.http,
	}, sockets
}

// startDaemon returns when the daemon has leases for so many IDs per millisecond. The caller must
// stop a daemon that is not nil, also with an error.
func (b *bench) startDaemon(ctx context.Context, name string, throughput int) (*daemon, error) {
	dir, err := os.MkdirTemp(b.dir, name)
	if err != nil {
		return nil, err
	}
	args, sockets := daemonArguments(dir, throughput)
	service, err := b.launch.Launch(filepath.Join(dir, "log"), b.plan.Daemon, args...)
	if err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	d := &sockets
	d.Service = service
	err = service.Await(ctx, startLimit, func(ctx context.Context) error {
		st, err := statusOf(ctx, d.socket)
		if err == nil && (st.Mode != "regular" || st.throughput() < int64(throughput)) {
			err = fmt.Errorf("mode %s, leases for %d of %d IDs per millisecond", st.Mode, st.throughput(), throughput)
		}
		return err
	})
	if err != nil {
		return d, fmt.Errorf("the daemon: %w", err)
	}
	return d, nil
}

func (d *daemon) status(ctx context.Context) (daemonStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	st, err := statusOf(ctx, d.socket)
	if err != nil {
		return st, fmt.Errorf("the daemon's status after the measurement: %w", err)
	}
	return st, nil
}

// daemonStatus is what is needed of the daemon's answer to Status.
type daemonStatus struct {
	Version  string `json:"version"`
	Mode     string `json:"mode"`
	UptimeMS uint64 `json:"uptime_ms"`
	Services []struct {
		Throughput int64 `json:"throughput_per_ms"`
		Issued     struct {
			Regular        uint64 `json:"regular"`
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

func (st daemonStatus) fallbackIDs() (sum uint64) {
	for _, s := range st.Services {
		sum += s.Issued.FallbackCached + s.Issued.FallbackRandom
	}
	return sum
}

func (st daemonStatus) mustBeRegular() error {
	if n := st.fallbackIDs(); n > 0 {
		return fmt.Errorf("%d IDs were fallback IDs: the daemon had no valid lease for some time, and the run says nothing", n)
	}
	return nil
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
