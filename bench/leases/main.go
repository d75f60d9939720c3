// Package leases measures a cold-start storm: thousands of hosts that ask a lease
// server for a machine ID at the same moment, in front of each store.
//
// It starts the lease server as a process of its own, on an empty store, and has
// every client connect and send one POST /lease when all are told to. A round is over when all
// have their answer. The time of a client runs from the common start to its whole answer.
// Each store is measured with all machine IDs of a pool, and with so few that 95% of them are
// granted in the end.
//
// Load and server share the machine, so the figures are lower than for the server alone.
package leases

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/stores"
	"github.com/kazahana/kazahana/bench/suite"
)

// Quantities.
const (
	perSecond = "acquires/s"
	p50       = "p50, ms"
	p99       = "p99, ms"
	slowest   = "slowest, ms"
)

// The promises, for 4,000 clients.
const (
	wantAll     = 8 * time.Second // until the last has its answer
	wantAllEtcd = 15 * time.Second
	wantP99     = 5 * time.Second
)

const (
	subject      = "lease server"
	roundTimeout = 3 * time.Minute
)

// bench is a run.
type bench struct {
	*suite.Run
	clients int
}

// Run is the command of the suite.
func Run(ctx context.Context, args []string) error {
	b := new(bench)
	s := &suite.Suite{
		Name: "leases", About: "A storm of acquires; each round has empty stores, on a real disk if -dir says so.\n",
		Defaults: suite.Plan{Rounds: 3, Duration: time.Second, Core: -1}, Subjects: []string{subject},
		Flags: func(flags *flag.FlagSet) {
			flags.IntVar(&b.clients, "clients", 4000, "how many clients ask at once, up to 8192, the machine IDs of a pool")
		},
		Open: func(_ context.Context, r *suite.Run) error {
			if b.Run = r; r.Short {
				b.clients = min(b.clients, 100)
			}
			r.Notes = append(r.Notes, fmt.Sprintf("%d clients, one acquire each, on new connections; no slot was granted twice", b.clients))
			return nil
		},
	}
	for _, store := range []string{stores.SQLite, stores.Redis, stores.Etcd, stores.PostgreSQL} {
		s.Rows = append(s.Rows, b.row(store, false), b.row(store, true))
	}
	return s.Main(ctx, args)
}

// row measures a store, with all machine IDs or with few.
func (b *bench) row(store string, few bool) suite.Row {
	name, help, words := store, "the store, with 8,192 machine IDs", []string{store, "many"}
	if few {
		name, help, words = store+", few IDs", "with so few machine IDs that 95% are granted in the end", []string{store, "few"}
	}
	row := suite.Row{Words: words, Help: help, Measure: func(ctx context.Context) error { return b.round(ctx, name, store, few) }}
	for _, quantity := range []string{perSecond, p50, p99, slowest} {
		format := report.Milliseconds
		if quantity == perSecond {
			format = report.Whole
		}
		row.Figures = append(row.Figures, report.Figure{Row: name, Title: name, Quantity: quantity, Format: format})
	}
	all := wantAll
	if store == stores.Etcd {
		all = wantAllEtcd
	}
	target := func(quantity string, bound time.Duration) report.Target {
		of := report.Series{Row: name, Subject: subject, Quantity: quantity}
		return report.Target{Work: name, Criterion: quantity, Of: of, Bound: float64(bound), AtMost: true, Format: report.Milliseconds}
	}
	row.Targets = []report.Target{target(p99, wantP99), target(slowest, all)}
	return row
}

// withIDs is the URL of a pool with so few machine IDs that clients take 95% of them: 4,210 for
// 4,000.
func withIDs(url string, clients int) string {
	separator := "?"
	if strings.Contains(url, separator) {
		separator = "&"
	}
	return fmt.Sprintf("%s%sids=0-%d", url, separator, clients*421/400-1)
}

// round starts a store and a server, runs one storm against it, and looks at the grants.
func (b *bench) round(ctx context.Context, row, name string, few bool) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(b.Dir, name)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	store, absent, err := stores.Start(ctx, name, dir)
	if err != nil {
		return err
	}
	if absent != "" {
		b.Absent[name] = absent
		return nil
	}
	defer store.Stop()
	if err := b.initialized(ctx, store.URL); err != nil {
		return err
	}
	url := store.URL
	if few {
		url = withIDs(url, b.clients)
	}
	address, service, err := b.startServer(ctx, dir, url)
	if err != nil {
		return err
	}
	defer service.Stop()
	took, elapsed, err := storm(ctx, address, b.clients)
	if err != nil {
		return err
	}
	b.Add(row, subject, perSecond, float64(len(took))/elapsed.Seconds())
	for quantity, percent := range map[string]int{p50: 50, p99: 99, slowest: 100} {
		b.Add(row, subject, quantity, report.Percentile(took, percent))
	}
	return nil
}

// initialized tells a store that can forget that it is new. Otherwise it would grant
// nothing for as long as a lease that it may have forgotten could last.
func (b *bench) initialized(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, stores.StartLimit)
	defer cancel()
	for {
		_, err := process.Run(ctx, exec.CommandContext(ctx, b.Daemon, "leases", "init", "--yes", "--provider", url))
		if err == nil || strings.Contains(err.Error(), "needs no declaration") || strings.Contains(err.Error(), "there is no such file") {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond): // a server that has just begun to listen
		}
	}
}

// startServer returns when the server answers.
func (b *bench) startServer(ctx context.Context, dir, url string) (address string, service *process.Service, err error) {
	if address, err = process.FreeAddress(); err != nil {
		return "", nil, err
	}
	service, err = process.Launch(filepath.Join(dir, "lease-server.log"), b.Daemon, "lease-server", "--config", "none", "--listen", address,
		"--provider", url, "--state-dir", filepath.Join(dir, "state"), "--store", "none", "--provider-timeout", "30s",
		"--rate-limit", "0", "--drain-delay", "0", "--log-level", "warn")
	if err != nil {
		return "", nil, err
	}
	err = service.Await(ctx, stores.StartLimit, func(context.Context) error {
		res, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		http.DefaultClient.CloseIdleConnections()
		return nil
	})
	if err != nil {
		service.Stop()
	}
	return address, service, err
}
