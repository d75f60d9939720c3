package lock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// startMS is what the clocks of tests begin with.
const startMS = 1_800_000_000_000

// forgetful is records in memory that may be lost, as those of a server without
// persistence are.
type forgetful struct {
	nowMS func() int64

	mu sync.Mutex
	record.Store
	life    string
	floor   int64
	untilMS int64
	failed  error // what the next changes answer, once they were carried out
}

func newForgetful(nowMS func() int64) *forgetful {
	return &forgetful{nowMS: nowMS, Store: memory.New(nowMS)}
}

// forget begins a new life, in which nothing is granted for so long.
func (f *forgetful) forget(life string, fence time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.nowMS()
	f.Store, f.life, f.floor, f.untilMS = memory.New(f.nowMS), life, now*1000, now+fence.Milliseconds()
}

func (f *forgetful) shown(v record.View) record.View {
	v.Life, v.Floor = f.life, max(v.Floor, f.floor)
	v.Fence = record.Fence{Doubt: f.floor > 0, UntilMS: f.untilMS, Reason: "the store has lost what it knew"}
	return v
}

func (f *forgetful) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) { return rule(f.shown(v)) })
	if err == nil {
		err = f.failed
	}
	return at, err
}

func (f *forgetful) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.Store.Read(ctx, ask)
	return f.shown(v), err
}

