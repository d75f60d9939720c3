// Command bench measures the cost of an ID with the Go client, beside uuid.New and a
// bare round trip over a Unix socket, and prints JSON. The suite clients of the
// repository's bench runs it in turn with the other languages' programs.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

const (
	few, many = 8, 64 // goroutines
	batch     = 100
	prefetch  = 64
	// chunk is how many calls are timed together, where a call costs less than reading
	// the clock.
	chunk = 256
)

// single is the request for one ID; its answer has 13 bytes.
var single = append([]byte{0x94, 0, 1, 0xa6}, "NextID\x90"...)

const answerSize = 13

func main() {
	daemon := flag.String("daemon", "bin/kazahanad", "the daemon's program")
	seconds := flag.Float64("seconds", 0.2, "of each row")
	echo := flag.String("echo", "", "serve echoes at a socket, for the other end of a bare round trip")
	flag.Parse()
	if *echo != "" {
		serveEcho(*echo)
		return
	}
	if err := run(*daemon, time.Duration(*seconds*float64(time.Second))); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// serveEcho answers with as many bytes as the daemon would.
func serveEcho(path string) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		panic(err)
	}
	b := make([]byte, 4096)
	for {
		if _, err := conn.Read(b); err != nil {
			return
		}
		if _, err := conn.Write(b[:answerSize]); err != nil {
			return
		}
	}
}

func run(daemon string, each time.Duration) error {
	dir, err := os.MkdirTemp("", "kz-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	socket, echo := filepath.Join(dir, "k.sock"), filepath.Join(dir, "e.sock")
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, cmd := range []*exec.Cmd{
		// By default the daemon gives 256 IDs a millisecond, fewer than a prefetched batch.
		exec.Command(daemon, "serve", "--config", "none", "--socket", socket, "--state-dir", dir,
			"--max-throughput-per-ms", "65536", "--provider", "sqlite:"+filepath.Join(dir, "leases.db")+"?bit_seq=16"),
		exec.Command(self, "-echo", echo),
	} {
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() { _ = cmd.Wait() }()
		defer func() { _ = cmd.Process.Signal(os.Interrupt) }()
	}
	for _, path := range []string{socket, echo} {
		if err := await(path); err != nil {
			return err
		}
	}
	table, err := measure(socket, echo, each)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(table)
}

// await returns when a server has its socket, however busy the machine is.
func await(path string) error {
	const patience = 30 * time.Second
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// sample is the measurement of a row.
type sample struct {
	rate float64 // IDs a second
	took []time.Duration
}

type row struct {
	name string
	run  func() (sample, error)
}

func measure(socket, echo string, each time.Duration) (table []result, err error) {
	ctx := context.Background()
	plain, err1 := kazahana.New(kazahana.WithSocket(socket))
	ahead, err2 := kazahana.New(kazahana.WithSocket(socket), kazahana.WithPrefetch(prefetch, 0))
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%v, %v", err1, err2)
	}
	defer plain.Close()
	defer ahead.Close()
	if _, err := plain.NextID(ctx, kazahana.RegularOnly()); err != nil { // the daemon is up by then
		return nil, err
	}
	conn, err := net.Dial("unix", echo)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer := make([]byte, answerSize)
	one := func() error { _, err := plain.NextID(ctx); return err }
	rows := []row{
		{"echo", func() (sample, error) {
			return repeat(each, 1, func() error {
				if _, err := conn.Write(single); err != nil {
					return err
				}
				_, err := io.ReadFull(conn, answer)
				return err
			})
		}},
		{"single", func() (sample, error) { return repeat(each, 1, one) }},
		{fmt.Sprintf("%d goroutines", few), func() (sample, error) { return together(few, each, one) }},
		{fmt.Sprintf("%d goroutines", many), func() (sample, error) { return together(many, each, one) }},
		{fmt.Sprintf("batch of %d", batch), func() (sample, error) {
			return repeat(each, batch, func() error { _, err := plain.NextIDs(ctx, batch); return err })
		}},
		{"uuid", func() (sample, error) { return tight(each, func() error { _ = uuid.New(); return nil }) }},
		{fmt.Sprintf("prefetch %d", prefetch), func() (sample, error) {
			return tight(each, func() error { _, err := ahead.NextID(ctx); return err })
		}},
	}
	for _, r := range rows {
		if _, err := r.run(); err != nil { // to warm up
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		s, err := r.run()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		slices.Sort(s.took)
		micros := func(percent int) float64 { return float64(s.took[len(s.took)*percent/100]) / 1e3 }
		table = append(table, result{r.name, s.rate, micros(50), micros(99)})
	}
	return table, nil
}

// repeat calls for a while, and notes how long each call took.
func repeat(each time.Duration, ids int, call func() error) (s sample, err error) {
	begin := time.Now()
	for before := begin; before.Sub(begin) < each; {
		if err := call(); err != nil {
			return s, err
		}
		now := time.Now()
		s.took = append(s.took, now.Sub(before))
		before = now
	}
	s.rate = float64(len(s.took)*ids) / time.Since(begin).Seconds()
	return s, nil
}

// tight is repeat for calls that cost less than reading the clock: a latency is
// the mean of a chunk.
func tight(each time.Duration, call func() error) (sample, error) {
	s, err := repeat(each, chunk, func() error {
		for range chunk {
			if err := call(); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range s.took {
		s.took[i] /= chunk
	}
	return s, err
}

// together makes many goroutines call at the same time.
func together(goroutines int, each time.Duration, call func() error) (all sample, err error) {
	var mu sync.Mutex
	var work sync.WaitGroup
	for range goroutines {
		work.Go(func() {
			s, failed := repeat(each, 1, call)
			mu.Lock()
			defer mu.Unlock()
			all.rate += s.rate
			all.took = append(all.took, s.took...)
			if failed != nil {
				err = failed
			}
		})
	}
	work.Wait()
	return all, err
}

// result is a row as it is printed.
type result struct {
	Row       string  `json:"row"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
}
