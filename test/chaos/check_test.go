package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
)

// chaosID is an ID that a host answered with, and when, counted from the start
// of the scenario.
type chaosID struct {
	at time.Duration
	id uint64
}

// chaosStream is what one host answered, in the order of the answers.
type chaosStream struct {
	host    string
	outlier bool // its clock is an hour off: it must never have a lease
	served  bool // unless the provider has no other clock
	ids     []chaosID
	faults  []string // what no request may meet
}

// chaosRecord has the answers of all hosts in a scenario, and the scenario's knowledge of it.
// Unix milliseconds are compared with the ones that IDs embed.
type chaosRecord struct {
	streams     []chaosStream
	from, until time.Duration // requests were made in between
	gap         time.Duration // no host may be silent for longer
	// In [quietFrom, quietTo) no host can have a valid lease: all had ended, and none could be
	// granted. An empty interval says nothing.
	quietFrom, quietTo int64
	// A regular ID of this millisecond or later needs a lease that was granted
	// after the fault.
	backFrom int64
	mended   time.Duration // when the scenario had put everything right
}

// What the checker finds.
const (
	chaosTwice     = "a regular ID came twice"
	chaosShared    = "two hosts used one machine ID in one millisecond"
	chaosUnordered = "an ID came after one that is not smaller"
	chaosSilent    = "a host was silent for too long"
	chaosUnleased  = "a regular ID was made when nobody could have a lease"
	chaosOuter     = "a regular ID was made by a host whose clock is an hour off"
	chaosLost      = "a host did not return to normal mode"
	chaosFault     = "something else went wrong"
)

// chaosShown is how many violations of a kind are described.
const chaosShown = 3

// findings are violations of the promises.
type findings struct {
	count      map[string]int // of violations, by what they are
	violations []string       // the first of each kind
}

// chaosResult is what the checker found.
type chaosResult struct {
	findings
	regular, fallback int
	fallbackTwice     int // allowed: random ones can meet
	longestGap        time.Duration
	longestOf         string        // the host with that gap
	backAfter         time.Duration // until the last host was back in normal mode
}

func (f *findings) violates(what, format string, args ...any) {
	if f.count[what]++; f.count[what] <= chaosShown {
		f.violations = append(f.violations, what+": "+fmt.Sprintf(format, args...))
	}
}

// summarise says how much more there was of each kind.
func (f *findings) summarise() {
	for _, what := range slices.Sorted(maps.Keys(f.count)) {
		if more := f.count[what] - chaosShown; more > 0 {
			f.violations = append(f.violations, fmt.Sprintf("%s: %d times more", what, more))
		}
	}
}

// check merges everything and says what must not be.
func (r chaosRecord) check() chaosResult {
	res := chaosResult{findings: findings{count: map[string]int{}}}
	r.checkUnique(&res)
	for _, s := range r.streams {
		r.checkStream(&res, s)
		for _, f := range s.faults {
			res.violates(chaosFault, "%s: %s", s.host, f)
		}
	}
	res.summarise()
	return res
}

// drawn is an ID, and the number of the process that answered with it.
type drawn struct {
	id uint64
	by int
}

// meetings finds IDs that are equal, and two processes that used one machine ID in one
// millisecond: that they did not draw the same sequence number then is luck.
func meetings(all []drawn, found func(a, b drawn)) {
	slices.SortFunc(all, func(a, b drawn) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.by, b.by)) })
	for i := 1; i < len(all); i++ {
		a, b := all[i-1], all[i]
		if a.id == b.id || a.id>>snowflake.DefaultBitSeq == b.id>>snowflake.DefaultBitSeq && a.by != b.by {
			found(a, b)
		}
	}
}

// checkUnique looks for regular IDs that met.
func (r chaosRecord) checkUnique(res *chaosResult) {
	var all []drawn
	for i, s := range r.streams {
		for _, a := range s.ids {
			all = append(all, drawn{a.id, i})
		}
	}
	meetings(all, func(a, b drawn) {
		switch one, other := r.streams[a.by].host, r.streams[b.by].host; {
		case testkit.IsFallback(b.id) && a.id == b.id:
			res.fallbackTwice++
		case testkit.IsFallback(b.id):
		case a.id == b.id:
			res.violates(chaosTwice, "%s and %s: %d", one, other, a.id)
		default:
			res.violates(chaosShared, "%s for %d, %s for %d", one, a.id, other, b.id)
		}
	})
}

func (r chaosRecord) checkStream(res *chaosResult, s chaosStream) {
	answered, last, back := r.from, uint64(0), time.Duration(-1)
	silent := func(until time.Duration) {
		if gap := until - answered; gap > res.longestGap {
			res.longestGap, res.longestOf = gap, s.host
		}
		if until-answered > r.gap {
			res.violates(chaosSilent, "%s from %v to %v", s.host, answered.Round(time.Millisecond), until.Round(time.Millisecond))
		}
		answered = until
	}
	for _, a := range s.ids {
		silent(a.at)
		if a.id <= last {
			res.violates(chaosUnordered, "%s: %d after %d", s.host, a.id, last)
		}
		last = a.id
		if testkit.IsFallback(a.id) {
			res.fallback++
			continue
		}
		res.regular++
		ms := testkit.UnixMS(snowflake.ID(a.id))
		if s.outlier && !s.served {
			res.violates(chaosOuter, "%s: %d", s.host, a.id)
		}
		if r.quietFrom <= ms && ms < r.quietTo {
			res.violates(chaosUnleased, "%s: %d of %s", s.host, a.id, snowflake.FormatMS(ms))
		}
		if back < 0 && ms >= r.backFrom {
			back = a.at
		}
	}
	silent(r.until)
	if s.outlier {
		return
	}
	if back < 0 {
		res.violates(chaosLost, "%s", s.host)
		return
	}
	res.backAfter = max(res.backAfter, back-r.mended)
}

