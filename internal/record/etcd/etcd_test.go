package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/recordtest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// owned closes the client with the store.
type owned struct {
	*Store
	conn *etcdconn.Client
}

func (o owned) Close() error { return errors.Join(o.Store.Close(), o.conn.Close()) }

func open(cfg etcdconn.Config, area record.Area) (owned, error) {
	conn, err := etcdconn.Open(cfg)
	if err != nil {
		return owned{}, err
	}
	return owned{New(conn, area, nil), conn}, nil
}

func mustOpen(t *testing.T, cfg etcdconn.Config) owned {
	t.Helper()
	s, err := open(cfg, recordtest.One)
	must.Succeed(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// leaseOf is the lease of the record's term.
func leaseOf(t *testing.T, s owned, key string) clientv3.LeaseID {
	t.Helper()
	for _, path := range []string{s.markerPath(key), s.recordPath(key)} {
		resp, err := s.conn.KV.Get(testContext(t), path)
		must.Succeed(t, err)
		for _, kv := range resp.Kvs {
			if kv.Lease != 0 {
				return clientv3.LeaseID(kv.Lease)
			}
		}
	}
	t.Fatalf("%s has no term", key)
	return 0
}

// expire does what the cluster does when the lease's time is over.
func expire(t *testing.T, s owned, key string) {
	t.Helper()
	if _, err := s.conn.KV.Revoke(testContext(t), leaseOf(t, s, key)); err != nil {
		t.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	recordtest.Run(t, func(t *testing.T) recordtest.Target {
		cfg := etcdtest.Shared(t)
		raw := mustOpen(t, cfg)
		return recordtest.Target{
			Open:    func(area record.Area) (record.Store, error) { return open(cfg, area) },
			Expire:  func(key string) { expire(t, raw, key) },
			Between: true,
		}
	})
}

// put writes a record, and returns how many times its rule ran.
func put(t *testing.T, s record.Store, w record.Write) (runs int, err error) {
	t.Helper()
	_, err = s.Change(testContext(t), record.Ask{Keys: []string{w.Key}}, func(record.View) ([]record.Write, error) {
		runs++
		return []record.Write{w}, nil
	})
	return runs, err
}

func mustPut(t *testing.T, s record.Store, w record.Write) {
	t.Helper()
	if _, err := put(t, s, w); err != nil {
		t.Fatal(err)
	}
}

func value(t *testing.T, s record.Store, key string) string {
	t.Helper()
	v, err := s.Read(testContext(t), record.Ask{Keys: []string{key}})
	must.Succeed(t, err)
	return string(v.Records[key].Value)
}

// counting counts transactions.
type counting struct {
	clientv3.KV
	n int
}

func (c *counting) Txn(ctx context.Context) clientv3.Txn { c.n++; return c.KV.Txn(ctx) }

// A change is one round trip where no other client was there, also of a new record.
func TestOneRoundTrip(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	mustPut(t, s, record.Write{Key: "first", Value: []byte("1")}) // learns the life
	trips := &counting{KV: s.conn.KV.KV}
	s.conn.KV.KV = trips
	for i, w := range []record.Write{
		{Key: "new", Value: []byte("1")}, {Key: "new", Value: []byte("2")}, {Key: "first", Value: []byte("2")},
		{Key: "new", Mark: 5}, {Key: "new", Value: []byte("3")},
	} {
		trips.n = 0
		if runs, err := put(t, s, w); err != nil || runs != 1 || trips.n != 1 {
			t.Errorf("change %d: %d runs of the rule and %d round trips (%v)", i, runs, trips.n, err)
		}
	}
	// One too long to be remembered is seen when the commit fails.
	long := record.Write{Key: "long", Value: make([]byte, 16<<10)}
	mustPut(t, s, long)
	trips.n = 0
	if runs, err := put(t, s, long); err != nil || runs != 2 || trips.n != 2 {
		t.Errorf("a long value: %d runs of the rule and %d round trips (%v)", runs, trips.n, err)
	}
}

// The memory of records in another cluster is not used in this one.
func TestAnotherCluster(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	mustPut(t, s, record.Write{Key: "k", Value: []byte("1")})
	if runs, err := put(t, s, record.Write{Key: "k", Value: []byte("1")}); err != nil || runs != 1 {
		t.Errorf("%d runs (%v)", runs, err)
	}
	another := "another"
	s.life.Store(&life{name: another})
	if _, err := s.Change(testContext(t), record.Ask{Keys: []string{"k"}}, func(v record.View) ([]record.Write, error) {
		if known, ok := v.Records["k"]; ok && v.Life == another {
			t.Errorf("in the other cluster there is %q", known.Value)
		}
		return []record.Write{{Key: "k", Value: []byte("2")}}, nil
	}); err != nil || value(t, s, "k") != "2" {
		t.Error(err)
	}
}

// A term lasts from each write on, and a fifth longer at most; each record has its own
// lease, which is kept alive where that is needed.
func TestLeases(t *testing.T) {
	cfg := etcdtest.Shared(t)
	s, other := mustOpen(t, cfg), mustOpen(t, cfg)
	leases, others := &countingLeases{Lease: s.conn.KV.Lease}, &countingLeases{Lease: other.conn.KV.Lease}
	s.conn.KV.Lease, other.conn.KV.Lease = leases, others
	w := record.Write{Key: "k", Value: []byte("1"), TermMS: 1_000_000, KeepMS: 1000}
	left := func(least, most int64) {
		t.Helper()
		if resp, err := s.conn.KV.TimeToLive(testContext(t), leaseOf(t, s, "k")); err != nil || resp.TTL < least || resp.TTL > most {
			t.Errorf("the lease has %v left (%v), want %d to %d s", resp, err, least, most)
		}
	}
	kept := func(by *countingLeases, granted, alive int) {
		t.Helper()
		if by.n != granted || by.alive != alive {
			t.Errorf("%d leases were made, and kept alive %d times, want %d and %d", by.n, by.alive, granted, alive)
		}
		by.n, by.alive = 0, 0
	}
	mustPut(t, s, w)
	left(1100, 1201)
	lease := leaseOf(t, s, "k")
	kept(leases, 1, 0)
	mustPut(t, s, w) // just made
	kept(leases, 0, 0)
	mustPut(t, other, w) // it did not see the lease being made
	kept(others, 0, 1)
	mustPut(t, other, w)
	kept(others, 0, 0)
	boot := other.elapsed
	other.elapsed = func() time.Duration { return boot() + 200*time.Second } // suspended, say
	mustPut(t, other, w)
	kept(others, 0, 1)
	if leaseOf(t, s, "k") != lease {
		t.Error("each write makes a lease")
	}
	mustPut(t, s, record.Write{Key: "twin", Value: []byte("1"), TermMS: w.TermMS})
	if leaseOf(t, s, "twin") == lease {
		t.Error("two records share a lease")
	}
	w.TermMS = 3_600_000
	mustPut(t, s, w)
	left(4220, 4321)
	// Its memory is of a term that is over.
	expire(t, s, "k")
	for range 2 {
		mustPut(t, s, w)
		mustPut(t, other, w)
	}
	left(4220, 4321)
}

// countingLeases counts the leases that are made, and how often one is kept alive.
type countingLeases struct {
	clientv3.Lease
	n, alive int
}

func (c *countingLeases) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	c.alive++
	return c.Lease.KeepAliveOnce(ctx, id)
}

func (c *countingLeases) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	c.n++
	return c.Lease.Grant(ctx, ttl)
}

// A lease that no record uses any more serves the next record with the same term, and a
// process keeps a few of them. A lease that another process may still use is not among them.
func TestSpareLeases(t *testing.T) {
	cfg := etcdtest.Shared(t)
	s, other := mustOpen(t, cfg), mustOpen(t, cfg)
	leases := &countingLeases{Lease: s.conn.KV.Lease}
	s.conn.KV.Lease = leases
	w := record.Write{Key: "k", Value: []byte("1"), TermMS: 1_000_000, KeepMS: 1000}
	for range 3 { // as a lock that is handed over
		mustPut(t, s, w)
		mustPut(t, s, record.Write{Key: "k"})
	}
	w.Key = "other key"
	mustPut(t, s, w)
	if leases.n != 1 || leases.alive != 0 {
		t.Errorf("%d leases were made, and kept alive %d times, want 1 and 0", leases.n, leases.alive)
	}
	w.Key = "k"
	mustPut(t, s, w)
	foreign := leaseOf(t, s, "k")
	runs := 0
	if _, err := other.Change(testContext(t), record.Ask{Keys: []string{"k"}}, func(record.View) ([]record.Write, error) {
		if runs++; runs == 1 { // it has seen the record
			mustPut(t, s, record.Write{Key: "k"})
		}
		return []record.Write{w}, nil
	}); err != nil || leaseOf(t, s, "k") == foreign {
		t.Errorf("the record hangs on a lease that another process may use or end (%v)", err)
	}

	key := func(i int) string { return fmt.Sprint("many/", i) }
	for i := range 3 * maxSpares {
		mustPut(t, s, record.Write{Key: key(i), Value: []byte{}, TermMS: 500_000})
	}
	var made []clientv3.LeaseID
	for i := range 3 * maxSpares {
		made = append(made, leaseOf(t, s, key(i)))
		mustPut(t, s, record.Write{Key: key(i)})
	}
	await.Eventually(t, "the leases that are too many have ended", func() bool {
		left := 0
		for _, id := range made {
			if resp, err := other.conn.KV.TimeToLive(testContext(t), id); err == nil && resp.TTL > 0 {
				left++
			}
		}
		return left <= maxSpares
	})
}

// noLeases is etcd's part for leases, out of order.
type noLeases struct{ clientv3.Lease }

var errNoLeases = errors.New("no leases today")

func (noLeases) Grant(context.Context, int64) (*clientv3.LeaseGrantResponse, error) {
	return nil, errNoLeases
}

func TestTermThatIsNotSet(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	working := s.conn.KV.Lease
	s.conn.KV.Lease = noLeases{working}
	w := record.Write{Key: "k", Value: []byte("1"), TermMS: 1000}
	if _, err := put(t, s, w); !errors.Is(err, record.ErrTerm) || !errors.Is(err, errNoLeases) {
		t.Errorf("without leases: %v", err)
	}
	mustPut(t, s, record.Write{Key: "forever", Value: []byte("1")})
	s.conn.KV.Lease = working
	mustPut(t, s, w)
}

func TestDamaged(t *testing.T) {
	for path, text := range map[string]string{
		"k/k": "", "k/k ": "{}\n", "k/k  ": `{"w":"x"}`, "k/k   ": "w\n", "t/k": "", "floor": "x", "fence": "{}",
	} {
		s := mustOpen(t, etcdtest.Shared(t))
		path = s.prefix + strings.TrimSpace(path)
		if _, err := s.conn.KV.Put(testContext(t), path, text); err != nil {
			t.Fatal(err)
		}
		if _, err := put(t, s, record.Write{Key: "k", Value: []byte("1")}); err == nil || !strings.Contains(err.Error(), path+" is damaged") {
			t.Errorf("%s is %q: %v", path, text, err)
		}
	}
	// A record that was written by hand no longer fits its marker.
	s := mustOpen(t, etcdtest.Shared(t))
	mustPut(t, s, record.Write{Key: "k", Value: []byte("1"), TermMS: 60_000, KeepMS: 1})
	if _, err := s.conn.KV.Put(testContext(t), s.recordPath("k"), `{"w":"x","t":60000,"k":1}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(testContext(t), record.Ask{Keys: []string{"k"}}); err == nil || !strings.Contains(err.Error(), "not written together") {
		t.Errorf("the error is %v", err)
	}
}

// Records that are due are deleted, and raise the floor; others stay.
func TestSweep(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	began := time.Now().UnixMilli()
	var clock atomic.Int64
	clock.Store(began)
	s.nowMS = clock.Load
	key := func(i int) string { return fmt.Sprintf("k/%03d", i) }
	const due = 2*sweepLooks + 5
	if _, err := s.conn.KV.Put(testContext(t), s.recordPath("00"), "damaged"); err != nil { // stops no sweep
		t.Fatal(err)
	}
	for i := range sweepLooks { // before all of them
		mustPut(t, s, record.Write{Key: fmt.Sprint("0/", i), Value: []byte{}})
	}
	for i := range due {
		mustPut(t, s, record.Write{Key: key(i), Value: []byte{}, KeepMS: 1000, Mark: int64(i)})
	}
	for _, w := range []record.Write{
		{Key: "a longer", KeepMS: 1001}, {Key: "ever", Mark: 500}, {Key: "held", TermMS: 500, KeepMS: 500, Mark: 600},
		{Key: "over", TermMS: 500, KeepMS: 500, Mark: 100}, {Key: "over, kept", TermMS: 500, KeepMS: 501, Mark: 700},
	} {
		w.Value = []byte{}
		if w.TermMS > 0 {
			w.TermMS *= 1000 // it does not end by itself
			w.KeepMS *= 1000
		}
		mustPut(t, s, w)
	}
	expire(t, s, "over")
	expire(t, s, "over, kept")
	left := func() (keys []string, floor int64) {
		t.Helper()
		for range 3 { // all of them, wherever the sweep before ended
			for end := false; !end; {
				var err error
				if end, err = s.sweep(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
		}
		page, err := s.List(testContext(t), "k/", "", 1000)
		others, err2 := s.List(testContext(t), "a", "", 1000)
		for _, prefix := range []string{"ever", "held", "over"} {
			more, err := s.List(testContext(t), prefix, "", 1000)
			must.Succeed(t, err)
			others = append(others, more...)
		}
		for _, h := range append(others, page...) {
			keys = append(keys, h.Key)
		}
		v, err3 := s.Read(testContext(t), record.Ask{})
		must.Succeed(t, errors.Join(err, err2, err3))
		return keys, v.Floor
	}
	clock.Store(began + 999)
	if keys, floor := left(); len(keys) != due+5 || floor != 0 {
		t.Errorf("before their time %d records are left, and the floor is %d", len(keys), floor)
	}
	clock.Store(began + 1000)
	if keys, floor := left(); !slices.Equal(keys, []string{"a longer", "ever", "held", "over", "over, kept"}) || floor != due-1 {
		t.Errorf("%q are left, and the floor is %d", keys, floor)
	}
	clock.Store(began + 1000_000)
	if keys, floor := left(); !slices.Equal(keys, []string{"ever", "held", "over, kept"}) || floor != 100 {
		t.Errorf("%q are left, and the floor is %d", keys, floor)
	}
	// A record that is used again meanwhile is not deleted.
	clock.Store(began + 1001_000)
	mustPut(t, s, record.Write{Key: "over, kept", Value: []byte("again")})
	if err := s.remove(testContext(t), "over, kept"); err != nil || value(t, s, "over, kept") != "again" {
		t.Errorf("it is %q (%v)", value(t, s, "over, kept"), err)
	}
}

// Making records deletes the due ones.
func TestNewRecordsSweep(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	var clock atomic.Int64
	s.nowMS = clock.Load
	mustPut(t, s, record.Write{Key: "a", Value: []byte{}, KeepMS: 1})
	clock.Store(1)
	made := 0
	await.Eventually(t, "it is deleted", func() bool {
		made++
		mustPut(t, s, record.Write{Key: fmt.Sprint("b", made), Value: []byte{}})
		v, err := s.Read(testContext(t), record.Ask{Keys: []string{"a"}})
		must.Succeed(t, err)
		return len(v.Records) == 0
	})
}

func TestClosed(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	mustPut(t, s, record.Write{Key: "k", Value: []byte("1")})
	tokens, err := s.Watch(testContext(t), "k")
	must.Succeed(t, err)
	must.Succeed(t, s.Close())
	for range tokens {
	}
	if _, err := put(t, s, record.Write{Key: "k", Value: []byte("1")}); !errors.Is(err, etcdconn.ErrClosed) {
		t.Errorf("the error is %v, want ErrClosed", err)
	}
	if _, err := s.Watch(testContext(t), "k"); !errors.Is(err, etcdconn.ErrClosed) {
		t.Errorf("the error of Watch is %v, want ErrClosed", err)
	}
}
