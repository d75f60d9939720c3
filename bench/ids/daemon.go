//go:build linux

package ids

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// throughput is what the daemon is given to issue per millisecond where
	// leases are not what is measured: the most that one acquire gets, 256
	// leases, in wideLayout. It is more than one core can send.
	throughput = 256 << 10
	// wideLayout is that of the recipe for high throughput: 1,024 IDs per
	// millisecond and lease.
	wideLayout = "bit_id=12&bit_seq=10"
	// leaseIDs is how many IDs a lease of the default layout gives in a
	// millisecond.
	leaseIDs = 256
	// startLimit is how long a server may take to be ready, or to stop.
	startLimit = 15 * time.Second
)

// daemonOptions are what differs between the daemons of the rows.
type daemonOptions struct {
	name       string // of its files
	throughput int    // IDs per millisecond; 0: as shipped
	provider   string // parameters of the provider's URL
	admin      bool   // with metrics
	doors      bool   // with memcached's protocol and HTTP
	authority  string // as which it takes part in placement; "": not
	store      string // file of what that needs; "": beside the leases
	beside     bool   // on another core: it is not what is measured
}

// daemon is a running one. All that it writes is in the run's directory.
type daemon struct {
	*process.Service
	socket          string
	leases          string // the provider's file
	admin           string // the socket with the metrics, if there are any
	memcached, http string // sockets of further ways to ask, likewise
}

// daemonArguments is the command line of a daemon as a user would start it, but
// for its directories, and where its files will be.
func daemonArguments(dir string, o daemonOptions) (args []string, files daemon) {
	state := filepath.Join(dir, o.name)
	files = daemon{socket: filepath.Join(dir, o.name+".sock"), leases: filepath.Join(state, "leases.db")}
	provider := "sqlite:" + files.leases
	if o.provider != "" {
		provider += "?" + o.provider
	}
	args = []string{"serve", "--config", "none", "--socket", files.socket, "--state-dir", state, "--provider", provider}
	if o.throughput > 0 {
		args = append(args, "--max-throughput-per-ms", strconv.Itoa(o.throughput))
	}
	if o.admin {
		files.admin = filepath.Join(dir, "admin.sock")
		args = append(args, "--admin-listen", "unix:"+files.admin)
	}
	if o.doors {
		files.memcached, files.http = filepath.Join(dir, "memcached.sock"), filepath.Join(dir, "http.sock")
		args = append(args, "--memcached-listen", "unix:"+files.memcached, "--http-listen", "unix:"+files.http)
	}
	if o.authority != "" {
		args = append(args, "--placement-authority", o.authority)
	}
	if o.store != "" {
		args = append(args, "--store", "sqlite:"+o.store)
	}
	return args, files
}

// startDaemon returns when the daemon has all its leases. The caller must stop a daemon
// that is not nil, also with an error.
func (b *bench) startDaemon(ctx context.Context, o daemonOptions) (*daemon, error) {
	args, files := daemonArguments(b.freshDir(), o)
	launch := b.launch
	if o.beside {
		launch = launch.Beside()
	}
	service, err := launch.Launch(filepath.Join(b.dir, o.name+".log"), b.plan.Daemon, args...)
	if err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	d := &files
	d.Service = service
	err = service.Await(ctx, startLimit, func(ctx context.Context) error {
		st, err := statusOf(ctx, d.socket)
		if err == nil && (st.Mode != "regular" || st.throughput() < int64(o.throughput)) {
			err = fmt.Errorf("mode %s, leases for %d of %d IDs per millisecond", st.Mode, st.throughput(), o.throughput)
		}
		return err
	})
	if err != nil {
		return d, fmt.Errorf("the daemon: %w", err)
	}
	return d, nil
}

// with runs do on a daemon of its own, which then ends, and refuses what was
// measured with IDs that were not made from leases: such IDs cost something
// else.
func (b *bench) withDaemon(ctx context.Context, o daemonOptions, do func(*daemon) error) error {
	d, err := b.startDaemon(ctx, o)
	if d != nil {
		defer d.Stop()
	}
	if err != nil {
		return err
	}
	if err := do(d); err != nil {
		return err
	}
	st, err := d.status(ctx)
	if err != nil {
		return err
	}
	return st.mustBeRegular()
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
