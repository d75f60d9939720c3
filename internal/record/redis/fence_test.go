package redis

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

const (
	whyByHand  = "an operator said that the data was put back (kazahanad store fence)"
	whyMissing = "had no record of the store"
	whyChanged = "was restarted, or another one has taken its place"
	minute     = 60_000
)

// A server that has no record of the store is fenced for as long as any client grants.
// A server that has one, for as long as the longest grant that it knows of; further
// changes only lengthen that. The floor is above everything that came before.
func TestSettle(t *testing.T) {
	const hour, day = 60 * minute, 24 * 60 * minute
	one := server{runID: "one", replID: "1", nowMS: began}
	two := server{runID: "two", replID: "2", nowMS: began + minute}
	within := limits{maxGrantMS: day}
	trusting := limits{maxGrantMS: day, fenceSet: true, fenceMS: 5}
	fresh, _ := settle(nil, one, within)
	trusted := fresh
	trusted.Trusted, trusted.UntilMS, trusted.Reason, trusted.MissingMS = true, 0, "", 0
	granted := trusted
	granted.LongestMS, granted.lastMS = hour, began+30
	ahead := granted
	ahead.lastMS = began + day
	again, _ := settle(&granted, two, within)
	for name, c := range map[string]struct {
		before   *state
		now      server
		limits   limits
		life     int64 // lives later
		from     int64 // ms after began; likewise until
		until    int64
		reason   string
		changes  bool
		floorsMS int64 // the least floor, as a time after began
	}{
		"no record":                 {nil, one, within, 0, 0, day, missing, true, 0},
		"no record, and trusting":   {nil, one, trusting, 0, 0, day, missing, true, 0},
		"nothing new":               {&granted, one, within, 0, 0, -began, "", false, 0},
		"still missing":             {&fresh, one, within, 0, 0, day, missing, false, 0},
		"longer terms":              {&fresh, one, limits{maxGrantMS: 2 * day}, 0, 0, 2 * day, missing, true, 0},
		"shorter terms":             {&fresh, one, limits{maxGrantMS: hour}, 0, 0, day, missing, false, 0},
		"another process":           {&granted, two, within, 1, minute, minute + hour, changed, true, minute},
		"nothing granted yet":       {&trusted, two, within, 1, minute, minute + day, changed, true, minute},
		"a clock that is behind":    {&ahead, two, within, 1, day, day + hour, changed, true, day},
		"a trusting client":         {&granted, two, trusting, 1, minute, minute + 5, changed, true, minute},
		"changed while missing":     {&fresh, two, trusting, 1, minute, day, missing, true, minute},
		"changed again":             {&again, server{runID: "three", replID: "3", nowMS: began + 2*minute}, trusting, 2, 2 * minute, minute + hour, changed, true, minute},
		"was a replica":             {&granted, server{runID: "one", replID: "2", wasReplica: true, nowMS: began}, within, 1, 30, 30 + hour, changed, true, 0},
		"has its first replica":     {&granted, server{runID: "one", replID: "2", nowMS: began + minute}, within, 0, 0, -began, "", true, 0},
		"another with the old data": {&granted, server{runID: "two", replID: "1", nowMS: began}, within, 1, 30, 30 + hour, changed, true, 0},
	} {
		after, changes := settle(c.before, c.now, c.limits)
		if c.before == nil {
			if after.Life < 1 || after.Life >= 1<<14 {
				t.Errorf("%s: the first life is %d", name, after.Life)
			}
			after.Life = fresh.Life
		}
		want := fresh.facts
		want.RunID, want.ReplID, want.Life = c.now.runID, c.now.replID, fresh.Life+c.life
		want.FromMS, want.UntilMS, want.Reason, want.LongestMS = began+c.from, began+c.until, c.reason, after.LongestMS
		want.Trusted = c.reason == ""
		if c.reason != missing {
			want.MissingMS = 0
		}
		if changes != c.changes || after.facts != want {
			t.Errorf("%s: %+v (%v), want %+v (%v)", name, after.facts, changes, want, c.changes)
		}
		if after.floor < (began+c.floorsMS)*1000 {
			t.Errorf("%s: the floor is %d", name, after.floor)
		}
	}
}

