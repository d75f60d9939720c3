package keeper

import (
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

// Moment has the readings of the clocks and the generator when an event arrives.
type Moment struct {
	MS      int64         // the believed time, Unix ms
	Elapsed time.Duration // by a clock that cannot be set
	LastMS  int64         // the largest Unix ms that any ID so far may embed
	Halt    bool          // the keeper is to end: no further call may begin
}

// Event is what Core.Handle takes: a Tick or a Stop, or the outcome of the action that it
// returned before.
type Event any

// The events. Each action but Sleep and Done is answered by one of them.
type (
	// Tick: a Sleep is over. Growth: the generator has used up its leases.
	Tick struct{ Growth bool }
	// Stop: the daemon ends. The last action after it is Done.
	Stop struct{}

	Published struct{}
	Rebased   struct{ OK bool } // whether the stream goes on increasing
	Saved     struct{ Err error }
	Confirmed struct{}
	Acquired  struct {
		Leases []lease.Lease
		Err    error
	}
	// Verified: Err is errors.ErrUnsupported where the provider cannot tell.
	Verified struct {
		Lost []lease.Lease
		Err  error
	}
	Released struct{ Err error }
)

// Action is the one thing to do next.
type Action any

// The actions.
type (
	// Publish replaces the leases that the generator makes IDs from. Cause says why there is
	// no lease. The zero value seals it.
	Publish struct {
		Held   []lease.Lease
		Cached *lease.Lease
		Cause  error
	}
	// Rebase moves the stream to another timeline.
	Rebase struct{ Timeline snowflake.Timeline }
	// Save writes the live state. AfterLoss: it lacks leases that belong to another client now.
	Save struct {
		Content   state.Saved
		AfterLoss bool
	}
	// Confirm tells the clock the present time of a provider with a clock of its own.
	Confirm struct{ ProviderMS int64 }

	// Acquire, Verify and Release are calls of the provider.
	Acquire struct{ Request provider.AcquireRequest }
	Verify  struct{ Leases []lease.Lease }
	Release struct{ Request provider.ReleaseRequest }

	// Sleep: nothing is due for so long.
	Sleep struct{ For time.Duration }
	// Done: the stop is complete.
	Done struct{}
)

// Observer receives events for the metrics. Its methods return at once.
type Observer interface {
	Acquired(result string)                  // one of the Result constants
	Called(op string, d time.Duration)       // a provider call took d
	Lost(reason string)                      // a held lease is no longer ours
	Mismatch()                               // a lease on another timeline was refused
	StateFailed()                            // the local state could not be written
	Skew(created int64, local time.Duration) // a grant's time minus the local clock
}

// Results of an acquire, as the metric names them.
const (
	ResultOK          = "ok"
	ResultRefused     = "refused"
	ResultUnavailable = "unavailable"
	ResultTimeout     = "timeout"
	ResultFenced      = "fenced"
	ResultMismatch    = "mismatch"
)

// Report is a transition's report for the log and the metrics.
type Report struct {
	Lines []Line
	Seen  []func(Observer)
}

// Line is an entry of the log.
type Line struct {
	Level  zapcore.Level
	Text   string
	Fields []zap.Field
}

func (r *Report) line(level zapcore.Level, text string, fields ...zap.Field) {
	r.Lines = append(r.Lines, Line{level, text, fields})
}

func (r *Report) seen(f func(Observer)) { r.Seen = append(r.Seen, f) }
