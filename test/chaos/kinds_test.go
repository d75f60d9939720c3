package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	kindsActors = 60
	kindsCall   = time.Second           // one request to a daemon that may be frozen
	kindsPause  = 20 * time.Millisecond // from one look at an actor to the next
)

// childKinds is a process that runs rooms for the daemon of a socket.
func childKinds(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for { // the daemon comes and goes
		e, err := caller.Register(ctx, args[0], []string{"room"}, nil, nil)
		if err == nil {
			select {
			case <-e.Done():
			case <-ctx.Done():
				return e.Close(context.Background())
			}
			_ = e.Close(ctx)
		}
		select {
		case <-time.After(kindsPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// kindsHost is a daemon, and perhaps a process that runs rooms.
type kindsHost struct {
	*testkit.Site
	authority string
	daemon    *testkit.Instance
	process   *testkit.Instance // nil: none
	client    *caller.Client
	down      atomic.Bool // nobody asks its daemon first
}

// kindsFleet is three hosts on one store, two of which run rooms.
type kindsFleet struct {
	*testing.T
	ttl, interval time.Duration
	store         string
	hosts         []*kindsHost
	mu            sync.Mutex // guards gaps
	seen          map[string]time.Time
	gaps          map[string]time.Duration
}

func newKindsFleet(t *testing.T, ttl, interval time.Duration, deep bool) *kindsFleet {
	f := &kindsFleet{T: t, ttl: ttl, interval: interval, seen: map[string]time.Time{}, gaps: map[string]time.Duration{}}
	for i := range 3 {
		h := &kindsHost{Site: testkit.NewSite(t), authority: fmt.Sprintf("host-%d.example:9800", i+1)}
		f.hosts = append(f.hosts, h)
		switch {
		case i > 0:
		case deep:
			f.store = h.Initialised(h.StartRedis().URL())
		default:
			f.store = h.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+h.Path("shared.db"), "--rate-limit", "0").URL()
		}
		f.startDaemon(h)
		if i < 2 {
			f.startProcess(h)
		}
		h.client = caller.New(h.Socket, kindsCall)
		t.Cleanup(func() { _ = h.client.Close() })
	}
	return f
}

func (f *kindsFleet) startDaemon(h *kindsHost) {
	h.daemon = h.Start("--store", f.store, "--placement-authority", h.authority, "--placement-ttl", f.ttl.String(), "--topology-interval", f.interval.String())
}

func (f *kindsFleet) startProcess(h *kindsHost) {
	cmd := exec.Command(os.Args[0], h.Socket)
	cmd.Env = h.Environment(testkit.ChildEnv + "=kinds")
	h.process = h.LaunchCommand(cmd)
}

// find resolves an actor as a caller does: at one daemon, and at the one that it names.
func (f *kindsFleet) find(ctx context.Context, identity string, from int) error {
	h := f.hosts[from%len(f.hosts)]
	if h.down.Load() {
		return errors.New("nobody asks there")
	}
	for range 2 {
		within, cancel := context.WithTimeout(ctx, kindsCall)
		r, err := h.client.Resolve(within, "room", identity, kindsCall/2)
		cancel()
		switch {
		case err != nil:
			return err
		case r.Authority == f.hosts[2].authority:
			return fmt.Errorf("%w: it lives at %s, which has no process", errWrongHost, r.Authority)
		case r.IsLocal():
			return nil
		}
		for _, other := range f.hosts {
			if other.authority == r.Authority {
				h = other
			}
		}
	}
	return errors.New("two hosts name each other")
}

var errWrongHost = errors.New("the wrong host owns it")

// watch looks at an actor again and again, until ctx is done.
func (f *kindsFleet) watch(ctx context.Context, identity string) {
	for from := 0; ctx.Err() == nil; from++ {
		err := f.find(ctx, identity, from)
		f.mu.Lock()
		now := time.Now()
		if errors.Is(err, errWrongHost) {
			f.Errorf("room/%s: %v", identity, err)
		}
		if err == nil {
			f.gaps[identity] = max(f.gaps[identity], now.Sub(f.seen[identity]))
			f.seen[identity] = now
		}
		f.mu.Unlock()
		select {
		case <-time.After(kindsPause):
		case <-ctx.Done():
		}
	}
}

// forget begins a new count of gaps.
func (f *kindsFleet) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.gaps)
	for identity := range f.seen {
		f.seen[identity] = time.Now()
	}
}

func (f *kindsFleet) longest() (gap time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.gaps {
		gap = max(gap, g)
	}
	return gap
}

// all waits until each of the actors of a name is found, and returns how long that took.
func (f *kindsFleet) all(name string) time.Duration {
	f.Helper()
	began := time.Now()
	var finding sync.WaitGroup
	var found atomic.Int64
	for i := range kindsActors {
		finding.Go(func() {
			for from := i; time.Since(began) < await.Patience; from++ {
				if f.find(f.Context(), fmt.Sprint(name, i), from) == nil {
					found.Add(1)
					return
				}
				time.Sleep(kindsPause)
			}
		})
	}
	if finding.Wait(); found.Load() != kindsActors {
		f.Fatalf("of %d actors %s... only %d are found", kindsActors, name, found.Load())
	}
	return time.Since(began)
}

// kindsFault is what happens to a daemon or a process of a host. It lasts until mend.
type kindsFault struct {
	name  string
	host  int
	bound string // in terms, for active actors and for new ones: docs/placement.md
	do    func(h *kindsHost)
	mend  func(h *kindsHost)
}

// The bounds of docs/placement.md, without the time that a store takes to answer.
const (
	kindsStops  = "interval\tinterval"
	kindsDies   = "ttl + interval\tttl + interval"
	kindsFreeze = "5s + interval\t16s + interval"
)

func (f *kindsFleet) faults(deep bool) (faults []kindsFault) {
	nothing := func(*kindsHost) {}
	for i := range f.hosts {
		faults = append(faults,
			kindsFault{"daemon restarted", i, kindsStops, func(h *kindsHost) { h.daemon.Terminate(); f.startDaemon(h) }, nothing},
			kindsFault{"daemon killed, and started again", i, kindsDies, func(h *kindsHost) { h.daemon.Kill(); f.startDaemon(h) }, nothing})
		if deep {
			faults = append(faults, kindsFault{"daemon frozen", i, kindsDies,
				func(h *kindsHost) { h.down.Store(true); h.daemon.Signal(syscall.SIGSTOP) },
				func(h *kindsHost) { h.daemon.Signal(syscall.SIGCONT); h.down.Store(false) }})
		}
		if f.hosts[i].process == nil {
			continue
		}
		faults = append(faults,
			kindsFault{"process restarted", i, kindsStops, func(h *kindsHost) { h.process.Terminate(); f.startProcess(h) }, nothing},
			kindsFault{"process killed, and started again later", i, kindsStops, func(h *kindsHost) { h.process.Kill() }, f.startProcess})
		if deep {
			faults = append(faults, kindsFault{"process frozen", i, kindsFreeze,
				func(h *kindsHost) { h.process.Signal(syscall.SIGSTOP) },
				func(h *kindsHost) { h.process.Signal(syscall.SIGCONT) }})
		}
	}
	return faults
}

// suffer has each fault happen in turn, and returns a table of the gaps.
func (f *kindsFleet) suffer(faults []kindsFault) string {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FAULT\tHOST\tBOUND OF ACTIVE ONES\tOF NEW ONES\tLONGEST GAP OF 60 ACTIVE\t60 NEW ONES FOUND AFTER")
	for i, fault := range faults {
		h := f.hosts[fault.host]
		f.forget()
		fault.do(h)
		took := f.all(fmt.Sprintf("new-%d-", i))
		f.all("") // also those that were active before
		gap := f.longest()
		fault.mend(h)
		f.settled()
		if h.process == nil {
			fault.bound = "none lives there\t"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%v\t%v\n", fault.name, fault.host+1, fault.bound, max(gap, f.longest()).Round(10*time.Millisecond), took.Round(10*time.Millisecond))
	}
	_ = w.Flush()
	return table.String()
}

// settled waits until every host is a member, both processes serve rooms, every actor is
// found, and nothing lives where there is no process.
func (f *kindsFleet) settled() {
	f.Helper()
	await.Success(f.T, "all hosts know who serves rooms", func() error {
		for i, h := range f.hosts {
			within, cancel := context.WithTimeout(f.Context(), kindsCall)
			var s daemon.SnapshotPage
			err := h.client.Call(within, "Placement.Snapshot", &s, map[string]any{"limit": 1})
			cancel()
			serving := 0
			for _, m := range s.Members {
				serving += len(m.Kinds)
			}
			switch {
			case err != nil:
				return err
			case s.State != "member" || len(s.Members) != len(f.hosts) || serving != 2:
				return fmt.Errorf("%s is %s and knows %+v", h.authority, s.State, s.Members)
			case i == 2 && s.Total != 0:
				return fmt.Errorf("%d actors live where there is no process", s.Total)
			}
		}
		return nil
	})
	f.all("")
}

// TestKinds: of three daemons on one store two have a process. All actors are found, also
// after each daemon and each process was restarted, killed and frozen, and none lives on
// the host without a process.
// Seeds 004-13 and 004-66.
func TestKinds(t *testing.T) {
	ttl, interval, deep := 2*time.Second, 200*time.Millisecond, ring.IsDeep(t)
	if deep {
		ttl, interval = 10*time.Second, time.Second
	}
	f := newKindsFleet(t, ttl, interval, deep)
	f.settled()
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	f.mu.Lock()
	for i := range kindsActors {
		f.seen[fmt.Sprint(i)] = time.Now()
	}
	f.mu.Unlock()
	for i := range kindsActors {
		watching.Go(func() { f.watch(ctx, fmt.Sprint(i)) })
	}
	t.Logf("terms of %v, looks each %v\n%s", ttl, interval, f.suffer(f.faults(deep)))
}