// TestFloorsRise: the tokens of a life are above those of all before it, also of lives that the
// server has forgotten.
func TestFloorsRise(t *testing.T) {
	next := func(before state, name string, afterMS int64) state {
		after, _ := settle(&before, server{runID: name, replID: name, nowMS: began + afterMS}, limits{maxGrantMS: minute})
		return after
	}
	first, _ := settle(nil, server{runID: "one", replID: "one", nowMS: began}, limits{maxGrantMS: minute})
	second := next(first, "two", 1000)
	third := next(second, "three", 2000)
	instead := next(first, "four", 3000)
	if tokens := instead.floor - third.floor; tokens < hiddenTokens {
		t.Errorf("a life that has forgotten two has a floor that is %d above theirs", tokens)
	}
	if behind := next(first, "five", -1000); behind.floor < first.floor+hiddenTokens {
		t.Errorf("where the clock is behind, the floor is %d, after %d", behind.floor, first.floor)
	}
}

// rig is a store with a clock that the test sets, on servers that come and go.
type rig struct {
	*testing.T
	atomic.Int64 // the clock, in Unix ms
	cfg          redisconn.Config
	store        owned
}

// newRig opens a store that was declared new.
func newRig(t *testing.T, s *redistest.Server, edit ...func(*redisconn.Config)) *rig {
	t.Helper()
	r := &rig{T: t, cfg: s.Config()}
	r.Store(began)
	r.cfg.NowMS = r.Load
	r.cfg.ConfirmWait = await.Patience // a slow machine's replica is not a silent one
	for _, e := range edit {
		e(&r.cfg)
	}
	r.store = mustOpen(t, r.cfg)
	mustInit(t, r.store)
	return r
}

func (r *rig) put(w record.Write) (at int64) {
	r.Helper()
	at, err := put(r.T, r.store, w)
	must.Succeed(r, err)
	return at
}

func put(t testing.TB, s record.Store, w record.Write) (at int64, err error) {
	return s.Change(testContext(t), record.Ask{Keys: []string{w.Key}}, func(record.View) ([]record.Write, error) {
		return []record.Write{w}, nil
	})
}

func grant(key string, term time.Duration) record.Write {
	return record.Write{Key: key, Value: []byte("1"), TermMS: term.Milliseconds(), KeepMS: minute, GrantMS: term.Milliseconds()}
}

func (r *rig) view(keys ...string) record.View {
	r.Helper()
	v, err := r.store.Read(testContext(r), record.Ask{Keys: keys})
	must.Succeed(r, err)
	return v
}

// doubted expects a fence from now on, for so long.
func (r *rig) doubted(d time.Duration, why string) record.View {
	r.Helper()
	v := r.view("k")
	if f := v.Fence; !f.Doubt || f.UntilMS != r.Load()+d.Milliseconds() || !strings.Contains(f.Reason, why) {
		r.Errorf("the fence is %+v, want one until %v after %d because of %q", f, d, r.Load(), why)
	}
	return v
}

// A server that is emptied while in use is fenced, until an operator says that nothing
// is missing.
func TestEmptiedServer(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	before := r.view("k")
	r.put(grant("k", time.Minute))
	server.Do(t, "FLUSHALL")
	if _, err := put(t, r.store, grant("k", time.Minute)); err != nil { // the rule does not mind
		t.Error(err)
	}
	v := r.doubted(maxGrant, whyMissing)
	if v.Floor < began*1000 || v.Floor < before.Floor {
		t.Errorf("the floor is %d, after %d", v.Floor, before.Floor)
	}
	mustInit(t, r.store)
	state := server.Do(t, "GET", r.store.stateKey())
	mustInit(t, r.store) // on a store in use
	if v := r.view("k"); v.Fence != (record.Fence{}) || server.Do(t, "GET", r.store.stateKey()) != state {
		t.Errorf("after Init: %+v", v)
	}
}

