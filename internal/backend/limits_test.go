package backend

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// The longest term is the URL's: a longer one is refused by the name of the
// parameter, and a server that knows nothing is fenced for no longer.
func TestMaxLockTTL(t *testing.T) {
	for query, longest := range map[string]time.Duration{"": lock.MaxTTL, "?max_lock_ttl=10m": 10 * time.Minute} {
		s, err := OpenStore("redis+unix:"+redistest.New(t).Sock+query, StoreOptions{})
		must.Succeed(t, err)
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r := lock.Request{Op: lock.Acquire, Tenant: "default", Key: "k", Owner: "o", LeaseID: lock.NewLeaseID(), TTLMS: longest.Milliseconds()}
		_, err = s.Locks.Do(ctx, r)
		fenced, ok := errors.AsType[*lock.FencedError](err)
		if left := time.Duration(fenced.RemainingMS) * time.Millisecond; !ok || left > longest || left < longest-time.Minute {
			t.Fatalf("%q: an empty server answers %v", query, err)
		}
		must.Succeed(t, s.Init(ctx))
		if _, err := s.Locks.Do(ctx, r); err != nil {
			t.Errorf("%q: a term of %v: %v", query, longest, err)
		}
		r.Key, r.LeaseID, r.TTLMS = "other", lock.NewLeaseID(), r.TTLMS+1
		_, err = s.Locks.Do(ctx, r)
		if !errors.Is(err, lock.ErrInvalid) || query != "" && !strings.Contains(err.Error(), "max_lock_ttl") {
			t.Errorf("%q: a longer term: %v", query, err)
		}
	}
}
