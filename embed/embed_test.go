package embed_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/embed"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// With any requests of goroutines, an ID is greater than all that were there before it was
// asked for, and none comes twice.
func TestIDsIncreaseAcrossGoroutines(t *testing.T) {
	c := patient(t)
	c.MaxThroughputPerMS = 4096
	g := open(t, c)
	all := map[int64]bool{}
	rapid.Check(t, func(rt *rapid.T) {
		counts := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(1, 700), 1, 8), 1, 6).Draw(rt, "counts by goroutine")
		var greatest atomic.Int64 // of the present ones
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, asks := range counts {
			wg.Go(func() {
				for _, n := range asks {
					before := greatest.Load()
					ids, err := ask(g, n)
					if err != nil || len(ids) != n {
						rt.Errorf("%d IDs of %d, %v", len(ids), n, err)
						return
					}
					mu.Lock()
					for _, id := range ids {
						if id <= before || all[id] || isFallback(id) { // seed 003-3.2-2
							rt.Errorf("%d after %d; again: %v, fallback: %v", id, before, all[id], isFallback(id))
						}
						all[id], before = true, id
					}
					if before > greatest.Load() {
						greatest.Store(before)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	})
}

func ask(g *embed.Generator, n int) ([]int64, error) {
	if n > 1 {
		return g.NextIDs(context.Background(), n)
	}
	id, err := g.NextID(context.Background())
	return []int64{id}, err
}

// A next life goes on above the last one, and with the machine ID that is free longest.
func TestLives(t *testing.T) {
	c, last := patient(t), int64(0)
	for range 4 {
		g, err := embed.Open(t.Context(), c)
		must.Succeed(t, err)
		id := nextID(t, g)
		if id <= last || isFallback(id) {
			t.Errorf("%d after %d", id, last)
		}
		st := g.Status()
		if st.Mode != "regular" || st.Scope != "host" || st.Promise == "" || len(st.Leases) != 1 || st.Issued.Regular != 1 ||
			!strings.HasPrefix(st.Provider, "sqlite:") || st.StateDir != c.StateDir || !strings.HasPrefix(st.LiveDir, c.LiveDir) {
			t.Errorf("%+v", st)
		}
		if text, err := g.NextString(t.Context()); err != nil || text <= strconv.FormatInt(id, 10) {
			t.Errorf("%q, %v after %d", text, err, id)
		}
		if _, prints := any(g).(fmt.Stringer); prints { // seed 003-3.2-1
			t.Error("printing a Generator may use up an ID")
		}
		last = id
		for range 2 {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := g.NextID(t.Context()); !errors.Is(err, embed.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		if _, err := g.NextSequence(t.Context(), "k"); !errors.Is(err, embed.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
}

// One Generator for each state directory, also within a process.
func TestStateDirInUse(t *testing.T) {
	c := patient(t)
	open(t, c)
	_, err := embed.Open(t.Context(), c)
	var used *embed.StateInUseError
	if !errors.As(err, &used) || used.PID != os.Getpid() || !strings.HasPrefix(used.Path, c.StateDir) || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("%v", err)
	}
}

func TestStateThatCannotBeUsed(t *testing.T) {
	c := patient(t)
	must.Succeed(t, os.WriteFile(c.StateDir, nil, 0o600))
	_, err := embed.Open(t.Context(), c)
	var broken *embed.StateError
	if !errors.As(err, &broken) || broken.Path != c.StateDir || !strings.Contains(err.Error(), c.StateDir) {
		t.Errorf("%v", err)
	}
}

// An ID allocates nothing.
func TestNextIDAllocatesNothing(t *testing.T) {
	ring.WithoutRace(t)
	c := patient(t)
	c.Provider += "?bit_id=12&bit_seq=10"
	c.MaxThroughputPerMS = 1 << 16
	g := open(t, c)
	nextID(t, g)
	await.Eventually(t, "all leases are there", func() bool { return g.Status().Throughput == 1<<16 })
	ctx := t.Context()
	if n := testing.AllocsPerRun(10_000, func() {
		if _, err := g.NextID(ctx); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("an ID takes %v allocations", n)
	}
}

func TestConfigErrors(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*embed.Config)
		want   string
	}{
		"no state":          {func(c *embed.Config) { c.StateDir = "" }, "Config.StateDir is not set"},
		"parameter":         {func(c *embed.Config) { c.Provider = "http://127.0.0.1:1?terms=1s" }, "terms"},
		"scheme":            {func(c *embed.Config) { c.Provider = "redi://x" }, `no provider "redi"`},
		"fallback":          {func(c *embed.Config) { c.Fallback = "some" }, "Config.Fallback"},
		"throughput":        {func(c *embed.Config) { c.MaxThroughputPerMS = -1 }, "Config.MaxThroughputPerMS"},
		"service":           {func(c *embed.Config) { c.Service = "a b" }, "Config.Service"},
		"verify":            {func(c *embed.Config) { c.VerifyInterval = time.Microsecond }, "Config.VerifyInterval"},
		"layout":            {func(c *embed.Config) { c.Layout = "js" }, "add ?layout=js"},
		"epoch":             {func(c *embed.Config) { c.DefaultEpoch = time.Now().Add(time.Hour) }, "Config.DefaultEpoch"},
		"meta":              {func(c *embed.Config) { c.Meta = map[string]string{"pid": "7"} }, "pid"},
		"sequence":          {func(c *embed.Config) { c.Sequences = map[string]embed.Sequence{"a": {OnMax: "stop"}} }, "Config.Sequences"},
		"store":             {func(c *embed.Config) { c.Store = "static:1" }, "store"},
		"retry":             {func(c *embed.Config) { c.AcquireRetryInterval = time.Hour }, "acquire_retry_interval"},
		"no fallback ever":  {func(c *embed.Config) { c.Provider, c.Fallback = "none:", embed.NoFallback }, "never gives a lease"},
		"start of sequence": {func(c *embed.Config) { c.SequenceStart = "one" }, "Config.SequenceStart"},
	} {
		c := patient(t)
		test.change(&c)
		_, err := embed.Open(t.Context(), c)
		if _, ok := errors.AsType[*embed.ConfigError](err); !ok || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The environment of the daemon says nothing to a library, and the default provider is
// the file that a daemon of this user has.
func TestDefaults(t *testing.T) {
	home := t.TempDir()
	t.Setenv("KAZAHANA_PROVIDER", "none:")
	t.Setenv("KAZAHANA_NONSENSE", "x")
	t.Setenv("STATE_DIRECTORY", filepath.Join(home, "unit"))
	t.Setenv("XDG_STATE_HOME", home)
	c := patient(t)
	c.Provider = ""
	if os.Geteuid() != 0 { // root's is a fixed directory, which belongs to the machine
		g := open(t, c)
		nextID(t, g)
		if st := g.Status(); st.Provider != "sqlite:"+home+"/kazahana/leases.db" {
			t.Errorf("%+v", st)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	if _, err := embed.Open(t.Context(), c); err == nil || !strings.Contains(err.Error(), "inside Kubernetes there is no default") {
		t.Errorf("%v", err)
	}
}

func TestWithoutState(t *testing.T) {
	c := patient(t)
	c.StateDir = embed.None
	g := open(t, c)
	if id := nextID(t, g); isFallback(id) {
		t.Errorf("%d is a fallback ID", id)
	}
	if st := g.Status(); st.StateDir != "" || st.LiveDir != "" {
		t.Errorf("%+v", st)
	}
}

// A provider that was never there: fallback IDs, marked and ascending, or an error.
func TestProviderAway(t *testing.T) {
	c := patient(t)
	c.Provider, c.StartupWait = "http://127.0.0.1:1", -1
	g := open(t, c)
	last := int64(0)
	for range 1000 {
		id := nextID(t, g)
		if id <= last || !isFallback(id) {
			t.Fatalf("%d after %d", id, last)
		}
		last = id
	}
	if st := g.Status(); st.Mode != "fallback_random" || st.Issued.FallbackRandom != 1000 {
		t.Errorf("%+v", st)
	}
	strict := c
	strict.StateDir += "-2"
	strict.Fallback = embed.NoFallback
	var lacking *embed.LeaseAcquisitionError
	if _, err := open(t, strict).NextID(t.Context()); !errors.As(err, &lacking) {
		t.Errorf("%v", err)
	}
}

func TestClockBackward(t *testing.T) {
	source := clock.NewFake(snowflake.DefaultEpochMS + 1_000_000)
	c := patient(t)
	c.Provider, c.MaxBackward = "static:5", time.Second
	g := open(t, c, embed.WithClock(source))
	nextID(t, g)
	source.Jump(-7 * time.Second)
	_, err := g.NextID(t.Context())
	var behind *embed.ClockBackwardError
	if !errors.As(err, &behind) || behind.Backward < 7*time.Second || behind.Limit != time.Second {
		t.Errorf("%v", err)
	}
}

// A request that waits ends with its context, and with Close.
func TestWaits(t *testing.T) {
	c := patient(t)
	source := clock.NewFake(snowflake.DefaultEpochMS + 1_000_000)
	c.Provider, c.MaxBackward = "static:5", -1
	g := open(t, c, embed.WithClock(source))
	nextID(t, g)
	source.Jump(-time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for _, ctx := range []context.Context{ctx, t.Context()} {
		go func() { _, err := g.NextIDs(ctx, 1000); ended <- err }() // more than the millisecond has left
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, embed.ErrClosed) {
		t.Errorf("%v", err)
	}
	if _, err := g.NextIDs(ctx, 5); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for _, n := range []int{0, -1, embed.MaxBatch + 1} {
		if _, err := g.NextIDs(t.Context(), n); !errors.Is(err, embed.ErrInvalidParams) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// A request that waited in vain says for what, in the words of the documentation.
func TestWhatWasWaitedFor(t *testing.T) {
	for want, wait := range map[string]generator.Wait{
		"clock": generator.WaitClock, "sequence": generator.WaitSequence, "lease": generator.WaitLease,
	} {
		var late *embed.TimeoutError
		if err := embed.IDError(&generator.TimeoutError{For: wait}); !errors.As(err, &late) || late.Cause != want {
			t.Errorf("%v: the cause is %q, want %q", err, late.Cause, want)
		}
	}
}

func TestUUIDs(t *testing.T) {
	var _ embed.StringGenerator = embed.UUIDs{}
	last := ""
	for range 1000 {
		id, err := embed.UUIDs{}.NextString(t.Context())
		if err != nil || id <= last || id[14] != '7' { // seed 003-6.1-2
			t.Fatalf("%q after %q, %v", id, last, err)
		}
		last = id
	}
	if id, err := (embed.UUIDs{Version: 4}).NextString(t.Context()); err != nil || id[14] != '4' {
		t.Errorf("%q, %v", id, err)
	}
	if _, err := (embed.UUIDs{Version: 5}).NextString(t.Context()); !errors.Is(err, embed.ErrInvalidParams) {
		t.Errorf("%v", err)
	}
}

// Close in the midst of requests: each of them has an ID or ErrClosed.
func TestCloseUnderLoad(t *testing.T) {
	for range 5 {
		g, err := embed.Open(t.Context(), patient(t))
		must.Succeed(t, err)
		nextID(t, g)
		var some sync.WaitGroup // each has made an ID
		var all sync.WaitGroup
		for i := range 8 {
			some.Add(1)
			all.Go(func() {
				last, first := int64(0), sync.OnceFunc(some.Done)
				for {
					var id int64
					var err error
					if i == 0 {
						id, err = g.NextSequence(t.Context(), "k")
					} else {
						id, err = g.NextID(t.Context())
					}
					if errors.Is(err, embed.ErrClosed) {
						first()
						return
					}
					if err != nil || id <= last {
						t.Errorf("%d after %d, %v", id, last, err)
						first()
						return
					}
					last = id
					first()
				}
			})
		}
		some.Wait()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
	}
}
