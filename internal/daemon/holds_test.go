package daemon

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// TestReleasedBeforeItWasHeld: another connection releases the lock by its name
// when the store has granted it, and the connection does not yet have it. It is not
// told that it holds it.
func TestReleasedBeforeItWasHeld(t *testing.T) {
	r, store := withLocks(t)
	holder := r.dial()
	holds, host := &r.server.holds, r.server.cfg.Locks.Host
	holds.mu.Lock() // no request gets any further than the grant
	holder.ask("Lock.Acquire", "k", options{"hold": "connection", "ttl_ms": 60_000})
	change := lock.Request{Tenant: localTenant, Key: "k", Owner: fmt.Sprintf("alpha/%d", os.Getuid())}
	await.Eventually(t, "the host keeps the lock", func() bool {
		shorter := change
		shorter.Op, shorter.TTLMS = lock.Renew, 30_000
		_, err := host.Change(t.Context(), shorter)
		return errors.Is(err, lock.ErrInvalid) // which is refused for held locks only
	})
	change.Op = lock.Release
	if _, err := host.Change(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	holds.mu.Unlock()
	holder.wantError(holder.receive(), wire.CodeLockNotOwned)
	if n := holds.count(); n != 0 {
		t.Errorf("%d locks are held", n)
	}
	if l, err := store.Get(t.Context(), localTenant, "k"); err != nil || l.State != lock.Released {
		t.Errorf("the lock is %+v, %v", l, err)
	}
	holder.table("Lock.Acquire", "k", options{"hold": "connection"})
}
