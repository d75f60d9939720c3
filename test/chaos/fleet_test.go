package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// chaosSkewPercent is how far clocks are off, as a part of the term.
	chaosSkewPercent = 5
	// chaosOutlier is how far those are off that no provider with a clock may serve.
	chaosOutlier = time.Hour
	// chaosPace is the mean time from an answer to the next request of a host,
	// which leaves two cores mostly idle. One request in chaosBatches is for up
	// to chaosBatch IDs.
	chaosPace    = 8 * time.Millisecond
	chaosBatches = 16
	chaosBatch   = 64
)

// chaosHost is a daemon on a host of its own, and the program that asks it.
type chaosHost struct {
	*testkit.Site
	shift  time.Duration
	verify time.Duration // how often it asks for the holder of its leases
	daemon *testkit.Shifted
	kills  int

	mu      sync.Mutex
	stream  chaosStream // guarded by mu while it is asked
	lost    int         // connections that had answered; guarded by mu while it is asked
	unheard int         // connections that had not; likewise
}

// newHosts makes the hosts: two with clocks that are off by all that is allowed, the
// others by less, and after them the two outliers. Every other one does not find out
// before its lease ends that a provider has forgotten it.
func (c *chaos) newHosts() {
	most := int64(c.term) * chaosSkewPercent / 100
	add := func(name string, shift time.Duration, outlier bool) {
		h := &chaosHost{
			Site: testkit.NewSite(c.T), shift: shift, verify: c.term / 6,
			// etcd has no clock that could contradict the host's.
			stream: chaosStream{host: name, outlier: outlier, served: strings.HasPrefix(c.url, "etcd:")},
		}
		if len(c.hosts)%2 == 0 {
			h.verify = 2 * c.term
		}
		c.hosts = append(c.hosts, h)
	}
	for i := range c.daemons {
		shift := c.rng.Int64N(2*most+1) - most
		if i < 2 {
			shift = most * int64(2*i-1)
		}
		add(fmt.Sprintf("host-%02d", i+1), time.Duration(shift).Round(time.Millisecond), false)
	}
	add("an-hour-ahead", chaosOutlier, true)
	add("an-hour-behind", -chaosOutlier, true)
	c.victims = slices.Clone(c.regular())
	c.rng.Shuffle(len(c.victims), func(i, j int) { c.victims[i], c.victims[j] = c.victims[j], c.victims[i] })
}

// regular are the hosts with clocks that do.
func (c *chaos) regular() []*chaosHost { return c.hosts[:c.daemons] }

// launch starts a host's daemon, also anew.
func (c *chaos) launch(h *chaosHost) {
	// With sequences that begin at zero, IDs that can meet do.
	h.daemon = h.LaunchShifted(h.shift, "--provider", c.url, "--startup-wait", "500ms", "--sequence-start", "zero",
		"--provider-timeout", (c.term / 5).String(), "--verify-interval", h.verify.String(),
		"--acquire-retry-interval", (c.term / 30).String(), "--acquire-retry-max-interval", (c.term / 3).String())
}

// start runs all daemons on the provider, and returns when each of the regular
// hosts has a lease. The outliers come after that.
func (c *chaos) start(url string) {
	c.T.Helper()
	c.url = url
	c.newHosts()
	var ctx context.Context
	ctx, c.stopAsking = context.WithCancel(context.Background())
	c.T.Cleanup(func() { c.stopAsking(); c.asking.Wait() })
	c.join(ctx, c.regular())
	if !c.awaitRegular() {
		c.T.Fatalf("not every host has a lease after %v", await.Patience)
	}
	c.join(ctx, c.hosts[c.daemons:])
	c.record.from = c.now()
	c.say("%d daemons have leases, on clocks off by up to %v; one an hour ahead and one an hour behind ask too",
		c.daemons, c.term*chaosSkewPercent/100)
}

// join starts daemons, and has them asked.
func (c *chaos) join(ctx context.Context, hosts []*chaosHost) {
	c.T.Helper()
	for _, h := range hosts {
		c.launch(h)
	}
	for _, h := range hosts {
		h.daemon.AwaitReady()
		rng := rand.New(rand.NewPCG(c.rng.Uint64(), 0))
		c.asking.Go(func() { h.ask(ctx, c.now, rng) })
	}
}

