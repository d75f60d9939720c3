package etcd

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/recordtest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func viewOf(t *testing.T, s record.Store, keys ...string) record.View {
	t.Helper()
	v, err := s.Read(testContext(t), record.Ask{Keys: keys})
	must.Succeed(t, err)
	return v
}

// errFenced is a rule's refusal.
var errFenced = errors.New("the store is fenced")

// unlessFenced writes a record, and returns what its rule was shown.
func unlessFenced(t *testing.T, s record.Store, key string) (shown []record.View, err error) {
	t.Helper()
	_, err = s.Change(testContext(t), record.Ask{Keys: []string{key}}, func(v record.View) ([]record.Write, error) {
		shown = append(shown, v)
		if v.NowMS < v.Fence.UntilMS {
			return nil, errFenced
		}
		return []record.Write{{Key: key, Value: []byte("granted"), GrantMS: 1000}}, nil
	})
	return shown, err
}

// TestFenceByHand: no process grants during a fence, whatever it knew before: neither on a record
// that it knows, nor on the absence of one. The life that begins is above all tokens of before.
func TestFenceByHand(t *testing.T) {
	cfg := etcdtest.Shared(t)
	s, other := mustOpen(t, cfg), mustOpen(t, cfg)
	mustPut(t, s, record.Write{Key: "known", Value: []byte("1")})
	before := viewOf(t, s)
	if before.Fence != (record.Fence{}) || before.Life == "" {
		t.Errorf("a new store is %+v", before)
	}
	life, floor := s.life.Load(), s.floor.Load()
	began := time.Now().UnixMilli()
	must.Succeed(t, other.Fence(testContext(t)))
	seen := viewOf(t, other)
	for _, key := range []string{"known", "absent"} {
		s.life.Store(life) // as before the fence
		s.floor.Store(floor)
		shown, err := unlessFenced(t, s, key)
		if !errors.Is(err, errFenced) || len(shown) != 2 || len(shown[0].Records) != len(shown[1].Records) {
			t.Fatalf("%s: the rule of a process that had not seen the fence was shown %+v (%v)", key, shown, err)
		}
		if v := shown[1]; shown[0].Life != before.Life || v.Life == before.Life || v.Life != seen.Life || v.Fence != seen.Fence || v.Floor < began*1000 {
			t.Errorf("%s: at last the rule was shown %+v", key, v)
		}
	}
	most := recordtest.One.MaxGrantMS
	if f := seen.Fence; !f.Doubt || f.FromMS < began || f.UntilMS != f.FromMS+most || !strings.Contains(f.Reason, "kazahanad one fence") || !strings.Contains(f.Reason, "kazahanad one init") {
		t.Errorf("the fence is %+v", f)
	}

	must.Succeed(t, s.Init(testContext(t)))
	if v := viewOf(t, other); v.Fence != (record.Fence{}) || v.Life != seen.Life || v.Floor != seen.Floor {
		t.Errorf("after Init: %+v", v)
	}
	if shown, err := unlessFenced(t, other, "known"); err != nil {
		t.Errorf("after Init the rule was shown %+v (%v)", shown, err)
	}
	must.Succeed(t, s.Fence(testContext(t)))
	if v := viewOf(t, other); v.Life == seen.Life || v.Floor <= seen.Floor || !v.Fence.Doubt || v.Fence.UntilMS < seen.Fence.UntilMS {
		t.Errorf("the second fence is %+v, the first was %+v", v, seen)
	}
}