// The records that a server still knows after a restart are there, in another life, with a fence
// for the longest grant, rounded up. Terms without a holder do not count.
func TestRestart(t *testing.T) {
	server := redistest.New(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newRig(t, server)
	other := mustOpen(t, r.cfg)
	r.put(record.Write{Key: "k", Value: []byte("1"), GrantMS: 3 * minute}) // it needs no term
	r.put(record.Write{Key: "idle", Value: []byte("1"), TermMS: 100 * minute})
	before := r.view("k")
	server.Restart()
	v := r.doubted(4*time.Minute, whyChanged)
	if v.Life == before.Life || v.Floor <= before.Floor || string(v.Records["k"].Value) != "1" {
		t.Errorf("after a restart: %+v, before: %+v", v, before)
	}
	if _, err := put(t, other, grant("k", time.Minute)); err != nil { // on its memory
		t.Error(err)
	}
	mustInit(t, other)
	if v := r.view("k"); v.Fence != (record.Fence{}) {
		t.Errorf("after Init: %+v", v)
	}
	// The operator of a client with failover_fence says what a change may lose.
	trusting := r.cfg
	trusting.FailoverFenceSet, trusting.FailoverFence = true, time.Second
	r.store = mustOpen(t, trusting)
	r.put(grant("k", time.Hour))
	server.Restart()
	r.doubted(time.Second, whyChanged)
	r.Add(1000)
	if v := r.view("k"); v.Fence.Doubt || v.Fence.UntilMS > v.NowMS {
		t.Errorf("after failover_fence: %+v", v.Fence)
	}
}

// Rules compare times with a fence. While there is one, they are shown the server's time,
// and never what this process takes it for.
func TestFenceKeepsTheServersTime(t *testing.T) {
	server := redistest.New(t)
	s := mustOpen(t, server.Config())
	if _, err := put(t, s, grant("k", time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.ahead.Add(24 * time.Hour.Milliseconds())
	var runs []record.View
	if _, err := s.Change(testContext(t), record.Ask{Keys: []string{"k"}}, func(v record.View) ([]record.Write, error) {
		runs = append(runs, v)
		return []record.Write{grant("k", time.Minute)}, nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, v := range runs {
		if v.NowMS >= v.Fence.UntilMS {
			t.Errorf("at %d the fence is over, which ends at %d", v.NowMS, v.Fence.UntilMS)
		}
	}
}

// The same process is the primary, then a replica, then the primary again. Its run ID
// has not changed and it knows its scripts, and yet it has the data of another: also where
// it has forgotten by now that it was a replica. A rule that rests on what a client
// remembers of it from before sees the new life.
func TestFailoverBack(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		a, b := redistest.Pair(t, "--repl-backlog-ttl", "1")
		r := newRig(t, a)
		r.put(grant("k", time.Minute))
		before := r.view("k")
		redistest.InStep(t, a)
		redistest.CutOff(t, a, b)
		r.put(grant("lost", time.Minute))
		redistest.FailOverAndBack(t, a, b, forgets)
		var last record.View
		if _, err := r.store.Change(testContext(t), record.Ask{Keys: []string{"k"}}, func(v record.View) ([]record.Write, error) {
			last = v
			return []record.Write{grant("k", time.Minute)}, nil
		}); err != nil || last.Life == before.Life || !last.Fence.Doubt {
			t.Errorf("the rule was shown %+v at last (%v), before it was %+v", last, err, before)
		}
		v := r.doubted(time.Minute, whyChanged)
		if len(r.view("lost").Records) > 0 || v.Floor <= before.Floor {
			t.Errorf("after the failovers: %+v", v)
		}
	}
}

// An operator fences the store for as long as any client grants, or is known to have granted: what
// the server has forgotten may include that. The URL's failover_fence does not count. A process
// that goes on with what it knew is shown the new life before its writes are carried out.
func TestFenceByHand(t *testing.T) {
	server := redistest.New(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newRig(t, server, func(cfg *redisconn.Config) { cfg.FailoverFenceSet = true })
	other := mustOpen(t, r.cfg)
	r.put(grant("k", time.Minute))
	before := r.view("k")
	must.Succeed(t, other.Fence(testContext(t)))
	var shown []record.View
	_, err := r.store.Change(testContext(t), record.Ask{Keys: []string{"k"}}, func(v record.View) ([]record.Write, error) {
		shown = append(shown, v)
		if v.NowMS < v.Fence.UntilMS {
			return nil, errFenced
		}
		return []record.Write{grant("k", time.Minute)}, nil
	})
	if !errors.Is(err, errFenced) || len(shown) < 2 {
		t.Errorf("a process that had not seen the fence was shown %+v (%v)", shown, err)
	}
	v := r.doubted(maxGrant, whyByHand)
	if v.Life == before.Life || v.Floor < max(began*1000, before.Floor+1) || string(v.Records["k"].Value) != "1" || !strings.Contains(v.Fence.Reason, "kazahanad store init") {
		t.Errorf("the store is %+v, and was %+v", v, before)
	}
	server.Restart() // and the fence of before lasts
	if again := r.doubted(maxGrant, whyByHand); again.Life == v.Life {
		t.Errorf("after a restart: %+v", again)
	}
	r.Add(maxGrant.Milliseconds())
	if v := r.view("k"); !v.Fence.Doubt || v.Fence.UntilMS > v.NowMS {
		t.Errorf("after its end the fence is %+v", v.Fence)
	}
	mustInit(t, other)
	if v := r.view("k"); v.Fence != (record.Fence{}) {
		t.Errorf("after Init: %+v", v)
	}
	must.Succeed(t, other.Fence(testContext(t)))
	r.doubted(maxGrant, whyByHand)
}

// errFenced is a rule's refusal.
var errFenced = errors.New("the store is fenced")

// TestFenceByHandIsConfirmed: a fence that too few replicas have is an error.
func TestFenceByHandIsConfirmed(t *testing.T) {
	primary, replica := redistest.Pair(t)
	r := newRig(t, primary, func(cfg *redisconn.Config) { cfg.MinReplicas = 1 })
	must.Succeed(t, r.store.Fence(testContext(t)))
	mustInit(t, r.store)
	redistest.CutOff(t, primary, replica)
	cfg := r.cfg
	cfg.ConfirmWait = 10 * time.Millisecond
	if err := mustOpen(t, cfg).Fence(testContext(t)); !errors.Is(err, redisconn.ErrUnconfirmed) {
		t.Errorf("the error is %v, want ErrUnconfirmed", err)
	}
}

// TestFloorOfANewLife: a rule is never shown a new life with the floor of the one before, under
// which are tokens that the server has forgotten. Another change may have met the life, and an
// answer of the one before may come afterwards.
func TestFloorOfANewLife(t *testing.T) {
	server := redistest.New(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newRig(t, server)
	r.put(grant("k", time.Minute))
	before := r.view("k")
	late := r.store.newChange(record.Ask{Keys: []string{"other"}})
	late.seen = make([]known, 1)
	answer, err := late.send(testContext(t), late.newBatch(looks))
	must.Succeed(t, err)
	server.Restart()
	mustInit(t, mustOpen(t, r.cfg)) // an operator, who says that nothing is missing
	shown := func(when string) {
		t.Helper()
		_, err := r.store.Change(testContext(t), record.Ask{Keys: []string{"k"}}, func(v record.View) ([]record.Write, error) {
			if v.Life == before.Life || v.Floor <= before.Floor {
				t.Errorf("%s, a rule is shown the life %s with the floor %d; before it was %s with %d", when, v.Life, v.Floor, before.Life, before.Floor)
			}
			return []record.Write{grant("k", time.Minute)}, nil
		})
		must.Succeed(t, err)
	}
	must.Succeed(t, r.store.Check(testContext(t))) // or another change: it says hello, and has not looked yet
	shown("after hello")
	must.Succeed(t, late.understand(answer))
	shown("after a late answer")
}

var followed = record.Area{Name: "followed", MaxGrantMS: maxGrant.Milliseconds(), FollowsClock: true}

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
