package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	served "github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// restoreID is an ID that a daemon answered with.
type restoreID struct {
	id         uint64
	kind       restoreKind
	reservedMS int64 // of a cached one: until then its slot is reserved
}

type restoreKind int

const (
	restoreRegular restoreKind = iota
	restoreCached
	restoreRandom
)

// certain reports whether no other ID may be equal.
func (r restoreID) certain() bool {
	return r.kind == restoreRegular || r.kind == restoreCached && testkit.UnixMS(snowflake.ID(r.id)) < r.reservedMS
}

// restoreLife is what one life of a daemon answered.
type restoreLife struct {
	name string
	ids  []restoreID
}

// restoreResult is what a row of the table counts.
type restoreResult struct {
	kinds [restoreRandom + 1]int
	equal int    // IDs that must be unique and are not
	first string // describes the first of them
}

// checkRestore counts the IDs of all lives, and the equal ones.
func checkRestore(lives []restoreLife) (res restoreResult) {
	var all []drawn
	for i, l := range lives {
		for _, r := range l.ids {
			res.kinds[r.kind]++
			if r.certain() {
				all = append(all, drawn{r.id, i})
			}
		}
	}
	meetings(all, func(a, b drawn) {
		if res.equal == 0 {
			res.first = fmt.Sprintf("%d of %s and %d of %s (%s)", a.id, lives[a.by].name, b.id, lives[b.by].name, snowflake.FormatMS(testkit.UnixMS(snowflake.ID(b.id))))
		}
		res.equal++
	})
	return res
}

func (res *restoreResult) add(other restoreResult) {
	for kind, n := range other.kinds {
		res.kinds[kind] += n
	}
	res.equal += other.equal
	res.first = cmp.Or(res.first, other.first)
}

// restoreBatch is how many IDs are asked for at once: enough for the batches of
// two daemons that run at full speed to meet in a millisecond.
const restoreBatch = 512

// askForRestore asks a daemon for IDs until the time is over, and says of each
// what kind it is of. A daemon may refuse: it has no lease, or its clock is behind.
func askForRestore(socket string, d time.Duration) (ids []restoreID, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	c, err := testkit.DialSocket(socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var before daemon.Status
	if err := c.Call(ctx, "Status", &before); err != nil {
		return nil, err
	}
	for begun := time.Now(); time.Since(begun) < d; {
		var batch []uint64
		var after daemon.Status
		err := c.Call(ctx, "NextIDs", &batch, restoreBatch, map[string]any{"timeout_ms": 500})
		var refusal *wire.Error
		if errors.As(err, &refusal) && slices.Contains([]wire.Code{wire.CodeClockBackward, wire.CodeLeaseAcquisition, wire.CodeTimeout}, refusal.Code) {
			time.Sleep(await.Interval)
		} else if err != nil {
			return ids, err
		}
		if err := c.Call(ctx, "Status", &after); err != nil {
			return ids, err
		}
		for _, id := range batch {
			ids = append(ids, classify(id, before.Services[0], after.Services[0]))
		}
		before = after
	}
	return ids, nil
}

// classify says of which kind an ID is that was made between two looks at the
// service. Only the test asks the daemon, so the daemon's counts in between are exact.
func classify(id uint64, before, after served.ServiceStatus) restoreID {
	r := restoreID{id: id}
	switch {
	case !testkit.IsFallback(id):
		return r
	case after.Issued.FallbackCached == before.Issued.FallbackCached:
		r.kind = restoreRandom
		return r
	}
	tl := snowflake.DefaultTimeline()
	slot := (tl.Low(snowflake.ID(id)) &^ tl.FallbackBit()) >> snowflake.DefaultBitSeq
	for _, svc := range []served.ServiceStatus{before, after} {
		leases := svc.Leases
		if svc.Cached != nil {
			leases = append(slices.Clone(leases), *svc.Cached)
		}
		for _, l := range leases {
			if l.MachineID == slot {
				r.kind, r.reservedMS = restoreCached, max(r.reservedMS, l.ReservedMS)
			}
		}
	}
	if r.kind != restoreCached {
		r.kind = restoreRandom
	}
	return r
}

// TestRestoreChecker: the checker finds each fault that is put into a record.
func TestRestoreChecker(t *testing.T) {
	tl, at := snowflake.DefaultTimeline(), snowflake.DefaultEpochMS+1000
	id := func(kind restoreKind, ms, low, reserved int64) restoreID {
		if kind != restoreRegular {
			low |= tl.FallbackBit()
		}
		return restoreID{uint64(tl.ID(at+ms, low)), kind, at + reserved}
	}
	regular := func(ms, low int64) restoreID { return id(restoreRegular, ms, low, 0) }
	for name, test := range map[string]struct {
		a, b restoreID
		want int
	}{
		"regular twice":                     {regular(1, 7), regular(1, 7), 1},
		"one slot, one millisecond":         {regular(1, 7), regular(1, 9), 1},
		"one slot, two milliseconds":        {regular(1, 7), regular(2, 7), 0},
		"two slots":                         {regular(1, 7), regular(1, 300), 0},
		"cached twice before both ends":     {id(restoreCached, 1, 7, 9), id(restoreCached, 1, 7, 5), 1},
		"cached twice, beyond one end":      {id(restoreCached, 1, 7, 9), id(restoreCached, 1, 7, 1), 0},
		"cached and random, which may be":   {id(restoreCached, 1, 7, 9), id(restoreRandom, 1, 7, 0), 0},
		"regular and cached of one slot":    {regular(1, 7), id(restoreCached, 1, 7, 9), 0},
		"random twice, which chance may do": {id(restoreRandom, 1, 7, 0), id(restoreRandom, 1, 7, 0), 0},
	} {
		res := checkRestore([]restoreLife{{"A", []restoreID{test.a}}, {"B", []restoreID{test.b}}})
		if res.equal != test.want || (res.first == "") != (test.want == 0) {
			t.Errorf("%s: %+v, want %d", name, res, test.want)
		}
	}
	if res := checkRestore([]restoreLife{{"A", []restoreID{regular(1, 7), regular(1, 8), regular(1, 8)}}}); res.equal != 1 || res.kinds[restoreRegular] != 3 {
		t.Errorf("twice in one life: %+v", res)
	}
}
