package redis

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
)

const (
	stampBytes = 8
	floorBytes = 8
	factsAt    = stampBytes + momentBytes + floorBytes
	// aheadMS is how far the floor of a new life is above the clock: more than a clock is
	// behind the one before. It is the same in each life. Where it added up from life to life,
	// lives that are forgotten would have had floors above later ones.
	aheadMS = 60_000
	// hiddenTokens is the least distance of the floor from the floor of the life before: more
	// than the tokens of the second in which a clock that is behind may not show.
	hiddenTokens = 100_000
	// leastLongestMS is the first of the doubling steps that Facts.LongestMS takes.
	leastLongestMS = 60_000
)

// state is the store's record. It is stored as the stamp, the latest time on record, the
// floor, and the facts as JSON.
type state struct {
	stamp  string // another one each time that the facts change
	lastMS int64  // up to a second old
	floor  int64
	facts
}

// facts is the part of the store's record that seldom changes.
type facts struct {
	Format string `json:"format"`
	// RunID and ReplID are the server process and the history of its data in the
	// present life.
	RunID  string `json:"run_id"`
	ReplID string `json:"repl_id"`
	// ReplIn is how many bytes the process had read from a primary of its own.
	ReplIn string `json:"repl_in"`
	Life   int64  `json:"life"`
	// Trusted: an operator has said of this life that nothing is missing.
	Trusted bool   `json:"trusted"`
	FromMS  int64  `json:"from_ms"`
	UntilMS int64  `json:"until_ms"`
	Reason  string `json:"reason"` // missing, changed or byHand; "" while it is trusted
	// MissingMS is when the store had no record, and no operator has said more since.
	MissingMS int64 `json:"missing_ms"`
	// LongestMS is at least the longest grant.
	LongestMS int64 `json:"longest_ms"`
}

const (
	missing = "missing"
	changed = "changed"
	byHand  = "by hand"
)

// text is the state as it is stored, with a stamp of its own.
func (s state) text() string {
	b := make([]byte, stampBytes, 512)
	_, _ = rand.Read(b)
	b = binary.BigEndian.AppendUint64(appendMoment(b, s.lastMS), uint64(s.floor))
	text, err := json.Marshal(s.facts)
	if err != nil {
		panic("redis: facts cannot be encoded: " + err.Error())
	}
	return string(append(b, text...))
}

// head reads the part before the facts.
func head(text string) (s state, ok bool) {
	if len(text) < factsAt {
		return state{}, false
	}
	return state{
		stamp:  text[:stampBytes],
		lastMS: moment(text[stampBytes : stampBytes+momentBytes]),
		floor:  int64(binary.BigEndian.Uint64([]byte(text[stampBytes+momentBytes : factsAt]))),
	}, true
}

// parseState reads what text wrote.
func parseState(key, text string) (state, error) {
	s, ok := head(text)
	if !ok {
		return state{}, fmt.Errorf("%s is damaged: %q", key, text)
	}
	if err := json.Unmarshal([]byte(text[factsAt:]), &s.facts); err != nil {
		return state{}, fmt.Errorf("%s is damaged: %w", key, err)
	}
	if s.Format != redisconn.Format {
		return state{}, redisconn.FormatError(key, s.Format)
	}
	return s, nil
}

// server is a server's description of itself.
type server struct {
	runID, replID, replIn string
	wasReplica            bool // and knows the replication ID from before its promotion
	nowMS                 int64
}

// forgetful reports whether the server may have other data than the data last written under
// those facts: it is another process (RunID), or the same process was a replica in between. A
// promotion gives a new replication ID and keeps the one before it. Gaining the first
// replica, or having had none for repl-backlog-ttl, gives a new one too, and clears the one
// before it, also the ID from before a promotion: then the bytes read from its primary tell a
// replica.
func (s server) forgetful(f facts) bool {
	return f.RunID != s.runID || f.ReplID != s.replID && (s.wasReplica || f.ReplIn != s.replIn)
}

// limits are this process's settings of the fence.
type limits struct {
	area string
	// maxGrantMS is how long grants may last of which nothing is known.
	maxGrantMS int64
	// leastMS is how long a fence lasts at least: grants of this process may be among the
	// lost, and with them the records of their length. 0: maxGrantMS is no more than a
	// bound, and the recorded length counts.
	leastMS int64
	// fenceMS is how long the fence lasts after a change, where fenceSet: the operator bounds
	// with it the loss by a change.
	fenceMS  int64
	fenceSet bool
}

// limitsOf returns the limits of an area. An area that follows the clock holds leases, and its
// processes grant for MaxGrantMS.
func limitsOf(area record.Area) limits {
	l := limits{area: area.Name, maxGrantMS: area.Longest()}
	if area.FollowsClock {
		l.leastMS = l.maxGrantMS
	}
	return l
}

