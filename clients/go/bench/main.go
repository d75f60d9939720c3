// Command bench measures the cost of an ID with the Go client, beside uuid.New and a
// bare round trip over a Unix socket:
//
//	go run ./clients/go/bench [-daemon bin/kazahanad] [-rounds 9] [-seconds 0.2] [-check] [-json]
//
// All rows run in turn, several rounds, so that a disturbance hits each of them;
// compare the ratios, not the absolute figures.
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
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

const (
	pipelined = 64
	batch     = 100
	prefetch  = 64
	// chunk is how many calls are timed together, where a call costs less than reading
	// the clock.
	chunk = 256
	// tolerance is the factor by which an aim may be missed on a shared machine.
	tolerance = 1.1
)

// single is the request for one ID; its answer has 13 bytes.
var single = append([]byte{0x94, 0, 1, 0xa6}, "NextID\x90"...)

const answerSize = 13

func main() {
	daemon := flag.String("daemon", "bin/kazahanad", "the daemon's program")
	rounds := flag.Int("rounds", 9, "how often each row runs")
	seconds := flag.Float64("seconds", 0.2, "of each row in each round")
	check := flag.Bool("check", false, "fail if an aim is missed by more than 10%")
	asJSON := flag.Bool("json", false, "print JSON")
	echo := flag.String("echo", "", "serve echoes at a socket, for the other end of a bare round trip")
	flag.Parse()
	if *echo != "" {
		serveEcho(*echo)
		return
	}
	if err := run(*daemon, *rounds, time.Duration(*seconds*float64(time.Second)), *check, *asJSON); err != nil {
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

func run(daemon string, rounds int, each time.Duration, check, asJSON bool) error {
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
	table, err := measure(socket, echo, rounds, each)
	if err != nil {
		return err
	}
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		err = e.Encode(table)
	} else {
		show(table, rounds, each)
	}
	if missed := judge(table, asJSON); err == nil && missed && check {
		err = fmt.Errorf("an aim is missed")
	}
	return err
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

// sample is the measurement of a row in one round.
type sample struct {
	rate float64 // IDs a second
	took []time.Duration
}

type row struct {
	name string
	run  func() (sample, error)
}

func measure(socket, echo string, rounds int, each time.Duration) ([]result, error) {
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
		{fmt.Sprintf("pipelined, %d goroutines", pipelined), func() (sample, error) { return together(each, one) }},
		{fmt.Sprintf("batch of %d", batch), func() (sample, error) {
			return repeat(each, batch, func() error { _, err := plain.NextIDs(ctx, batch); return err })
		}},
		{"uuid", func() (sample, error) { return tight(each, func() error { _ = uuid.New(); return nil }) }},
		{fmt.Sprintf("prefetch %d", prefetch), func() (sample, error) {
			return tight(each, func() error { _, err := ahead.NextID(ctx); return err })
		}},
	}
	samples := make([][]sample, len(rows))
	for round := range rounds + 1 {
		for i, r := range rows {
			s, err := r.run()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			if round > 0 { // the first one warms up
				samples[i] = append(samples[i], s)
			}
		}
	}
	return summarize(rows, samples), nil
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

// together makes many goroutines call over one connection.
func together(each time.Duration, call func() error) (all sample, err error) {
	var mu sync.Mutex
	var work sync.WaitGroup
	for range pipelined {
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

// result is a row of the table; the ratios are medians of the rounds' ratios.
type result struct {
	Row       string  `json:"row"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	OfEcho    float64 `json:"of_echo"`
	OfUUID    float64 `json:"of_uuid4"`
}

func summarize(rows []row, samples [][]sample) (table []result) {
	against := func(mine []sample, name string) float64 {
		other := samples[slices.IndexFunc(rows, func(r row) bool { return r.name == name })]
		ratios := make([]float64, len(mine))
		for i := range mine {
			ratios[i] = mine[i].rate / other[i].rate
		}
		return median(ratios)
	}
	for i, r := range rows {
		var rates []float64
		var took []time.Duration
		for _, s := range samples[i] {
			rates = append(rates, s.rate)
			took = append(took, s.took...)
		}
		slices.Sort(took)
		micros := func(percent int) float64 { return float64(took[len(took)*percent/100]) / 1e3 }
		table = append(table, result{r.name, median(rates), micros(50), micros(99), against(samples[i], "echo"), against(samples[i], "uuid")})
	}
	return table
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func show(table []result, rounds int, each time.Duration) {
	fmt.Printf("%s, %d rounds of %v a row; medians\n", runtime.Version(), rounds, each)
	fmt.Printf("%-26s%12s%10s%10s%9s%9s\n", "", "IDs/s", "p50 us", "p99 us", "x echo", "x uuid")
	for _, r := range table {
		fmt.Printf("%-26s%12.0f%10.2f%10.2f%9.2f%9.2f\n", r.Row, r.PerSecond, r.P50, r.P99, r.OfEcho, r.OfUUID)
	}
}

// judge prints which aims are met, and reports whether one is missed for certain.
func judge(table []result, aside bool) (missed bool) {
	out := os.Stdout
	if aside {
		out = os.Stderr
	}
	find := func(name string) result {
		return table[slices.IndexFunc(table, func(r result) bool { return r.Row == name })]
	}
	for _, aim := range []struct {
		text      string
		got, most float64
	}{
		{"a single call costs at most 1.5 bare round trips", 1 / find("single").OfEcho, 1.5},
		{"with prefetch, an ID costs at most 50 ns", 1e9 / find(fmt.Sprintf("prefetch %d", prefetch)).PerSecond, 50},
	} {
		verdict := "met"
		switch {
		case aim.got > aim.most*tolerance:
			verdict, missed = "MISSED", true
		case aim.got > aim.most:
			verdict = "within 10%"
		}
		fmt.Fprintf(out, "aim: %s: %.2f of %.2f: %s\n", aim.text, aim.got, aim.most, verdict)
	}
	return missed
}