// chaosExample is a record without fault: two hosts, a fault from 3 s to 7 s,
// and a host with a clock that is an hour ahead. Everybody answers every 100 ms.
func chaosExample() chaosRecord {
	r := chaosRecord{
		until: 10 * time.Second, gap: time.Second, mended: 7 * time.Second,
		quietFrom: snowflake.DefaultEpochMS + 3000, quietTo: snowflake.DefaultEpochMS + 7000, backFrom: snowflake.DefaultEpochMS + 7000,
	}
	tl, layout := snowflake.DefaultTimeline(), snowflake.DefaultLayout()
	for i, s := range []chaosStream{{host: "h1"}, {host: "h2"}, {host: "ahead", outlier: true}} {
		for ms := int64(100); ms <= 10_000; ms += 100 {
			low, at := layout.Slot(int64(i)).Start, snowflake.DefaultEpochMS+ms
			if s.outlier {
				at += time.Hour.Milliseconds()
			}
			if s.outlier || at >= r.quietFrom && at < r.quietTo {
				low |= tl.FallbackBit()
			}
			s.ids = append(s.ids, chaosID{time.Duration(ms) * time.Millisecond, uint64(tl.ID(at, low))})
		}
		r.streams = append(r.streams, s)
	}
	return r
}

// TestChaosChecker: the checker is content with a record without fault, and
// finds each fault that is put into it.
func TestChaosChecker(t *testing.T) {
	res := chaosExample().check()
	if len(res.violations) > 0 || res.regular != 2*60 || res.fallback != 2*40+100 || res.longestGap != 100*time.Millisecond || res.backAfter != 0 {
		t.Errorf("without fault: %+v", res)
	}
	fallbackBit := uint64(snowflake.DefaultTimeline().FallbackBit())
	ids := func(r *chaosRecord, host int) []chaosID { return r.streams[host].ids }
	for name, test := range map[string]struct {
		put       func(r *chaosRecord)
		want, who string
	}{
		"duplicate of two hosts":    {func(r *chaosRecord) { ids(r, 1)[5].id = ids(r, 0)[5].id }, chaosTwice, "h1 and h2"},
		"duplicate of one host":     {func(r *chaosRecord) { ids(r, 0)[6].id = ids(r, 0)[5].id }, chaosTwice, "h1 and h1"},
		"one slot, one millisecond": {func(r *chaosRecord) { ids(r, 1)[5].id = ids(r, 0)[5].id + 1 }, chaosShared, "h1 for "},
		"decrease":                  {func(r *chaosRecord) { a := ids(r, 0); a[5].id, a[6].id = a[6].id, a[5].id }, chaosUnordered, "h1"},
		"fallback decreases":        {func(r *chaosRecord) { a := ids(r, 2); a[5].id, a[6].id = a[6].id, a[5].id }, chaosUnordered, "ahead"},
		"gap":                       {func(r *chaosRecord) { r.streams[0].ids = slices.Delete(ids(r, 0), 40, 51) }, chaosSilent, "h1 from 4s to 5.2s"},
		"late start":                {func(r *chaosRecord) { r.streams[0].ids = ids(r, 0)[11:] }, chaosSilent, "h1 from 0s to 1.2s"},
		"early end":                 {func(r *chaosRecord) { r.streams[0].ids = ids(r, 0)[:88] }, chaosSilent, "h1 from 8.8s to 10s"},
		"outlier's silence":         {func(r *chaosRecord) { r.streams[2].ids = nil }, chaosSilent, "ahead from 0s to 10s"},
		"no return": {func(r *chaosRecord) {
			for i := range ids(r, 1)[69:] {
				ids(r, 1)[69+i].id |= fallbackBit
			}
		}, chaosLost, "h2"},
		"regular without a lease": {func(r *chaosRecord) { ids(r, 1)[40].id &^= fallbackBit }, chaosUnleased, "h2"},
		"outlier with a lease":    {func(r *chaosRecord) { ids(r, 2)[99].id &^= fallbackBit }, chaosOuter, "ahead"},
		"refusal":                 {func(r *chaosRecord) { r.streams[2].faults = []string{"NextID: no"} }, chaosFault, "ahead: NextID: no"},
	} {
		t.Run(name, func(t *testing.T) {
			r := chaosExample()
			test.put(&r)
			res := r.check()
			if found := strings.Join(res.violations, "\n"); res.count[test.want] == 0 || !strings.Contains(found, test.want+": "+test.who) {
				t.Errorf("found %q, want %q of %q", found, test.want, test.who)
			}
		})
	}
	r := chaosExample() // random fallback IDs of two hosts may meet
	ids(&r, 1)[30].id = ids(&r, 0)[30].id
	if res := r.check(); len(res.violations) > 0 || res.fallbackTwice != 1 {
		t.Errorf("a fallback ID twice: %+v", res)
	}
}