// settle returns the state of the store on that server: before, or a new life's where the server
// may have forgotten something. before is nil where the store has no record.
func settle(before *state, s server, l limits) (after state, changes bool) {
	switch {
	case before == nil:
		// The life's number begins anywhere, since records of an earlier one may still be
		// there; and it is small, since every sequence has it.
		after = state{lastMS: s.nowMS, facts: facts{
			Format: redisconn.Format, Life: 1 + mathrand.Int64N(1<<14-1), FromMS: s.nowMS, UntilMS: s.nowMS + l.maxGrantMS, Reason: missing, MissingMS: s.nowMS,
			LongestMS: l.leastMS,
		}}
	case s.forgetful(before.facts):
		after = *before
		// A server with a clock behind the one before it waits that much longer: a lost grant
		// ends by the clock that it was granted by.
		from := max(s.nowMS, before.lastMS)
		after.LongestMS = max(before.LongestMS, l.leastMS)
		until := from + cmp.Or(after.LongestMS, l.maxGrantMS)
		if l.fenceSet {
			until = s.nowMS + l.fenceMS
		}
		switch over := l.leastMS > 0 && s.nowMS >= before.UntilMS; {
		case before.Trusted:
			after.Reason, after.UntilMS = changed, 0
		case over: // and leases are granted, whether an operator has said something or not
			after.Reason = changed
		} // else the state from before holds too
		after.Life, after.Trusted = before.Life+1, false
		after.FromMS, after.UntilMS, after.lastMS = from, max(after.UntilMS, until), from
	case before.ReplID != s.replID || before.ReplIn != s.replIn:
		after = *before
		after.ReplID, after.ReplIn = s.replID, s.replIn
		return after, true
	case l.leastMS > before.LongestMS:
		// A process that grants for longer. Its own grants may be among the lost.
		after = *before
		after.LongestMS = l.leastMS
		if !before.Trusted && !(l.fenceSet && before.Reason == changed) {
			after.UntilMS = max(before.UntilMS, before.FromMS+l.leastMS)
		}
		return after, true
	case before.Reason == missing && before.MissingMS+l.maxGrantMS > before.UntilMS:
		// A process that allows longer terms: its own grants may be among the lost.
		after = *before
		after.UntilMS = before.MissingMS + l.maxGrantMS
		return after, true
	default:
		return *before, false
	}
	after.RunID, after.ReplID, after.ReplIn = s.runID, s.replID, s.replIn
	after.raiseFloor()
	return after, true
}

// raiseFloor is for a new life.
func (s *state) raiseFloor() { s.floor = max(s.floor+hiddenTokens, (s.lastMS+aheadMS)*1000) }

// fenced is the state of a new life: an operator says that the data was put back. With what was
// granted since, the state may lack how long that lasts.
func (s state) fenced(nowMS int64, l limits) state {
	s.lastMS = max(nowMS, s.lastMS)
	s.LongestMS = max(s.LongestMS, l.leastMS)
	s.Life, s.Trusted, s.Reason = s.Life+1, false, byHand
	s.FromMS, s.UntilMS = s.lastMS, max(s.UntilMS, s.lastMS+max(s.LongestMS, l.maxGrantMS))
	s.raiseFloor()
	return s
}

// trust: an operator has said that nothing is missing.
func (f *facts) trust() { f.Trusted, f.UntilMS, f.Reason, f.MissingMS = true, 0, "", 0 }

// longest is at least that term. It is doubled so that it seldom changes.
func longest(termMS int64) int64 {
	l := int64(leastLongestMS)
	for l < termMS {
		l *= 2
	}
	return l
}

func (f facts) life() string { return strconv.FormatInt(f.Life, 10) }

// fence returns the fence that a rule is shown.
func (f facts) fence(l limits, nowMS int64) record.Fence {
	if f.Trusted {
		return record.Fence{}
	}
	ended := l.fenceSet && f.Reason == changed && nowMS >= f.FromMS+l.fenceMS
	return record.Fence{Doubt: !ended, FromMS: f.FromMS, UntilMS: f.UntilMS, Reason: fmt.Sprintf(reasons[f.Reason], l.area), Blank: f.Reason == missing}
}

// reasons take the area's name.
var reasons = map[string]string{
	missing: "the Redis server had no record of the %[1]s: it is new, or it has lost its data and with it what was granted and handed out" + reasonEnd,
	changed: "the Redis server was restarted, or another one has taken its place, and it may have lost the latest of what was granted and handed out" + reasonEnd,
	byHand:  "an operator said that the data was put back (kazahanad %[1]s fence)" + reasonEnd,
}

const reasonEnd = "; where nothing is missing, say so with: kazahanad %[1]s init"

// lookEvery is how often a process looks at all of what INFO says: the settings that an
// operator changes while the server runs.
const lookEvery = time.Second
