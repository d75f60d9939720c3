package provider_test

import (
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
)

// No extension takes a slot for longer than a fence lasts that knows its terms, whatever terms the
// lease had before.
func TestExtensionIsFenced(t *testing.T) {
	const now = 1_000_000
	terms := provider.DefaultTerms()
	terms.Term, terms.Quarantine = time.Minute, 10*time.Minute
	for _, before := range []struct{ expired, end int64 }{
		{now + 1, now + 1}, {now + 60_000, now + 60_000}, {now + 60_001, now + 60_001}, {now + 1_200_000, now + 1_200_000}, {now + 1, now + 9_000_000},
	} {
		expired, end := provider.ExtendRequest{ExpiredMS: before.expired}.Extended(terms, now, before.expired, before.end)
		if expired < before.expired || end < before.end || end < expired || end > max(before.end, now+terms.LongestMS()) ||
			expired < now+terms.Term.Milliseconds() || expired > before.expired && end < expired+terms.Quarantine.Milliseconds() {
			t.Errorf("a lease until %d (%d) is extended to %d (%d)", before.expired-now, before.end-now, expired-now, end-now)
		}
	}
}
