package leaseserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
)

var errStore = errors.New("the store does not answer")

// acquired returns what the provider is told of the client.
func acquired(b *stats, client uint64, saysNew bool, err error) provider.Client {
	kind := b.arrived(client, saysNew)
	b.acquired("default", client, kind, 1, err)
	return kind
}

// A client is new once, with any outcome of its acquires; and again while it is not known whether the
// store counted it.
func TestClientsAreCountedOnce(t *testing.T) {
	b := newStats(newLimiter(0, 1))
	for i, test := range []struct {
		client  uint64
		saysNew bool
		err     error
		want    provider.Client
	}{
		{1, true, errStore, provider.NewClient}, {1, true, nil, provider.NewClient}, {1, true, nil, provider.KnownClient},
		{2, false, nil, provider.KnownClient}, // it came to another server before
		{3, true, &provider.FullError{}, provider.NewClient}, {3, true, nil, provider.KnownClient},
	} {
		if got := acquired(&b, test.client, test.saysNew, test.err); got != test.want {
			t.Errorf("acquire %d: the client is %v, want %v", i, got, test.want)
		}
	}
	if b.counts != (counts{leases: 4, refused: 2}) {
		t.Errorf("%+v", b.counts)
	}
	for client := range uint64(2 * maxSeen) {
		b.arrived(client, true)
	}
	if n := len(b.seen); n > maxSeen {
		t.Errorf("%d clients are remembered", n)
	}
}

// A fence is shown until it ends, or until an acquire is granted.
func TestFenceIsShown(t *testing.T) {
	b := newStats(newLimiter(0, 1))
	fenced := func(nowMS int64) bool {
		_, until := b.prospect("default", nowMS, 1)
		return until != 0
	}
	acquired(&b, 1, true, &provider.FencedError{UntilMS: 1000})
	acquired(&b, 1, true, errStore)
	if !fenced(999) || fenced(1000) {
		t.Errorf("fenced before its end: %v, at its end: %v", fenced(999), fenced(1000))
	}
	acquired(&b, 1, true, nil)
	if fenced(999) {
		t.Error("fenced after a grant")
	}
}

// The provider has failed lately where a call failed a moment ago: not where the
// peer had gone, nor where only a listing took too long.
func TestFailedLately(t *testing.T) {
	b := newStats(newLimiter(0, 1))
	b.called("list", errStore, false, 1000)
	b.called("acquire", context.Canceled, true, 1000)
	if b.failedLately(1000) {
		t.Error("a list and a peer that has gone count")
	}
	b.called("acquire", errStore, false, 1000)
	end := 1000 + unreadyAfterFailure.Milliseconds()
	if !b.failedLately(end-1) || b.failedLately(end) {
		t.Errorf("just before the end: %v, at the end: %v", b.failedLately(end-1), b.failedLately(end))
	}
	b.called("acquire", &provider.FullError{}, false, 1000)
	if b.failedLately(1000) {
		t.Error("a refusal is no answer")
	}
}

// A pool that cannot be looked at is shown in the metrics as it was last, for a while.
func TestSamplesGetOld(t *testing.T) {
	fails := &stub{}
	g := newRig(t, func(g *rig) {
		g.services.Default.IDs = provider.IDRange{Low: 0, End: 8}
		fails.Provider, g.options.Provider = g.memory(), fails
	})
	g.server.stats.fresh = 0 // each sample looks at the store
	g.acquire("", "")
	if s := g.server.sample(); s.Slots["default"] != 8 || s.Free["default"] != 7 || s.Active["default"] != 1 {
		t.Errorf("%+v", s)
	}
	fails.err = errFailed
	known, _ := g.server.latest("default")
	known.at = time.Now().Add(time.Minute - sampleKept)
	if s := g.server.sample(); s.Slots["default"] != 8 || s.Free["default"] != 7 || s.Active["default"] != 1 {
		t.Errorf("a while later: %+v", s)
	}
	known.at = time.Now().Add(-sampleKept)
	if s := g.server.sample(); len(s.Slots) != 0 || len(s.Active) != 0 {
		t.Errorf("when it is old: %+v", s)
	}
}

// The log tells of a pool when it gets worse, now and then while that lasts, and when there
// is room again; a pool that goes up and down makes a line a minute.
func TestFullnessIsToldSparingly(t *testing.T) {
	b := newStats(newLimiter(0, 1))
	const minute = 60_000
	for i, step := range []struct {
		level provider.Fullness
		at    int64
		tells bool
	}{
		{provider.Roomy, 0, false}, {provider.NearlyFull, 1, true}, {provider.NearlyFull, 2, false}, {provider.Full, 3, false},
		{provider.Full, minute + 1, true}, {provider.AlmostFull, minute + 2, false}, {provider.Roomy, minute + 3, false},
		{provider.Full, 2 * minute, false}, {provider.Full, 11*minute + 1, true}, {provider.Roomy, 13 * minute, true}, {provider.Roomy, 14 * minute, false},
		{provider.NearlyFull, 14 * minute, true},
	} {
		if got := b.fills("default", step.level, step.at); got != step.tells {
			t.Errorf("step %d: %s at %d: %v", i, step.level, step.at, got)
		}
	}
	if levels := b.fullest(); len(levels) != 1 || levels[0] != provider.NearlyFull {
		t.Error(levels)
	}
}
