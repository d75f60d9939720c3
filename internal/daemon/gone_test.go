package daemon

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// leaving is a store that answers after its callers have gone.
type leaving struct {
	lock.Store
	leave func(key string)
}

func (l leaving) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	got, err := l.Store.Do(ctx, r)
	if r.Op == lock.Acquire {
		l.leave(r.Key)
	}
	return got, err
}

// A lock that is granted when its peer is gone already is released, not left until
// its term is over, whether the daemon has noticed the end of the connection or not.
func TestLockGrantedToNobodyIsReleased(t *testing.T) {
	var mu sync.Mutex // of peers
	peers := map[string]*peer{}
	store := leaving{lock.OnRecords(memory.New(nil)), func(key string) {
		mu.Lock()
		defer mu.Unlock()
		_ = peers[key].Close()
	}}
	r := newRig(t, func(s *setup) { s.keep(t, store, sequence.OnRecords(memory.New(nil))) }).start()
	mu.Lock()
	for i := range 50 {
		key := fmt.Sprint("k", i)
		peers[key] = r.dial()
		peers[key].send(request(1, "Lock.Acquire", []any{key, options{"ttl_ms": 600_000, "request_id": "mine"}}))
	}
	mu.Unlock()
	c := r.dial()
	for key := range peers {
		await.Eventually(t, key+" is released", func() bool {
			r := c.call("Lock.Get", key) // LOCK_NOT_FOUND until the request is read
			var l map[string]any
			if r.err == nil {
				c.decode(r.result, &l)
			}
			return l["state"] == "RELEASED"
		})
	}
}
