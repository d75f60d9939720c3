package etcd

import (
	"context"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kazahana/kazahana/internal/provider/pool"
)

// How much is remembered beyond the record of every slot.
const (
	// requestsKept is how long an answered request is remembered, and
	// maxRequests about how many are; one whose leases live is never forgotten.
	requestsKept = 24 * time.Hour
	maxRequests  = 100_000
	// maxHistory is how many grants a ring's history has room for, shared out
	// among its machine IDs, of which none keeps more than maxHistoryPerSlot.
	maxHistory        = 100_000
	maxHistoryPerSlot = 500
)

// historyKept is how many grants each of n machine IDs remembers.
func historyKept(n int64) int64 { return min(max(maxHistory/n, 1), maxHistoryPerSlot) }

// oldRequest is a request that may be forgotten, unless one of its grants lives
// longer than it was granted for.
type oldRequest struct {
	key    string
	grants []grantRecord
}

// parseOld picks the requests that are old from a few at a random place. Every
// acquire looks at as many, so that old ones are found as fast as new ones
// come: with requestSample of them, one key in so many is out of date. Their
// keys are hashes, and the gaps between a few of them tell how many there are.
func (st *state) parseOld(a *acquisition, sample []*mvccpb.KeyValue) {
	crowded := estimate(a.pool.keys.requests(), sample) > maxRequests
	for _, kv := range sample {
		r, err := decode[requestRecord](kv.Key, kv.Value)
		old := crowded || a.now-r.Created > requestsKept.Milliseconds()
		switch {
		case err != nil: // of no use to anybody
			st.old = append(st.old, oldRequest{key: string(kv.Key)})
		case string(kv.Key) != a.key && old && r.End < a.now:
			st.old = append(st.old, oldRequest{string(kv.Key), r.Grants})
		}
	}
}

// forgettable is the keys of those old requests whose leases have all ended. An
// extension moves the end of a lease and not that of its request, so the leases
// say it. One that has ended cannot be extended any more.
func (a *acquisition) forgettable(ctx context.Context, old []oldRequest) []string {
	var stale []string
	for _, r := range old {
		// What cannot be read now is forgotten another time.
		if lives, err := a.lives(ctx, r.grants); err == nil && !lives {
			stale = append(stale, r.key)
		}
	}
	return stale
}

// lives reports whether one of the grants has not come to its end.
func (a *acquisition) lives(ctx context.Context, grants []grantRecord) (bool, error) {
	records, err := a.p.answered(ctx, a.pool, grants)
	return slices.ContainsFunc(records, func(r *pool.Record) bool { return r != nil && r.End >= a.now }), err
}

// estimate is how many keys there are with the prefix, from neighbours among
// them: n gaps that together take a fraction f of all hashes mean n/f keys.
func estimate(prefix string, neighbours []*mvccpb.KeyValue) float64 {
	gaps := len(neighbours) - 1
	if gaps < 1 {
		return 0
	}
	first, ok1 := position(prefix, neighbours[0].Key)
	last, ok2 := position(prefix, neighbours[gaps].Key)
	if !ok1 || !ok2 || last <= first {
		return 0
	}
	return float64(gaps) / (last - first)
}

// position is where a hash lies among all, from 0 to 1.
func position(prefix string, key []byte) (float64, bool) {
	b, err := hex.DecodeString(strings.TrimPrefix(string(key), prefix))
	if err != nil || len(b) < 8 {
		return 0, false
	}
	at := 0.0
	for i, digit := range b[:8] {
		at += float64(digit) * math.Pow(256, float64(-1-i))
	}
	return at, true
}