// sweep has the store delete due records: each change looks at some of its records.
func sweep(records record.Store) error {
	for range 100 {
		if _, err := records.Change(context.Background(), record.Ask{Keys: []string{"swept"}}, func(record.View) ([]record.Write, error) {
			return []record.Write{{Key: "swept", Value: []byte{}}}, nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func TestMemory(t *testing.T) {
	locktest.Run(t, func(*testing.T) locktest.Backend {
		records := memory.New(nil)
		return locktest.Backend{Open: func() (lock.Store, error) { return lock.OnRecords(records), nil }}
	})
}

// rigged is one store in memory, with a clock that the test sets, and requests for it.
type rigged struct {
	*testing.T
	clock   atomic.Int64
	records *forgetful
	store   *lock.Records
	serial  int // of requests
}

func (r *rigged) must(err error) {
	r.Helper()
	must.Succeed(r, err)
}

func newRigged(t *testing.T) *rigged {
	r := &rigged{T: t}
	r.clock.Store(startMS)
	r.records = newForgetful(r.clock.Load)
	r.store = lock.OnRecords(r.records)
	return r
}

func (r *rigged) request(op lock.Op, requestID string) lock.Request {
	q := lock.Request{Op: op, Tenant: tenant, Key: key, Owner: "alice", RequestID: requestID}
	if op == lock.Acquire {
		q.LeaseID = lock.NewLeaseID()
	}
	if op != lock.Release {
		q.TTLMS = time.Minute.Milliseconds()
	}
	return q
}

func (r *rigged) do(q lock.Request) lock.Lease {
	r.Helper()
	l, err := r.store.Do(r.Context(), q)
	if err != nil {
		r.Fatalf("%v: %v", q.Op, err)
	}
	return l
}

// In a new life the tokens of every key go on above all that may have been granted,
// whether its record is known or not (LS-INV-002).
func TestTokensOverLives(t *testing.T) {
	r := newRigged(t)
	r.do(r.request(lock.Acquire, ""))
	r.do(r.request(lock.Release, ""))
	kept := r.records.Store
	r.clock.Add(5000)
	r.records.forget("second", time.Minute)
	r.records.Store = kept // its record was not lost
	_, err := r.store.Do(t.Context(), r.request(lock.Acquire, ""))
	var fenced *lock.FencedError
	if !errors.As(err, &fenced) || fenced.UntilMS != startMS+65_000 || fenced.RemainingMS != 60_000 || !strings.Contains(err.Error(), "has lost what it knew") {
		t.Fatalf("in the fence: %v", err)
	}
	r.clock.Add(time.Minute.Milliseconds())
	other := r.request(lock.Acquire, "")
	other.Key = "never held"
	floor := int64(startMS+5000) * 1000
	for _, l := range []lock.Lease{r.do(r.request(lock.Acquire, "")), r.do(other)} {
		if l.Token != floor+1 {
			t.Errorf("%s has token %d, want the first above %d", l.Key, l.Token, floor)
		}
	}
	r.do(r.request(lock.Release, ""))
	if l := r.do(r.request(lock.Acquire, "")); l.Token != floor+2 {
		t.Errorf("then token %d, want the next", l.Token)
	}
}

// Where a store cannot tell whether a change was carried out, a receipt can. Without one
// nothing is known.
func TestLostAnswer(t *testing.T) {
	for _, requestID := range []string{"named", ""} {
		r := newRigged(t)
		outrun := &failingOnce{Store: r.records, after: record.ErrOutrun}
		l, err := lock.OnRecords(outrun).Do(t.Context(), r.request(lock.Acquire, requestID))
		if requestID == "" && (lock.IsAnswer(err) || !errors.Is(err, record.ErrOutrun)) || requestID != "" && (err != nil || l.Token != 1 || !l.Repeated) {
			t.Errorf("request ID %q: %+v, %v", requestID, l, err)
		}
	}
}

// failingOnce fails one change, after it was carried out.
type failingOnce struct {
	record.Store
	after error
}

func (f *failingOnce) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	at, err := f.Store.Change(ctx, ask, rule)
	if err == nil {
		err, f.after = f.after, nil
	}
	return at, err
}

// A lease that too few replicas confirmed is given back, unless the caller can ask
// again: then the repetition tells whether it is confirmed by now.
func TestUnconfirmed(t *testing.T) {
	r := newRigged(t)
	tokens, err := r.store.Notify(t.Context(), tenant, key)
	must.Succeed(t, err)
	r.records.failed = fmt.Errorf("redis: %w", record.ErrUnconfirmed)
	_, err = r.store.Do(t.Context(), r.request(lock.Acquire, ""))
	if !errors.Is(err, record.ErrUnconfirmed) || lock.IsAnswer(err) || !strings.Contains(err.Error(), "the lease was given back") {
		t.Fatalf("without a request ID: %v", err)
	}
	if l, err := r.store.Get(t.Context(), tenant, key); err != nil || l.State != lock.Released {
		t.Errorf("it is %+v (%v), want it given back", l, err)
	}
	select {
	case <-tokens:
	default:
		t.Error("those who wait are not told")
	}
	q := r.request(lock.Acquire, "named")
	for range 2 {
		if _, err := r.store.Do(t.Context(), q); !errors.Is(err, record.ErrUnconfirmed) || lock.IsAnswer(err) {
			t.Fatalf("with a request ID: %v", err)
		}
	}
	if l, err := r.store.Get(t.Context(), tenant, key); err != nil || l.State != lock.Active {
		t.Errorf("it is %+v (%v), want it kept", l, err)
	}
	r.records.failed = nil
	if l := r.do(q); !l.Repeated || l.LeaseID != q.LeaseID {
		t.Errorf("confirmed, it is %+v", l)
	}
}

// A lease that has ended, or was granted to another, is not given back.
func TestUnconfirmedAndEnded(t *testing.T) {
	r := newRigged(t)
	q := r.request(lock.Acquire, "")
	once := &failingOnce{Store: r.records, after: record.ErrUnconfirmed}
	late := &between{Store: once, before: func() {
		r.clock.Add(q.TTLMS)
		r.do(r.request(lock.Acquire, "other"))
	}}
	if _, err := lock.OnRecords(late).Do(t.Context(), q); err == nil || !strings.Contains(err.Error(), "the lease has ended") {
		t.Errorf("it is said: %v", err)
	}
	if l, err := r.store.Get(t.Context(), tenant, key); err != nil || l.State != lock.Active || l.Token != 2 {
		t.Errorf("it is %+v (%v), want another's", l, err)
	}
}

// between does something before the second change.
type between struct {
	record.Store
	changes int
	before  func()
}

func (b *between) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	if b.changes++; b.changes == 2 {
		b.before()
	}
	return b.Store.Change(ctx, ask, rule)
}

// Terms are those of the store's limit.
func TestLongestTerm(t *testing.T) {
	r := newRigged(t)
	limited, err := r.store.Limit(time.Minute)
	must.Succeed(t, err)
	for ttl, want := range map[time.Duration]error{time.Minute: nil, time.Minute + time.Millisecond: lock.ErrInvalid} {
		q := r.request(lock.Acquire, "")
		q.Key, q.TTLMS = ttl.String(), ttl.Milliseconds()
		if _, err := limited.Do(t.Context(), q); !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), "max_lock_ttl") {
			t.Errorf("a term of %v: %v", ttl, err)
		}
	}
	q := r.request(lock.Acquire, "")
	q.Key, q.TTLMS = "before the limit", time.Hour.Milliseconds()
	r.do(q)
	q.Op, q.TTLMS = lock.Renew, 0
	before := r.clock.Load()
	if l, err := limited.Do(t.Context(), q); err != nil || l.ExpiresMS != before+time.Minute.Milliseconds() {
		t.Errorf("renewed by its old term, the lock ends at %d after %d (%v), want a minute", l.ExpiresMS, before, err)
	}
	for _, bad := range []time.Duration{-1, time.Millisecond, lock.MaxTTL + 1, lock.MaxTTL + time.Millisecond, time.Hour + 1} {
		if _, err := r.store.Limit(bad); err == nil || !strings.Contains(err.Error(), "max_lock_ttl") {
			t.Errorf("a longest term of %v: %v", bad, err)
		}
	}
}