// TestChangesCompareTheFence: each transaction compares the area's record, also where there is none;
// and a fence that is shorter than the grants of the process is seen.
func TestChangesCompareTheFence(t *testing.T) {
	s := &Store{prefix: "area/", area: leasesOf(time.Hour)}
	for _, l := range []life{{name: "1"}, {name: "1.a", text: "{}", facts: facts{Life: "a"}}} {
		compared := slices.DeleteFunc(s.same(sight{life: l}, true), func(c clientv3.Cmp) bool { return string(c.KeyBytes()) != "area/fence" })
		if len(compared) != 1 || (l.text == "") != (compared[0].GetCompare().Target == etcdserverpb.Compare_MOD) || l.text != string(compared[0].ValueBytes()) {
			t.Errorf("in the life %+v a change compares %+v", l, compared)
		}
	}
	for _, f := range []struct {
		facts
		short bool
	}{{facts{}, false}, {facts{LongestMS: minute}, false}, {facts{Doubt: true, LongestMS: minute}, true}, {facts{Doubt: true, LongestMS: 60 * minute}, false}} {
		if s.short(life{facts: f.facts}) != f.short {
			t.Errorf("%+v: short %v, want %v", f.facts, !f.short, f.short)
		}
	}
}

// A header keeps the latest time of all writers of its record, and the longest grant.
func TestHeadersKeepTheLatestTime(t *testing.T) {
	var k known
	for i, w := range []struct{ atMS, grantMS, latest, longest int64 }{{5, 7, 5, 7}, {9, 3, 9, 7}, {6, 8, 9, 8}, {4, 0, 9, 8}, {12, 0, 12, 8}} {
		var err error
		k.header, _, err = encode(record.Write{GrantMS: w.grantMS}, "n", w.atMS, k)
		if err != nil || k.AtMS != w.atMS || k.latest() != w.latest || k.Grant != w.longest {
			t.Errorf("after write %d at %d the header is %+v (%v), want %d as the latest time", i, w.atMS, k.header, err, w.latest)
		}
	}
}

const minute = 60_000

// TestFenceLastsByEtcd: where the store ends terms, no clock of a host ends the fence before etcd
// has measured its time.
func TestFenceLastsByEtcd(t *testing.T) {
	cfg := etcdtest.Shared(t)
	s := mustOpen(t, cfg)
	must.Succeed(t, s.Fence(testContext(t)))
	now := s.nowMS
	s.nowMS = func() int64 { return now() + 1000*3600_000 } // it is ahead
	if shown, err := unlessFenced(t, s, "k"); !errors.Is(err, errFenced) {
		t.Errorf("by a clock that is ahead the rule was shown %+v (%v)", shown, err)
	}
	resp, err := s.conn.KV.Get(testContext(t), s.runsPath())
	must.Succeed(t, err)
	lease := clientv3.LeaseID(resp.Kvs[0].Lease)
	left, err := s.conn.KV.TimeToLive(testContext(t), lease)
	if least := recordtest.One.MaxGrantMS / 1000; err != nil || left.GrantedTTL < least || left.GrantedTTL > least+1 {
		t.Errorf("etcd measures %+v (%v), want %d s", left, err, least)
	}
	if _, err := s.conn.KV.Revoke(testContext(t), lease); err != nil { // its time is over
		t.Fatal(err)
	}
	if shown, err := unlessFenced(t, s, "k"); err != nil || !shown[len(shown)-1].Fence.Doubt {
		t.Errorf("after the fence the rule was shown %+v (%v)", shown, err)
	}
	must.Succeed(t, s.Fence(testContext(t)))
	must.Succeed(t, s.Init(testContext(t)))
	if resp, err := s.conn.KV.Get(testContext(t), s.runsPath()); err != nil || resp.Count != 0 {
		t.Errorf("after Init the marker is there (%v)", err)
	}
}

// leasesOf is the area of leases of a process.
func leasesOf(longest time.Duration) record.Area {
	return record.Area{Name: "leases", MaxGrantMS: longest.Milliseconds(), FollowsClock: true}
}

