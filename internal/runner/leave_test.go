package runner

import (
	"errors"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// at is a clock that stands, at a time in Unix ms.
type at struct{ ms int64 }

func (a *at) Wall() int64         { return a.ms * int64(time.Millisecond) }
func (a *at) Boot() time.Duration { return 0 }

// What becomes of the lease depends on what the program may have dated by its clock,
// which is this host's, and on whether the program is all gone.
func TestLeave(t *testing.T) {
	t.Parallel()
	const grantedAt = snowflake.DefaultEpochMS + 1_000_000
	const term, ahead = 600_000, 3_000
	alone := Exit{Alone: true}
	gone := &LostError{Err: provider.ErrConflict, Gone: true}
	for name, test := range map[string]struct {
		result Result
		last   int64 // that this host's clock showed, in ms since the grant
		now    int64 // by the provider's clock
		end    int64 // of the record, in ms since the grant
	}{
		"before the start":                        {Result{}, 0, 1_000, 1},
		"after a long delay":                      {Result{}, 0, 100_000, 100_001},
		"at once":                                 {Result{Started: true, Exit: alone}, 0, 0, ahead + 1},
		"killed":                                  {Result{Started: true, Exit: Exit{Signal: 9, Alone: true}}, 5_000, 5_000, 5_000 + ahead + 1},
		"not extended in time":                    {Result{Started: true, Exit: alone, Lost: errors.New("away")}, 5_000, 5_000, 5_000 + ahead + 1},
		"by a clock behind":                       {Result{Started: true, Exit: alone}, 5_000, 15_000, 5_000 + ahead + 1},
		"by a clock ahead":                        {Result{Started: true, Exit: alone}, 25_000, 5_000, 25_000 + ahead + 1},
		"by a clock too far ahead for a release":  {Result{Started: true, Exit: alone}, 35_000, 5_000, term},
		"by a clock too far behind for a release": {Result{Started: true, Exit: alone}, 5_000, 45_000, term},
		"with processes left":                     {Result{Started: true}, 5_000, 5_000, term},
		"unwatched":                               {Result{Started: true, Exit: alone, Unwatched: true}, 5_000, 5_000, term},
		"in the last millisecond":                 {Result{Started: true, Exit: alone}, term - ahead - 1, term - ahead - 1, term},
		"by a clock past the end":                 {Result{Started: true, Exit: alone}, term - ahead, term - ahead, 2 * term},
		"by a clock an hour ahead":                {Result{Started: true, Exit: alone}, 3_600_000, 5_000, 2 * term},
		"no longer ours":                          {Result{Started: true, Exit: alone, Lost: gone}, 5_000, 5_000, 2 * term},
		"no longer ours before the start":         {Result{Lost: gone}, 0, 5_000, 2 * term},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(grantedAt)
			p, err := providertest.OverMemory(memory.New(func() int64 { return now }), provider.Services{Default: provider.DefaultTerms()})
			must.Succeed(t, err)
			leases, err := p.Acquire(t.Context(), provider.AcquireRequest{})
			must.Succeed(t, err)
			now += test.now
			test.result.LastMS = grantedAt + test.last
			h := HoldLease(leases[0], p, "", &at{now}, func(string, ...any) {})
			h.Leave(t.Context(), await.Patience, ahead*time.Millisecond, test.result)
			records, err := p.List(t.Context(), "")
			if err != nil || records[0].End != grantedAt+test.end {
				t.Errorf("free at %d (%v), want %d", records[0].End-grantedAt, err, test.end)
			}
		})
	}
}
