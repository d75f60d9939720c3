package storm

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// stormEnv is how long the storm lasts: make storm sets it.
	stormEnv       = "KAZAHANA_STORM"
	stormDefault   = 6 * time.Second
	stormProcesses = 8
	stormConnsEach = 2
	stormRestarts  = 5
	stormOutage    = 2 // the life in which the provider is out of reach
	// IDs in a batch
)

// TestStorm has many processes ask for IDs while the daemon is killed and
// restarted under them, and its provider is out of reach for a while. No ID
// comes twice. To each asker they ascend, within a connection and from one to
// the next; and who asks after another was answered gets greater ones.
func TestStorm(t *testing.T) {
	ring.Deep(t)
	lasts := stormDefault
	if text := os.Getenv(stormEnv); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", stormEnv, err)
		}
	}
	s := testkit.NewSite(t)
	args := s.Brief("--provider", "sqlite:"+s.Leases()+"?term=1s&quarantine=1s", "--provider-timeout", "300ms")
	d := s.Start(args...)
	storm := launchStorm(t, s)
	mend := func() {}
	for life := range stormRestarts + 1 {
		if life > 0 {
			d.Kill()
			d = s.Start(args...)
			mend()
		}
		if mend = func() {}; life == stormOutage {
			mend = testkit.LockLeases(t, s.Leases())
		}
		testkit.Pause(t, lasts/(stormRestarts+1))
		awaitTraffic(s)
	}
	files := storm.end()
	s.Dial().AwaitMode("regular")
	d.Terminate()

	total := stormTotals{}
	for _, file := range files {
		total.add(t, file)
	}
	total.checkOrder(t)
	n, first := testkit.Duplicates(total.ids)
	if n > 0 {
		t.Errorf("%d IDs came twice; the first is %d", n, first)
	}
	if len(total.ids) == 0 {
		t.Fatal("no ID was received")
	}
	fallback := 0
	for _, id := range total.ids {
		if testkit.IsFallback(id) {
			fallback++
		}
	}
	slices.Sort(total.perConn)
	t.Logf("%d processes with %d connections each, %v, daemon killed and restarted %d times",
		stormProcesses, stormConnsEach, lasts, stormRestarts)
	t.Logf("%d IDs in %d answers, %d of them twice: %d regular, %d fallback",
		len(total.ids), len(total.answers), n, len(total.ids)-fallback, fallback)
	t.Logf("%d connections, IDs on each: least %d, median %d, most %d", len(total.perConn),
		total.perConn[0], total.perConn[len(total.perConn)/2], total.perConn[len(total.perConn)-1])
}

// awaitTraffic returns when this life of the daemon has answered the storm.
func awaitTraffic(s *testkit.Site) {
	s.T.Helper()
	c := s.Dial()
	defer c.Close()
	await.Eventually(s.T, "the storm is answered", func() bool { return testkit.Issued(c.Status()) > 10*testkit.LargestBatch })
}

// stormClients are the processes that ask.
type stormClients struct {
	t     *testing.T
	dir   string
	procs []*testkit.Instance
	stdin []io.WriteCloser
}

