package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/wire"
)

// freezeHost is a daemon with its state directory on a disk that can be frozen.
type freezeHost struct {
	*testkit.Site
	disk           *disktest.Disk
	ear            *testkit.Ear
	args           []string
	daemon         *testkit.Instance
	load           *freezeLoad
	all            []uint64   // every ID of every life
	before, during freezeSpan // the answers before and during the freeze
}

// freezeCase says which files are on the disk, and how the daemon ends while it is frozen.
type freezeCase struct {
	name  string
	short bool
	store bool           // the provider's file is on the disk too, with the file of locks and sequences
	log   bool           // so is the daemon's log
	end   syscall.Signal // while the disk is frozen; 0: none
}

var freezeCases = []freezeCase{
	{name: "provider elsewhere, kill -9", short: true, end: syscall.SIGKILL},
	{name: "provider elsewhere, TERM", end: syscall.SIGTERM},
	{name: "leases.db on the disk, TERM", short: true, store: true, end: syscall.SIGTERM},
	{name: "leases.db on the disk, kill -9", store: true, end: syscall.SIGKILL},
	{name: "leases.db on the disk, thawed", store: true},
	{name: "log on the disk, kill -9", log: true, end: syscall.SIGKILL},
}

const (
	// freezeTerm is the term of a lease: three of them pass during the freeze.
	freezeTerm = 6 * time.Second
	// freezeSlow is far above what a busy machine does to the p99, and far below what the disk would.
	freezeSlow = 200 * time.Millisecond
)

// newFreezeHost starts the daemon, and asks it for IDs.
func newFreezeHost(t *testing.T, test freezeCase) *freezeHost {
	t.Helper()
	h := &freezeHost{Site: testkit.NewSite(t)}
	h.disk = disktest.Ext4(t)
	h.State = h.onDisk("state")
	terms := fmt.Sprintf("?term=%v&quarantine=1h", freezeTerm)
	provider := "sqlite:" + h.onDisk("leases.db") + terms
	if !test.store {
		provider = h.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+h.Leases()+terms).URL()
	}
	h.args = []string{"--provider", provider, "--live-dir", disktest.Memory(t), "--admin-listen", "unix:" + h.Path("admin.sock"), "--admin-pprof",
		"--provider-timeout", "1s", "--acquire-retry-interval", "100ms", "--acquire-retry-max-interval", "200ms"}
	h.ear = testkit.NewEar(h.Site)
	h.launchHere(test.log)
	h.daemon.AwaitReady()
	h.Dial().AwaitMode("regular")
	h.load = startFreezeLoad(t, h.Socket)
	return h
}

func (h *freezeHost) onDisk(name string) string { return filepath.Join(h.disk.Dir(), name) }

