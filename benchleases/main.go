// Command benchleases measures a cold-start storm: thousands of hosts that ask a
// lease server in front of SQLite for a machine ID at the same moment.
//
// It starts the lease server as a process of its own, on a fresh file, and has
// every client send one POST /lease on a connection of its own when all are told
// to. A round is over when all have their answer; every grant is on the disk by
// then. The time of a client runs from the common start to its whole answer.
//
// Load and server share the machine, so what is shown is less than the server
// could do alone.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

// What -check asks for.
const (
	wantPerSecond = 3000
	wantP99       = 2 * time.Second
)

// mode is how the clients connect.
type mode struct {
	name  string
	fresh bool // connect within the measured time
}

var modes = []mode{{"keep-alive", false}, {"new connections", true}}

func main() {
	binary := flag.String("binary", filepath.Join("bin", "kazahanad"), "the lease server's `program`")
	clients := flag.Int("clients", 4000, "how many clients ask at once, up to 8192, the machine IDs of a pool")
	rounds := flag.Int("rounds", 3, "rounds of each kind, each on a fresh file")
	dir := flag.String("dir", "", "directory of the files; it should be on a real disk (default: that of temporary files)")
	check := flag.Bool("check", false, "fail when a round is below the target")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *binary, *dir, *clients, *rounds, *check); err != nil {
		fmt.Fprintln(os.Stderr, "benchleases:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, binary, dir string, clients, rounds int, check bool) error {
	fmt.Printf("%d clients, one acquire each, SQLite on disk\n\n", clients)
	fmt.Printf("| %-15s | %5s | %10s | %8s | %8s | %8s | %7s | %10s |\n", "connections", "round", "acquires/s", "p50", "p99", "slowest", "commits", "slots")
	fmt.Println("| --------------- | ----: | ---------: | -------: | -------: | -------: | ------: | ---------: |")
	missed := 0
	for _, m := range modes {
		for i := range rounds {
			r, err := round(ctx, binary, dir, clients, m)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", m.name, i+1, err)
			}
			fmt.Printf("| %-15s | %5d | %10.0f | %8s | %8s | %8s | %7d | %10s |\n", m.name, i+1, r.perSecond(),
				short(r.percentile(50)), short(r.percentile(99)), short(r.percentile(100)), r.commits, "all differ")
			if r.perSecond() < wantPerSecond || r.percentile(99) >= wantP99 {
				missed++
			}
		}
	}
	if check && missed > 0 {
		return fmt.Errorf("%d rounds are below %d acquires/s or not within %v at p99", missed, wantPerSecond, wantP99)
	}
	return nil
}

func short(d time.Duration) string { return d.Round(time.Millisecond).String() }