// Watchers of a prefix hear of locks that were announced, and of locks that become free; waiters
// for one key hear of no other.
func TestTokensOfWatches(t *testing.T) {
	r := newRigged(t)
	members, err := r.store.Changes(t.Context(), tenant, "members/")
	must.Succeed(t, err)
	one, err := r.store.Notify(t.Context(), tenant, "members/a")
	must.Succeed(t, err)
	do := func(op lock.Op, key string, announce bool, wantMembers, wantOne bool) {
		t.Helper()
		q := r.request(op, "")
		q.Key, q.Announce = key, announce
		r.do(q)
		for what, told := range map[string]struct {
			tokens <-chan struct{}
			want   bool
		}{"the prefix": {members, wantMembers}, "one key": {one, wantOne}} {
			if got := len(told.tokens) > 0; got != told.want {
				t.Errorf("%v of %s: told of %s: %v", op, key, what, got)
			}
			for len(told.tokens) > 0 {
				<-told.tokens
			}
		}
	}
	do(lock.Acquire, "members/ab", true, true, false)
	do(lock.Renew, "members/ab", false, false, false)
	do(lock.Acquire, "members/a", false, false, false)
	do(lock.Release, "members/ab", false, true, false)
	do(lock.Release, "members/a", false, true, true)
	do(lock.Acquire, "others/a", true, false, false)
	do(lock.Release, "others/a", false, false, false)
}

// A page is filled from more records than it shows.
func TestListPassesOverWhatIsNotHeld(t *testing.T) {
	r := newRigged(t)
	const live = 130
	for i := range 2 * live {
		q := r.request(lock.Acquire, "")
		if q.Key = fmt.Sprintf("k%04d", i); i%2 == 0 {
			q.TTLMS = time.Second.Milliseconds()
		}
		r.do(q)
	}
	r.clock.Add(time.Second.Milliseconds())
	for _, limit := range []int{1, live - 1, live, lock.MaxList} {
		page, err := r.store.List(t.Context(), tenant, "", limit)
		if err != nil || len(page) != min(limit, live) {
			t.Fatalf("a page of %d has %d (%v), want %d", limit, len(page), err, min(limit, live))
		}
		for i, l := range page {
			if l.Key != fmt.Sprintf("k%04d", 2*i+1) || l.RemainingMS != time.Minute.Milliseconds()-1000 {
				t.Fatalf("entry %d is %+v", i, l)
			}
		}
	}
}

// A record that is no lock is refused by name, and left as it is.
func TestDamagedRecord(t *testing.T) {
	r := newRigged(t)
	r.do(r.request(lock.Acquire, "named"))
	r.do(r.request(lock.Renew, "again"))
	const path = "lock/" + tenant + "/" + key + "\x1f"
	ask := record.Ask{Keys: []string{path}}
	v, err := r.records.Read(t.Context(), ask)
	must.Succeed(t, err)
	good := v.Records[path].Value
	bad := []string{"", "{}", "\x01" + string(good[1:]), string(good) + "x"}
	for i := range good {
		if i < 41 || i > len(good)-3 { // elsewhere it may be a lock with fewer receipts
			bad = append(bad, string(good[:i]))
		}
	}
	for _, text := range bad {
		if _, err := r.records.Store.Change(t.Context(), ask, func(record.View) ([]record.Write, error) {
			return []record.Write{{Key: path, Value: []byte(text)}}, nil
		}); err != nil {
			t.Fatal(err)
		}
		if l, err := r.store.Do(t.Context(), r.request(lock.Acquire, "")); err == nil || lock.IsAnswer(err) || !strings.Contains(err.Error(), `lock "orders/42": its record is damaged`) {
			t.Errorf("of %x came %+v (%v)", text, l, err)
		}
		if _, err := r.store.Get(t.Context(), tenant, key); err == nil || errors.Is(err, lock.ErrNotFound) {
			t.Errorf("Get of %x: %v", text, err)
		}
	}
}

// The note of the latest acquire or renewal is shown in lists, with any other knowledge of the
// key; watchers hear of another one.
func TestNote(t *testing.T) {
	s := lock.OnRecords(memory.New(nil))
	ctx := t.Context()
	changes, err := s.Changes(ctx, "t", "members/")
	must.Succeed(t, err)
	r := lock.Request{Op: lock.Acquire, Tenant: "t", Key: "members/a:1", Owner: "o", LeaseID: lock.NewLeaseID(), RequestID: "1", TTLMS: 60_000, Announce: true, Note: strings.Repeat("k", lock.MaxNote)}
	for _, note := range []string{r.Note, "cart/room", ""} {
		r.Note = note
		l, err := s.Do(ctx, r)
		page, listErr := s.List(ctx, "t", "", 10)
		if err != nil || listErr != nil || l.Note != note || len(page) != 1 || page[0].Note != note {
			t.Fatalf("%+v, %v; the list has %+v, %v", l, err, page, listErr)
		}
		if again, err := s.Do(ctx, r); err != nil || !again.Repeated || again.Note != note {
			t.Errorf("asked again: %+v, %v", again, err)
		}
		<-changes
		r.Op, r.RequestID = lock.Renew, r.RequestID+"1"
	}
	r.Note = strings.Repeat("k", lock.MaxNote+1)
	if _, err := s.Do(ctx, r); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("a long note: %v", err)
	}
	r = lock.Request{Op: lock.Release, Tenant: "t", Key: r.Key, Owner: "o", Note: "x"}
	if _, err := s.Do(ctx, r); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("a release with a note: %v", err)
	}
}
