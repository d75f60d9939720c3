package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// freezeAskers ask for one ID at a time, freezePace apart.
	freezeAskers = 4
	freezePace   = 500 * time.Microsecond
)

// freezeAnswer is an answer to one asker.
type freezeAnswer struct {
	id   uint64
	took time.Duration
}

// freezeLoad asks a daemon for IDs all the time.
type freezeLoad struct {
	t      *testing.T
	socket string
	stop   context.CancelFunc
	all    sync.WaitGroup
	count  atomic.Int64

	mu      sync.Mutex
	answers [freezeAskers][]freezeAnswer // guarded by mu
	ended   []error                      // what the askers ended with; guarded by mu
}

func startFreezeLoad(t *testing.T, socket string) *freezeLoad {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	load := &freezeLoad{t: t, socket: socket, stop: stop}
	for i := range freezeAskers {
		load.all.Go(func() {
			err := load.ask(ctx, i)
			load.mu.Lock()
			defer load.mu.Unlock()
			load.ended = append(load.ended, err)
		})
	}
	t.Cleanup(func() { load.end() })
	return load
}

// ask asks on one connection until ctx is done, or a request fails.
func (load *freezeLoad) ask(ctx context.Context, asker int) error {
	c, err := testkit.DialSocket(load.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	for ctx.Err() == nil {
		var a freezeAnswer
		began := time.Now()
		err := c.Call(ctx, "NextID", &a.id)
		a.took = time.Since(began)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		load.count.Add(1)
		load.mu.Lock()
		load.answers[asker] = append(load.answers[asker], a)
		load.mu.Unlock()
		time.Sleep(freezePace)
	}
	return nil
}

// end stops the askers, and checks that none was refused before the daemon stopped;
// one may have lost its connection.
func (load *freezeLoad) end() {
	load.t.Helper()
	load.stop()
	load.all.Wait()
	for _, err := range load.ended {
		var refusal *wire.Error
		stops := errors.As(err, &refusal) && refusal.Code == wire.CodeShuttingDown
		if err != nil && !stops && !errors.Is(err, wire.ErrConnectionLost) {
			load.t.Errorf("a request for an ID failed: %v", err)
		}
	}
	load.ended = nil
}

// more waits until that many more answers have come.
func (load *freezeLoad) more(n int64) {
	load.t.Helper()
	from := load.count.Load()
	await.Eventually(load.t, fmt.Sprintf("%d more IDs", n), func() bool { return load.count.Load() >= from+n })
}

// freezeSpan has the answers between two looks.
type freezeSpan struct {
	ids      []uint64
	p50, p99 time.Duration
}

// take returns the answers since the last call, and checks that those of each
// asker ascend.
func (load *freezeLoad) take() (span freezeSpan) {
	load.t.Helper()
	load.mu.Lock()
	defer load.mu.Unlock()
	var took []time.Duration
	for i, answers := range load.answers {
		for j, a := range answers {
			if j > 0 && a.id <= answers[j-1].id {
				load.t.Errorf("%d came after %d", a.id, answers[j-1].id)
			}
			span.ids = append(span.ids, a.id)
			took = append(took, a.took)
		}
		load.answers[i] = nil
	}
	if len(took) > 0 {
		slices.Sort(took)
		span.p50, span.p99 = took[len(took)/2], took[len(took)*99/100]
	}
	return span
}

// fallback is how many of the IDs are fallback IDs.
func (span freezeSpan) fallback() (n int) {
	for _, id := range span.ids {
		if testkit.IsFallback(id) {
			n++
		}
	}
	return n
}
