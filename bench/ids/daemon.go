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
	"github.com/kazahana/kazahana/internal/load"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// throughput is what the daemon is given to issue per millisecond: the most
	// that one acquire gets, 256 leases, in wideLayout. It is more than one core can send.
	throughput = 256 << 10
	// wideLayout is the layout of the recipe for high throughput: 1,024 IDs per millisecond and
	// lease.
	wideLayout = "bit_id=12&bit_seq=10"
	// startLimit is how long a server may take to be ready, or to answer.
	startLimit = 15 * time.Second
)

// daemon is the measured one. All that it writes is in the run's directory.
type daemon struct {
	*process.Service
	socket, memcached string
}

// startDaemon starts a daemon as a user would, and returns when it has leases for so many IDs
// per millisecond.
func (b *bench) startDaemon(ctx context.Context, program, name string, throughput int) (*daemon, error) {
	dir, err := os.MkdirTemp(b.Dir, name)
	if err != nil {
		return nil, err
	}
	d := &daemon{socket: filepath.Join(dir, "kazahanad.sock"), memcached: filepath.Join(dir, "memcached.sock")}
	state := filepath.Join(dir, "state")
	d.Service, err = process.Launch(filepath.Join(dir, "log"), program,
		"serve", "--config", "none", "--socket", d.socket, "--state-dir", state,
		"--provider", "sqlite:"+filepath.Join(state, "leases.db")+"?"+wideLayout, "--max-throughput-per-ms", strconv.Itoa(throughput),
		"--memcached-listen", "unix:"+d.memcached)
	if err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	b.Defer(d.Stop)
	err = d.Await(ctx, startLimit, func(ctx context.Context) error {
		st, err := d.status(ctx)
		if err == nil && (st.Mode != "regular" || st.Services[0].Throughput < int64(throughput)) {
			err = fmt.Errorf("it is not ready: %+v", st)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the daemon: %w", err)
	}
	return d, nil
}

// server returns the daemon as one of the compared servers.
func (d *daemon) server(name string) *server {
	return &server{
		name: name, dialect: load.RPC, service: d.Service,
		socket: func(w workload) string {
			return map[string]string{"": d.socket, load.Memcached: d.memcached}[w.dialect]
		},
	}
}

// daemonStatus is the needed part of the daemon's answer to Status.
type daemonStatus struct {
	Mode     string `json:"mode"`
	Services []struct {
		Throughput int64 `json:"throughput_per_ms"`
		Issued     struct {
			FallbackCached uint64 `json:"fallback_cached"`
			FallbackRandom uint64 `json:"fallback_random"`
		} `json:"ids_issued"`
	} `json:"services"`
}

func (d *daemon) status(ctx context.Context) (st daemonStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", d.socket)
	if err != nil {
		return st, err
	}
	client := wire.NewClient(conn)
	defer client.Close()
	return st, client.Call(ctx, "Status", &st)
}

// mustBeRegular refuses a run in which the daemon had no leases for some time.
func (d *daemon) mustBeRegular(ctx context.Context) error {
	st, err := d.status(ctx)
	if err != nil {
		return fmt.Errorf("the daemon's status after the measurement: %w", err)
	}
	if n := st.Services[0].Issued.FallbackCached + st.Services[0].Issued.FallbackRandom; n > 0 {
		return fmt.Errorf("%d IDs were fallback IDs: the daemon had no valid lease for some time, and the run says nothing", n)
	}
	return nil
}