// A fence of leases begins at the latest time that any writer has put into a record, and lasts for
// the longest grant of all records, and of the processes that come later.
func TestFenceOutlastsWhatIsKnown(t *testing.T) {
	cfg := etcdtest.Shared(t)
	lasts := func(s record.Store, want time.Duration) (from int64) {
		t.Helper()
		f := viewOf(t, s).Fence
		if !f.Doubt || f.UntilMS-f.FromMS != want.Milliseconds() {
			t.Errorf("the fence is %+v, want one of %v", f, want)
		}
		return f.FromMS
	}
	openFor := func(longest time.Duration) owned {
		t.Helper()
		s, err := open(cfg, leasesOf(longest))
		must.Succeed(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	short, long, longer := openFor(time.Minute), openFor(time.Hour), openFor(3*time.Hour)
	ahead := long.nowMS() + 24*3600_000
	long.nowMS = func() int64 { return ahead }
	mustPut(t, long, record.Write{Key: "k", Value: []byte("1"), GrantMS: time.Hour.Milliseconds()})
	mustPut(t, short, record.Write{Key: "k", Value: []byte("2"), GrantMS: 1000})
	mustPut(t, short, record.Write{Key: "k", Value: []byte("3")}) // also of the writer before the last one
	must.Succeed(t, short.Fence(testContext(t)))
	if from := lasts(short, time.Hour); from < ahead {
		t.Errorf("the fence is counted from %d, and there is a record of %d", from, ahead)
	}
	if shown, err := unlessFenced(t, longer, "k"); !errors.Is(err, errFenced) || shown[0].Fence.UntilMS-shown[0].Fence.FromMS != 3*time.Hour.Milliseconds() {
		t.Errorf("a process with longer leases was shown %+v (%v)", shown, err)
	}
	lasts(short, 3*time.Hour)
	must.Succeed(t, short.Init(testContext(t)))
	ahead += (24 * time.Hour).Milliseconds()
	longer.nowMS = func() int64 { return ahead }
	mustPut(t, longer, record.Write{Key: "once", Value: []byte("1")})
	must.Succeed(t, short.Fence(testContext(t)))
	if from := lasts(short, 3*time.Hour); from < ahead {
		t.Errorf("the second fence is counted from %d, and there is a record of %d", from, ahead)
	}
}

// TestFenceThatIsOverStaysOver: a process that grants for longer, and comes when the longer fence
// would be over too, holds nobody back. Where that one would last, it does.
func TestFenceThatIsOverStaysOver(t *testing.T) {
	cfg := etcdtest.Shared(t)
	now := time.Now().UnixMilli
	at := func(later, longest time.Duration) owned {
		s, err := open(cfg, leasesOf(longest))
		must.Succeed(t, err)
		t.Cleanup(func() { s.Close() })
		s.nowMS = func() int64 { return now() + later.Milliseconds() }
		return s
	}
	s := at(0, time.Minute)
	must.Succeed(t, s.Fence(testContext(t)))
	resp, err := s.conn.KV.Get(testContext(t), s.runsPath())
	must.Succeed(t, err)
	if _, err := s.conn.KV.Revoke(testContext(t), clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil { // its time is over
		t.Fatal(err)
	}
	for _, c := range []struct {
		later, longest time.Duration
		fenced         bool
	}{{24 * time.Hour, time.Hour, false}, {24 * time.Hour, 2 * time.Hour, false}, {2 * time.Hour, 3 * time.Hour, true}} {
		came := at(c.later, c.longest)
		if v := viewOf(t, came); v.NowMS < v.Fence.UntilMS != c.fenced || v.Fence.UntilMS-v.Fence.FromMS < c.longest.Milliseconds() {
			t.Errorf("%v after the fence, a process with leases of %v is shown %+v", c.later, c.longest, v)
		}
		if shown, err := unlessFenced(t, came, "k"); errors.Is(err, errFenced) != c.fenced {
			t.Errorf("%v after the fence, a process with leases of %v: the rule was shown %+v (%v)", c.later, c.longest, shown, err)
		}
		if resp, err := s.conn.KV.Get(testContext(t), s.runsPath()); err != nil || resp.Count == 1 != c.fenced {
			t.Errorf("%v after the fence, a process with leases of %v: etcd measures %d fences (%v)", c.later, c.longest, resp.Count, err)
		}
	}
}

// A lost answer is no second fence.
func TestFenceWithALostAnswer(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	lose(s, func() {})
	must.Succeed(t, s.Fence(testContext(t)))
	got, err := s.conn.KV.Get(testContext(t), s.fencePath())
	must.Succeed(t, err)
	if n := got.Kvs[0].Version; n != 1 {
		t.Errorf("the fence was written %d times", n)
	}
}
