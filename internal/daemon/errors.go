package daemon

import (
	"cmp"
	"errors"
	"regexp"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/wire"
)

// codeInternal marks a mistake in the daemon.
const codeInternal wire.Code = "INTERNAL"

// CodeNoStore: the daemon keeps no locks and sequences, or requests do not reach those of its lease
// server until an operator mends something.
const CodeNoStore wire.Code = "NO_STORE"

// wireError turns an error into the peer's answer.
func (s *Server) wireError(err error) *wire.Error {
	if limit := limitOf(err); limit != "" {
		s.cfg.Refusals.Refuse(limit, err.Error())
	}
	if e := asWireError(err); e != nil {
		return e
	}
	// Nothing that a peer can cause ends here.
	s.log.Error("request failed for a reason that has no code", zap.Error(err))
	return wire.Errorf(codeInternal, "%v", err)
}

// limitOf names the limit of a part that has limits of its own, where one of them is reached. Otherwise
// it is empty: refusals by the daemon's bounds are counted already.
func limitOf(err error) string {
	var full *record.FullError
	var placed *driver.OverloadedError
	switch {
	case errors.As(err, &full):
		return cmp.Or(full.Setting, refusals.Disk)
	case errors.As(err, &placed) && placed.Watches:
		return refusals.Watches
	case errors.As(err, &placed):
		return refusals.Activations
	case errors.Is(err, lock.ErrOverloaded):
		return refusals.Holds
	case errors.Is(err, record.ErrCrowded):
		return refusals.StoreCalls
	case errors.Is(err, errTooManyKinds):
		return refusals.Kinds
	}
	return ""
}

// asWireError gives the code of an error that has one.
func asWireError(err error) *wire.Error {
	var wired *wire.Error
	var backward *generator.ClockBackwardError
	var acquisition *generator.LeaseAcquisitionError
	var timeout *generator.TimeoutError
	var full *record.FullError
	var placed *driver.OverloadedError
	switch {
	case errors.As(err, &wired):
		return wired
	case errors.As(err, &full):
		e := wire.Errorf(wire.CodeStoreFull, "%v", full)
		if full.Setting != "" {
			e = e.With("setting", full.Setting).With("limit", full.Limit)
		}
		return e
	case errors.As(err, &placed), errors.Is(err, errTooManyKinds):
		return wire.Errorf(wire.CodeOverloaded, "%v", err)
	case errors.As(err, &backward):
		return wire.Errorf(wire.CodeClockBackward, "the clock is behind the last ID (or the epoch): %s", backward.Advice()).
			With("backward_ms", backward.BackwardMS).With("limit_ms", backward.LimitMS)
	case errors.As(err, &acquisition):
		cause := "no lease is valid now"
		if acquisition.Cause != nil {
			cause = withoutPaths(acquisition.Cause.Error())
		}
		return wire.Errorf(wire.CodeLeaseAcquisition, "no valid lease, and no fallback ID is allowed").With("cause", cause)
	case errors.As(err, &timeout):
		return wire.Errorf(wire.CodeTimeout, "no ID in time").
			With("waited_ms", timeout.Waited.Milliseconds()).With("cause", timeout.For)
	case errors.Is(err, generator.ErrNoProvider):
		return wire.Errorf(wire.CodeNoProvider, "%v", generator.ErrNoProvider)
	case errors.Is(err, generator.ErrOverflow):
		return wire.Errorf(wire.CodeTimestampOverflow, "%v", generator.ErrOverflow)
	case errors.Is(err, generator.ErrStopped), errors.Is(err, errShuttingDown), errors.Is(err, lock.ErrClosed):
		return shuttingDown()
	}
	if e := placementError(err); e != nil {
		return e
	}
	if errors.Is(err, record.ErrCrowded) {
		return wire.Errorf(wire.CodeOverloaded, "%v: ask again", record.ErrCrowded)
	}
	if stray, ok := errors.AsType[*record.StrayError](err); ok {
		return wire.Errorf(CodeNoStore, "%v", stray)
	}
	if store, ok := errors.AsType[storeError](err); ok {
		return wire.Errorf(wire.CodeStoreUnavailable, "the store failed; what it did is not known: ask again with the same request_id").
			With("cause", withoutPaths(store.Error()))
	}
	if e := lockError(err); e != nil {
		return e
	}
	return sequenceError(err)
}

// absolutePath is one in a text; the path of a URL is none.
var absolutePath = regexp.MustCompile(`(^|[\s:="'(])/[^/\s:"'),;][^\s:"'),;]*`)

// withoutPaths keeps the paths of the daemon's files from its clients. The log has them.
func withoutPaths(text string) string { return absolutePath.ReplaceAllString(text, "${1}(path)") }

func shuttingDown() *wire.Error {
	return wire.Errorf(wire.CodeShuttingDown, "the daemon is stopping: connect again")
}

func invalidExternal(text string, err error) error {
	return wire.Errorf(wire.CodeInvalidExternalID, "%s: %v", wire.Excerpt([]byte(text)), err)
}

// noStore is the error of the methods that need a store where there is none.
func noStore() *wire.Error {
	return wire.Errorf(CodeNoStore, "this daemon has nowhere to keep locks and sequences: its operator can set store, or a state_dir where the provider is not kubernetes:")
}
