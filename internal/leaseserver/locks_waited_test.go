package leaseserver

import (
	"context"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// stopped is a clock that stands still.
type stopped struct{}

func (stopped) Elapsed() time.Duration { return 0 }

// lateStore takes some time to answer.
type lateStore struct{ lock.Store }

func (s lateStore) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	time.Sleep(20 * time.Millisecond)
	return s.Store.Do(ctx, r)
}

// TestWaitedAddsNothingToWhatRemains: a client adds waited_ms to expires_in_ms. Were
// the first told as of a later moment than the second, the server having been held
// up in between, the client would believe that it holds the lock for longer than it
// does. Both are by one reading of one clock.
func TestWaitedAddsNothingToWhatRemains(t *testing.T) {
	g := lockRig(t, func(g *rig) {
		host := lock.NewHost(lateStore{g.options.Locks.Store}, stopped{}, long)
		t.Cleanup(func() { _ = host.Close(context.Background()) })
		g.options.Locks.Host = host
	})
	got := g.locked("acquire", "k", tokenHost, `{"ttl_ms": 5000, "wait_ms": 1000}`)
	if got.WaitedMS+got.ExpiresInMS > 5000 {
		t.Errorf("a term of 5 s, of which %d ms are left %d ms after the request came", got.ExpiresInMS, got.WaitedMS)
	}
}