// ask requests IDs until ctx is done, as a program does: it connects again when
// the connection is lost.
func (h *chaosHost) ask(ctx context.Context, now func() time.Duration, rng *rand.Rand) {
	var c *wire.Client
	answered := false // by this connection
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	for ctx.Err() == nil {
		if c == nil {
			var err error
			if c, err = testkit.DialSocket(h.Socket); err != nil {
				time.Sleep(await.Interval)
				continue
			}
			answered = false
		}
		ids, err := chaosRequest(ctx, c, rng)
		at := now()
		if ctx.Err() != nil {
			return
		}
		h.mu.Lock()
		var refusal *wire.Error
		switch {
		case err == nil:
			answered = true
			for _, id := range ids {
				h.stream.ids = append(h.stream.ids, chaosID{at, id})
			}
		case errors.Is(err, wire.ErrConnectionLost):
			if answered {
				h.lost++
			} else {
				h.unheard++
			}
			_ = c.Close()
			c = nil
		case errors.As(err, &refusal) && refusal.Code == wire.CodeTimeout:
			// It shows as a gap between answers.
		default:
			h.stream.faults = append(h.stream.faults, fmt.Sprintf("after %v a request failed: %v", at.Round(time.Millisecond), err))
		}
		h.mu.Unlock()
		time.Sleep(time.Duration(rng.Int64N(2 * int64(chaosPace))))
	}
}

func chaosRequest(ctx context.Context, c *wire.Client, rng *rand.Rand) (ids []uint64, err error) {
	options := map[string]any{"timeout_ms": chaosTimeout.Milliseconds()}
	if rng.IntN(chaosBatches) > 0 {
		ids = make([]uint64, 1)
		return ids, c.Call(ctx, "NextID", &ids[0], options)
	}
	n := 1 + rng.IntN(chaosBatch)
	if err = c.Call(ctx, "NextIDs", &ids, n, options); err == nil && len(ids) != n {
		err = fmt.Errorf("asked for %d IDs, got %d", n, len(ids))
	}
	return ids, err
}

// back reports whether the host has made a regular ID of the millisecond or a
// later one.
func (h *chaosHost) back(fromMS int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.stream.ids) - 1; i >= 0; i-- {
		id := h.stream.ids[i].id
		if testkit.UnixMS(snowflake.ID(id)) < fromMS {
			return false
		}
		if !testkit.IsFallback(id) {
			return true
		}
	}
	return false
}

// awaitRegular waits until every regular host is back, and reports whether they
// are; the checker says who is not.
func (c *chaos) awaitRegular() bool {
	for _, h := range c.regular() {
		for deadline := time.Now().Add(await.Patience); !h.back(c.record.backFrom); time.Sleep(await.Interval) {
			if time.Now().After(deadline) {
				return false
			}
		}
	}
	return true
}

// crash kills a daemon that has not been killed yet, and starts it again at once.
func (c *chaos) crash() {
	c.T.Helper()
	h := c.victims[0]
	c.victims = c.victims[1:]
	h.daemon.Kill()
	h.kills++
	c.launch(h)
	h.daemon.AwaitReady()
	c.say("killed the daemon of %s with -9, and started it again", h.stream.host)
}

// end stops the programs, and gathers what they received.
func (c *chaos) end() chaosResult {
	c.record.until = c.now()
	c.stopAsking()
	c.asking.Wait()
	for _, h := range c.hosts {
		// While the kernel takes a killed process apart, its socket may still take a connection
		// that no process hears any more.
		if h.lost > h.kills || h.unheard > h.kills {
			h.stream.faults = append(h.stream.faults, fmt.Sprintf("%d connections were lost, %d before their first answer, and the daemon was killed %d times", h.lost+h.unheard, h.unheard, h.kills))
		}
		select {
		case <-h.daemon.Ended:
			h.stream.faults = append(h.stream.faults, fmt.Sprintf("the daemon ended by itself: %v", h.daemon.Err))
		default:
		}
		c.record.streams = append(c.record.streams, h.stream)
	}
	return c.record.check()
}