func launchStorm(t *testing.T, s *testkit.Site) *stormClients {
	t.Helper()
	storm := &stormClients{t: t, dir: s.Path("storm")}
	if err := os.Mkdir(storm.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i := range stormProcesses {
		cmd := exec.Command(exe, s.Socket, filepath.Join(storm.dir, strconv.Itoa(i)))
		cmd.Env = s.Environment(testkit.ChildEnv + "=storm")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		storm.stdin = append(storm.stdin, stdin)
		storm.procs = append(storm.procs, s.LaunchCommand(cmd))
	}
	return storm
}

// end tells the processes to finish, and returns what they wrote.
func (storm *stormClients) end() (files []string) {
	storm.t.Helper()
	for _, stdin := range storm.stdin {
		_ = stdin.Close()
	}
	for _, p := range storm.procs {
		p.AwaitEnd()
		if p.Err != nil {
			storm.t.Errorf("a client ended with %v: %s", p.Err, p.Log)
		}
	}
	files, err := filepath.Glob(filepath.Join(storm.dir, "*"))
	if err != nil || len(files) != stormProcesses*stormConnsEach {
		storm.t.Fatalf("the clients wrote %d files (%v), want %d", len(files), err, stormProcesses*stormConnsEach)
	}
	return files
}

// stormAnswer is one request that was answered: sent and received are on a
// clock that all processes of the machine share.
type stormAnswer struct{ sent, received, first, last uint64 }

// stormTotals is what all clients received.
type stormTotals struct {
	ids     []uint64
	answers []stormAnswer
	perConn []int // IDs on each connection
}

// add reads the file of one asker and checks its order.
func (total *stormTotals) add(t *testing.T, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(content) == 0 || len(content)%8 != 0 {
		t.Fatalf("%s has %d bytes", file, len(content))
	}
	words := make([]uint64, len(content)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(content[8*i:])
	}
	last := uint64(0)
	for len(words) > 0 {
		if words[0] == 0 { // a connection begins
			total.perConn = append(total.perConn, 0)
			words = words[1:]
			continue
		}
		ids := words[3:][:words[0]]
		for _, id := range ids {
			if id <= last {
				t.Fatalf("%s: %d came after %d, on its connection number %d", file, id, last, len(total.perConn))
			}
			last = id
		}
		total.ids = append(total.ids, ids...)
		total.answers = append(total.answers, stormAnswer{words[1], words[2], ids[0], last})
		total.perConn[len(total.perConn)-1] += len(ids)
		words = words[3+len(ids):]
	}
}

// checkOrder compares requests of different clients: what is sent after an
// answer has arrived gets greater IDs than that answer holds.
func (total *stormTotals) checkOrder(t *testing.T) {
	t.Helper()
	bySending := slices.Clone(total.answers)
	slices.SortFunc(bySending, func(a, b stormAnswer) int { return cmp.Compare(a.sent, b.sent) })
	byArrival := slices.Clone(total.answers)
	slices.SortFunc(byArrival, func(a, b stormAnswer) int { return cmp.Compare(a.received, b.received) })
	greatest := stormAnswer{}
	for _, a := range bySending {
		for len(byArrival) > 0 && byArrival[0].received < a.sent {
			if byArrival[0].last > greatest.last {
				greatest = byArrival[0]
			}
			byArrival = byArrival[1:]
		}
		if a.first <= greatest.last {
			t.Fatalf("%+v was sent %v after %+v had been received, and is not greater",
				a, time.Duration(a.sent-greatest.received), greatest)
		}
	}
}

// childStorm asks for IDs on connections of its own until its standard input
// ends, and writes what it gets to files.
func childStorm(args []string) error {
	socket, file := args[0], args[1]
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	errs := make([]error, stormConnsEach)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = stormAsker(socket, fmt.Sprintf("%s-%d", file, i), &over) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// stormAsker asks on one connection, and on the next when the daemon dies.
func stormAsker(socket, file string, over *atomic.Bool) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(f, 1<<20)
	lost := time.Now()
	for !over.Load() {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			if time.Since(lost) > await.Patience {
				return fmt.Errorf("nobody answers any more: %w", err)
			}
			time.Sleep(await.Interval)
			continue
		}
		if err := stormConnect(wire.NewClient(conn), out, over); err != nil {
			return err
		}
		lost = time.Now()
	}
	return errors.Join(out.Flush(), f.Close())
}

// stormConnect asks until the connection is lost. It writes a 0 for the
// connection, and for each answer the number of IDs, when it was asked for and
// received, and the IDs.
func stormConnect(c *wire.Client, out *bufio.Writer, over *atomic.Bool) error {
	defer c.Close()
	words := []uint64{0}
	for {
		for _, word := range words {
			if _, err := out.Write(binary.LittleEndian.AppendUint64(nil, word)); err != nil {
				return err
			}
		}
		if over.Load() {
			return nil
		}
		sent, err := testkit.Monotonic()
		if err != nil {
			return err
		}
		ids, err := testkit.AskSome(c)
		if errors.Is(err, wire.ErrConnectionLost) {
			return nil
		}
		if err != nil {
			return err
		}
		received, err := testkit.Monotonic()
		if err != nil {
			return err
		}
		words = append(append(words[:0], uint64(len(ids)), sent, received), ids...)
	}
}