// launchHere runs the daemon, with its log on the disk where that is asked for.
func (h *freezeHost) launchHere(logged bool) {
	h.T.Helper()
	cmd := h.Command(h.ServeArgs(h.args...)...)
	cmd.Env = h.Environment("NOTIFY_SOCKET="+h.ear.Path, fmt.Sprintf("WATCHDOG_USEC=%d", (2*time.Second).Microseconds()))
	if logged {
		f, err := os.OpenFile(h.onDisk("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			h.T.Fatal(err)
		}
		defer f.Close()
		cmd.Stderr = f
	}
	h.daemon = h.LaunchCommand(cmd)
	h.T.Cleanup(h.disk.Thaw)
}

// answers checks that everything but the disk answers. The host's own goroutine
// asks, so what hangs is found by the patience of each call.
func (h *freezeHost) answers() {
	h.T.Helper()
	c := h.Dial()
	c.Must("Ping", nil)
	c.Must("UUID", new(string))
	h.Kazahanad("health").OK(h.T)
	if said := h.Kazahanad("status").OK(h.T); !strings.Contains(said, h.State) {
		h.T.Errorf("status does not name %s: %s", h.State, said)
	}
	if code, body := h.Get("/readyz"); code != http.StatusOK {
		h.T.Errorf("/readyz answers %d %q", code, body)
	}
	if code, body := h.Get("/metrics"); code != http.StatusOK || !strings.Contains(body, "kazahana_ids_issued_total") {
		h.T.Errorf("/metrics answers %d %q", code, body)
	}
}

// namesTheDisk checks that log, status and doctor say which disk stalls.
func (h *freezeHost) namesTheDisk(store, logged bool) {
	h.T.Helper()
	c := h.Dial()
	await.Eventually(h.T, "the status says that the disk stalls", func() bool { return c.Status().StateStall > 5000 })
	if !logged {
		h.daemon.AwaitLog("the floor cannot be brought to the disk of the state directory " + h.State)
	}
	d := h.Examined(nil)
	d.Has("state fail")
	if store {
		d.Has("provider unknown")
	}
	for _, f := range d.Findings {
		if f.Step == "state" && f.Level == "fail" && !strings.Contains(f.Says, h.State) {
			h.T.Errorf("doctor does not name %s: %+v", h.State, f)
		}
	}
}

// collectsGarbage has the daemon work until it has collected its garbage a few
// times, for which no thread may stand still outside of a system call.
func (h *freezeHost) collectsGarbage() {
	h.T.Helper()
	collections := regexp.MustCompile(`(?m)^# NumGC = (\d+)`)
	count := func() int {
		_, body := h.Get("/debug/pprof/heap?debug=1")
		m := collections.FindStringSubmatch(body)
		if m == nil {
			h.T.Fatalf("the heap profile does not count the collections: %s", body)
		}
		n, _ := strconv.Atoi(m[1])
		return n
	}
	from := count()
	await.Eventually(h.T, "the daemon collects its garbage", func() bool { return count() >= from+3 })
}

// frozen looks at the daemon while the disk is frozen, until a lease of before
// would have ended three times.
func (h *freezeHost) frozen(test freezeCase) {
	h.T.Helper()
	h.answers()
	lease := h.Dial().Lease() // with its file on the disk, the last for now
	if test.store {
		h.Dial().AwaitMode("fallback_cached")
	} else {
		for range 3 {
			last := lease
			await.Eventually(h.T, "another lease", func() bool { lease = h.Dial().Lease(); return lease.CreatedMS > last.CreatedMS })
		}
	}
	for range 3 {
		h.ear.Await("^WATCHDOG=1$")
	}
	h.namesTheDisk(test.store, test.log)
	h.collectsGarbage()
	h.answers()
	h.load.more(1000)
	h.during = h.load.take()
	for _, id := range h.during.ids {
		switch ms := testkit.UnixMS(snowflake.ID(id)); {
		case testkit.IsFallback(id) && !test.store && *chaosFull: // a busy machine may renew late
			h.T.Fatalf("%d is a fallback ID, and the provider was there", id)
		case testkit.IsFallback(id) && lease.CreatedMS <= ms && ms < lease.ExpiredMS:
			h.T.Fatalf("%d of %s is a fallback ID, and the lease was from %s to %s", id, snowflake.FormatMS(ms), snowflake.FormatMS(lease.CreatedMS), snowflake.FormatMS(lease.ExpiredMS))
		}
	}
	if test.store && h.during.fallback() == 0 {
		h.T.Error("no cached fallback ID came after the end of the lease")
	}
	h.all = append(h.all, h.during.ids...)
}

// ending is the status of a process that is gone but for a thread that waits for the
// disk: of its first thread that has ended, or that SIGKILL, signal 9, awaits.
var ending = regexp.MustCompile(`(?m)^State:\tZ|^SigPnd:\t[0-9a-f]{13}[13579bdf][0-9a-f]{2}$`)

// dies ends the daemon while the disk is frozen. The next one is refused until the disk lets go
// of the first.
func (h *freezeHost) dies(test freezeCase) {
	h.T.Helper()
	first := h.daemon
	first.Signal(test.end)
	await.Eventually(h.T, "the daemon serves nobody any more", func() bool {
		c, err := testkit.DialSocket(h.Socket)
		if err != nil {
			return true
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(h.T.Context(), time.Second)
		defer cancel()
		return c.Call(ctx, "Ping", nil) != nil
	})
	h.load.end()
	h.all = append(h.all, h.load.take().ids...)
	await.Eventually(h.T, "the process has died but for a thread", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", first.PID()))
		return err == nil && ending.Match(status)
	})
	h.launchHere(false)
	if code := h.daemon.Code(); code == 0 || !strings.Contains(h.daemon.Log.String(), fmt.Sprintf("in use by process %d", first.PID())) {
		h.T.Errorf("a start beside a process that has not ended: exit code %d\n%s", code, h.daemon.Log)
	}
	h.disk.Thaw()
	first.AwaitEnd()
	h.launchHere(false)
	h.daemon.AwaitReady()
	next := h.Dial().ID()
	if last := slices.Max(h.all); uint64(next) <= last {
		h.T.Errorf("after the restart came %d, and %d was there before", next, last)
	}
	if !test.store && *chaosFull && testkit.IsFallback(uint64(next)) { // a busy machine may renew late
		h.T.Errorf("after the restart came the fallback ID %d", next)
	}
	h.load = startFreezeLoad(h.T, h.Socket)
}

// counts asks for values of a sequence until ctx is done. Each is greater than the
// one before, and a store that is on the disk is an answer, not the end of the
// connection.
func (h *freezeHost) counts(ctx context.Context, values *atomic.Int64) {
	c, err := testkit.DialSocket(h.Socket)
	if err != nil {
		h.T.Error(err)
		return
	}
	defer c.Close()
	for last := int64(0); ctx.Err() == nil; {
		var value int64
		err := c.Call(ctx, "Sequence.Next", &value, "freeze")
		var refusal *wire.Error
		switch {
		case err == nil && value > last:
			last = value
			values.Add(1)
		case err == nil:
			h.T.Errorf("the sequence gave %d after %d", value, last)
		case ctx.Err() == nil && !errors.As(err, &refusal):
			h.T.Errorf("the sequence fails: %v", err)
			return
		}
	}
}

// TestChaosFreeze freezes the disk of a daemon's state directory under load.
func TestChaosFreeze(t *testing.T) {
	ring.Deep(t)
	table := &chaosTable{columns: "ON THE DISK\tIDS BEFORE\tP50\tP99\tIDS DURING\tP50\tP99\tREGULAR\tCACHED\tTWICE\tRESULT\t"}
	for _, test := range freezeCases {
		if !*chaosFull && !test.short {
			continue
		}
		t.Run(test.name, func(t *testing.T) { table.rows = append(table.rows, test.run(t)) })
	}
	table.print(t)
}

// run plays the case, and returns its line of the table.
func (test freezeCase) run(t *testing.T) string {
	t.Helper()
	h := newFreezeHost(t, test)
	counting, stop := context.WithCancel(t.Context())
	var counters sync.WaitGroup
	var values atomic.Int64
	for range freezeAskers {
		counters.Go(func() { h.counts(counting, &values) })
	}
	defer counters.Wait()
	defer stop()
	await.Eventually(t, "values of the sequence", func() bool { return values.Load() >= 50 })
	h.all = append(h.all, h.load.take().ids...)
	h.load.more(1000)
	if *chaosFull {
		testkit.Pause(t, 3*freezeTerm) // as long as the freeze
	}
	h.before = h.load.take()
	h.all = append(h.all, h.before.ids...)
	h.disk.Freeze()
	h.frozen(test)
	stop()
	counters.Wait()
	if test.end != 0 {
		h.dies(test)
	} else {
		h.disk.Thaw()
	}
	h.Dial().AwaitMode("regular")
	h.load.more(1000)
	h.load.end()
	h.all = append(h.all, h.load.take().ids...)
	twice, first := testkit.Duplicates(h.all)
	if twice > 0 {
		t.Errorf("%d IDs came twice, the first is %d", twice, first)
	}
	if h.during.p99 > max(freezeSlow, 4*h.before.p99) {
		t.Errorf("IDs wait for the disk: p99 was %v before the freeze and is %v during it", h.before.p99, h.during.p99)
	}
	result := "ok"
	if t.Failed() {
		result = "VIOLATED"
	}
	round := func(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
	fallback := h.during.fallback()
	return fmt.Sprintf("%s\t%d\t%v\t%v\t%d\t%v\t%v\t%d\t%d\t%d\t%s\t", test.name, len(h.before.ids), round(h.before.p50), round(h.before.p99),
		len(h.during.ids), round(h.during.p50), round(h.during.p99), len(h.during.ids)-fallback, fallback, twice, result)
}
