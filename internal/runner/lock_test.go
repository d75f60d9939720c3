package runner

import (
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// The end is counted from before the request, and never beyond a term from then.
func TestLockEndIsCountedFromTheRequest(t *testing.T) {
	for expiresInMS, want := range map[int64]time.Duration{29_000: 129 * time.Second, 0: 100 * time.Second, 3_600_000: 130 * time.Second} {
		h := &LockHolding{TTL: 30 * time.Second}
		if h.count(100*time.Second, lock.Answer{ExpiresInMS: expiresInMS}); h.End != want {
			t.Errorf("%d ms after 100s end at %v, want %v", expiresInMS, h.End, want)
		}
	}
}
