package redis

import (
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

var followed = record.Area{Name: "followed", MaxGrantMS: maxGrant.Milliseconds(), FollowsClock: true}

// The clock steps back. The time of an area that follows it does so too, in each look, commit and
// list; another area's stands still.
func TestAreaFollowsClock(t *testing.T) {
	r := newRig(t, redistest.New(t, "--appendonly", "yes", "--appendfsync", "always"))
	back := int64(began - 30*minute)
	for _, a := range []record.Area{followed, area} {
		s, err := open(r.cfg, a)
		must.Succeed(t, err)
		t.Cleanup(func() { s.Close() })
		must.Succeed(t, s.Init(testContext(t)))
		r.Store(began)
		w := record.Write{Key: "k", Value: []byte("1"), TermMS: 60 * minute}
		_, err = put(t, s, w)
		must.Succeed(t, err)
		r.Store(back)
		want := int64(began)
		if a.FollowsClock {
			want = back
		}
		for range 2 {
			shown := int64(0)
			at, err := s.Change(testContext(t), record.Ask{Keys: []string{"k"}, Fresh: true}, func(v record.View) ([]record.Write, error) {
				shown = v.NowMS
				return []record.Write{w}, nil
			})
			must.Succeed(t, err)
			v, err := s.Read(testContext(t), record.Ask{Keys: []string{"k"}})
			must.Succeed(t, err)
			page, err := s.List(testContext(t), "k", "", 1)
			must.Succeed(t, err)
			if shown != want || at != want || v.NowMS != want || page[0].LeftMS != w.TermMS {
				t.Errorf("a rule of the area %s was shown %d, and its commit was at %d; a read is of %d, and in a list %d ms are left; want the time %d",
					a.Name, shown, at, v.NowMS, page[0].LeftMS, want)
			}
		}
	}
}

// The fence of an area that follows the clock is counted from the latest time that it had.
func TestFenceAfterTheLatestTime(t *testing.T) {
	server := redistest.New(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newRig(t, server)
	s, err := open(r.cfg, followed)
	must.Succeed(t, err)
	t.Cleanup(func() { s.Close() })
	must.Succeed(t, s.Init(testContext(t)))
	_, err = put(t, s, grant("k", time.Minute))
	must.Succeed(t, err)
	r.Store(began - 30*minute)
	v, err := s.Read(testContext(t), record.Ask{})
	must.Succeed(t, err)
	for _, w := range []record.Write{{Key: "k", Value: []byte("1"), Mark: v.Floor + 1}, {Key: "k"}} { // the area's record is written anew
		_, err = put(t, s, w)
		must.Succeed(t, err)
	}
	server.Restart()
	v, err = s.Read(testContext(t), record.Ask{})
	must.Succeed(t, err)
	if want := began + maxGrant.Milliseconds(); v.Fence.UntilMS != want || v.Fence.FromMS != began {
		t.Errorf("the fence is %+v, want one until %d", v.Fence, want)
	}
}

// Leases: a fence lasts at least as long as this process's grants, with any record; a process
// that grants for longer makes it longer, also afterwards, unless an operator names the loss.
func TestSettleLeases(t *testing.T) {
	const hour = 60 * minute
	one, two := server{runID: "one", replID: "1", nowMS: began}, server{runID: "two", replID: "2", nowMS: began + minute}
	leases, long := limitsOf(followed), limitsOf(record.Area{Name: "followed", MaxGrantMS: 3 * hour, FollowsClock: true})
	trusting := long
	trusting.fenceSet = true
	fresh, _ := settle(nil, one, leases)
	trusted := fresh
	trusted.trust()
	restarted, _ := settle(&trusted, two, leases)
	set, _ := settle(&trusted, two, trusting)
	over, _ := settle(&fresh, server{runID: "two", replID: "2", nowMS: began + hour}, leases)
	still, _ := settle(&fresh, two, leases)
	for name, c := range map[string]struct {
		before  *state
		now     server
		limits  limits
		until   int64 // ms after began
		longest int64
		reason  string
	}{
		"no record":                          {nil, one, leases, hour, hour, missing},
		"nothing was granted":                {&trusted, two, leases, minute + hour, hour, changed},
		"this process grants for longer":     {&trusted, two, long, minute + 3*hour, 3 * hour, changed},
		"it comes after the restart":         {&restarted, two, long, minute + 3*hour, 3 * hour, changed},
		"it comes after the loss":            {&fresh, one, long, 3 * hour, 3 * hour, missing},
		"its operator knows what was lost":   {&set, two, trusting, minute, 3 * hour, changed},
		"and comes after the restart":        {&restarted, two, trusting, minute + hour, 3 * hour, changed},
		"and comes after the loss":           {&fresh, one, trusting, 3 * hour, 3 * hour, missing},
		"restarted after the fence":          {&over, server{runID: "two", replID: "2", nowMS: began + hour}, leases, 2 * hour, hour, changed},
		"restarted while all may be missing": {&still, two, leases, minute + hour, hour, missing},
		"nothing new":                        {&restarted, two, leases, minute + hour, hour, changed},
	} {
		after, _ := settle(c.before, c.now, c.limits)
		if after.UntilMS != began+c.until || after.LongestMS != c.longest || after.Reason != c.reason || after.Trusted {
			t.Errorf("%s: the fence ends %d ms later, the longest is %d, because of %q; want %d, %d, %q",
				name, after.UntilMS-began, after.LongestMS, after.Reason, c.until, c.longest, c.reason)
		}
	}
	if after, changes := settle(&trusted, one, long); !changes || !after.Trusted || after.LongestMS != 3*hour {
		t.Errorf("a longer lease where nothing was lost: %+v (%v)", after.facts, changes)
	}
}
