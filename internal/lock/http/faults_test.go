package http_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/keyname"
	"github.com/kazahana/kazahana/internal/lock"
	lockhttp "github.com/kazahana/kazahana/internal/lock/http"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// site is a file, and what the test has in front of it.
type site struct {
	*testing.T
	dir string
}

func newSite(t *testing.T) *site { return &site{t, ring.Dir(t)} }

func (s *site) must(err error) {
	s.Helper()
	must.Succeed(s, err)
}

func (s *site) serve() *front {
	s.Helper()
	f, err := serve(filepath.Join(s.dir, sqlitefile.StoreName))
	s.must(err)
	s.Cleanup(func() {
		if err := f.close(); err != nil {
			s.Error(err)
		}
	})
	return f
}

// store is a client of the servers.
func (s *site) store(urls, token string) *lockhttp.Store {
	s.Helper()
	c, err := connect(s.dir, urls, token)
	s.must(err)
	s.Cleanup(func() { _ = c.Close() })
	return lockhttp.New(c)
}

func (s *site) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	s.Cleanup(cancel)
	return ctx
}

func acquire(requestID string) lock.Request {
	return lock.Request{Op: lock.Acquire, Tenant: "default", Key: "k", Owner: "a", RequestID: requestID, LeaseID: lock.NewLeaseID(), TTLMS: 600_000}
}

func release(requestID string) lock.Request {
	return lock.Request{Op: lock.Release, Tenant: "default", Key: "k", Owner: "a", RequestID: requestID}
}

// lossy passes requests on to the server and loses the answers.
func (s *site) lossy(f *front) (url string, passed *atomic.Int64) {
	passed = &atomic.Int64{}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.server.Config.Handler.ServeHTTP(httptest.NewRecorder(), r)
		passed.Add(1)
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.Close()
		}
	}))
	s.Cleanup(proxy.Close)
	return proxy.URL, passed
}

// A request with a lost answer is repeated at the next server, and was carried out once. A
// request that would be answered otherwise a second time is sent once: its outcome stays
// open.
func TestAnswerIsLost(t *testing.T) {
	s := newSite(t)
	a, b := s.serve(), s.serve()
	through, passed := s.lossy(a)
	direct := s.store(b.server.URL, tokenOf["default"])
	held, err := direct.Do(s.context(), acquire("first"))
	s.must(err)
	renewal := lock.Request{Op: lock.Renew, Tenant: "default", Key: "k", Owner: "a", LeaseID: held.LeaseID, TTLMS: 900_000}
	for _, test := range []struct {
		name    string
		request lock.Request
		repeats bool
	}{
		{"a renewal of a lease by name", renewal, true},
		{"a release without a request ID", release(""), false},
		{"an acquire", acquire("one"), true},
		{"a release", release("two"), true},
		{"an acquire without a request ID", acquire(""), false},
	} {
		before := passed.Load()
		l, err := s.store(through+","+b.server.URL, tokenOf["default"]).Do(s.context(), test.request)
		if answered := err == nil && l.Owner == "a"; answered != test.repeats || lock.IsAnswer(err) != test.repeats || passed.Load() != before+1 {
			t.Errorf("%s: %d requests were passed on: %+v, %v", test.name, passed.Load()-before, l, err)
		}
	}
	if l, err := direct.Get(s.context(), "default", "k"); err != nil || l.State != lock.Active || l.Token != 3 {
		t.Errorf("%+v, %v, want the last acquire carried out once", l, err)
	}
}

// Owners of this credential are shown as they were named, others in full. Only the holder's
// own credential can tell which of its requests has the lock.
func TestOwners(t *testing.T) {
	s := newSite(t)
	f := s.serve()
	mine, theirs := s.store(f.server.URL, tokenOf["default"]), s.store(f.server.URL, "token-of-another-host")
	l, err := mine.Do(s.context(), acquire("mine"))
	s.must(err)
	if l.Owner != "a" {
		t.Errorf("my lease is %+v", l)
	}
	for name, test := range map[string]struct {
		store *lockhttp.Store
		owner string
		told  bool
	}{"mine": {mine, "a", true}, "theirs": {theirs, "hosts/a", false}} {
		r := acquire("another")
		r.Owner = "b"
		var held *lock.HeldError
		if _, err := test.store.Do(s.context(), r); !errors.As(err, &held) || held.Owner != test.owner || (held.RequestID != "") != test.told || held.Token != l.Token ||
			held.ExpiresMS != l.ExpiresMS || held.RemainingMS < 1 || held.RemainingMS > 600_000 {
			t.Errorf("%s: told is %+v, %v", name, held, err)
		}
		if test.told && held.RequestID != keyname.KeptRequestID(keyname.MarkedRequestID(held.Mark, "mine")) {
			t.Errorf("%s: told is the request %x with the mark %s", name, held.RequestID, held.Mark)
		}
		if got, err := test.store.Get(s.context(), "default", "k"); err != nil || got.Owner != test.owner {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
		if page, err := test.store.List(s.context(), "default", "", 10); err != nil || len(page) != 1 || page[0].Owner != test.owner {
			t.Errorf("%s: listed %+v, %v", name, page, err)
		}
	}
	if _, err := theirs.Do(s.context(), release("x")); !errors.Is(err, lock.ErrNotOwned) {
		t.Errorf("another credential's owner of the same name releases: %v", err)
	}
}

// A request that was granted a lock through one daemon is made again through another, where
// others wait for the lock: it gets its lease, and does not wait behind them.
func TestHolderAsksThroughAnotherHost(t *testing.T) {
	s := newSite(t)
	f := s.serve()
	host := func() *lock.Host {
		h := lock.NewHost(s.store(f.server.URL, tokenOf["default"]), wall{time.Now()}, patience)
		s.Cleanup(func() { s.must(h.Close(context.Background())) })
		return h
	}
	want := lock.Request{Tenant: "default", Key: "k", Owner: "a", RequestID: "mine", TTLMS: 600_000, Elsewhere: true}
	l, err := host().Acquire(s.context(), want)
	s.must(err)
	other := host()
	waits, leave := context.WithCancel(t.Context())
	defer leave()
	done := make(chan error, 1)
	go func() {
		_, err := other.Acquire(waits, lock.Request{Tenant: "default", Key: "k", Owner: "b", TTLMS: 60_000, Wait: -1})
		done <- err
	}()
	await.Eventually(t, "another waits", func() bool { return f.host.HasQueue("default", "k") })
	for _, wait := range []time.Duration{0, -1} {
		want.Wait = wait
		if again, err := other.Acquire(s.context(), want); err != nil || again.LeaseID != l.LeaseID || !again.Repeated {
			t.Errorf("with a wait of %v: %+v, %v, want %+v", wait, again, err, l)
		}
	}
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the other has %v", err)
	}
}

// TestPlacementArea: what a daemon locks for placement is out of reach of its
// users, with the same client and the same key.
func TestPlacementArea(t *testing.T) {
	s := newSite(t)
	store := s.store(s.serve().server.URL, "token-of-placing-hosts")
	area := acquire("one")
	area.Tenant += lockhttp.PlacementTenants
	l, err := store.Do(s.context(), area)
	s.must(err)
	user := acquire("two")
	user.Owner = "b"
	if got, err := store.Do(s.context(), user); err != nil || got.LeaseID == l.LeaseID {
		t.Errorf("a user's lock of that key is %+v, %v", got, err)
	}
	if got, err := store.Get(s.context(), area.Tenant, area.Key); err != nil || got.LeaseID != l.LeaseID || got.Owner != "a" {
		t.Errorf("%+v, %v", got, err)
	}
	for tenant, want := range map[string]string{area.Tenant: "a", user.Tenant: "b"} {
		if page, err := store.List(s.context(), tenant, "", 10); err != nil || len(page) != 1 || page[0].Owner != want {
			t.Errorf("the locks of %s are %+v, %v", tenant, page, err)
		}
	}
}

// The server waits, and the remaining time counts from when the request was sent.
func TestServerWaits(t *testing.T) {
	s := newSite(t)
	f := s.serve()
	store := s.store(f.server.URL, tokenOf["default"])
	held, err := store.Do(s.context(), acquire("first"))
	s.must(err)
	began := time.Now()
	done := make(chan error, 1)
	var l lock.Lease
	go func() {
		r := acquire("second")
		r.Owner, r.TTLMS, r.Wait = "b", 60_000, time.Hour
		var err error
		l, err = store.Do(s.context(), r)
		done <- err
	}()
	await.Eventually(t, "the second waits", func() bool { return f.host.HasQueue("default", "k") })
	time.Sleep(30 * time.Millisecond)
	_, err = store.Do(s.context(), release("third"))
	s.must(err)
	s.must(<-done)
	if l.Token != held.Token+1 || l.Owner != "b" {
		t.Errorf("%+v", l)
	}
	// 1 ms each for the ticks of the store, the host and the answer.
	if least, most := int64(60_000+30-3), 60_000+time.Since(began).Milliseconds(); l.RemainingMS < least || l.RemainingMS > most {
		t.Errorf("%d ms remain, want %d to %d", l.RemainingMS, least, most)
	}
	// For as long as was asked, and no longer.
	var held2 *lock.HeldError
	fourth := acquire("fourth")
	fourth.Wait = time.Millisecond
	if _, err := store.Do(s.context(), fourth); !errors.As(err, &held2) || held2.Owner != "b" {
		t.Errorf("%+v, %v", held2, err)
	}
}

// TestWaitIsAddedToWhatRemains: a host counts what remains from before it sent the
// request. If the wait were not added, a lease shorter than the wait would seem to
// have ended when it was granted.
func TestWaitIsAddedToWhatRemains(t *testing.T) {
	var got lockhttp.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = lockhttp.Request{}
		_ = json.NewDecoder(r.Body).Decode(&got)
		w.Header().Set("Content-Type", "application/json")
		l := lock.Lease{Tenant: "default", Key: "k", LeaseID: got.LeaseID, Owner: "hosts/a", Token: 7, State: lock.Active, AcquiredMS: 1, ExpiresMS: 5001, RemainingMS: 4990}
		_ = json.NewEncoder(w).Encode(lockhttp.Answer{Answer: l.Answer(), OwnerSuffix: got.OwnerSuffix, WaitedMS: got.WaitMS * 4 / 5})
	}))
	defer server.Close()
	cfg, err := httpconn.ParseURL(server.URL)
	must.Succeed(t, err)
	c, err := httpconn.New(cfg)
	must.Succeed(t, err)
	defer c.Close()
	store := lockhttp.New(c)
	r := acquire("r")
	r.Wait = 25 * time.Second
	l, err := store.Do(t.Context(), r)
	if err != nil || l.RemainingMS != 24_990 || got.WaitMS != 25_000 {
		t.Errorf("%+v, %v; asked was %+v", l, err, got)
	}
	if l, err = store.Do(t.Context(), acquire("r")); err != nil || l.RemainingMS != 4990 || got.WaitMS != 0 {
		t.Errorf("%+v, %v; asked was %+v", l, err, got)
	}
	// A daemon's host over this store is served, though the wait was longer than the
	// lease.
	host := lock.NewHost(store, wall{time.Now()}, patience)
	if l, err = host.Acquire(t.Context(), lock.Request{Tenant: "default", Key: "k", Owner: "a", TTLMS: 5000, Wait: 25 * time.Second}); err != nil || l.Token != 7 {
		t.Errorf("%+v, %v", l, err)
	}
	if err := host.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// The answer of a server that is no lease server is an error.
func TestMalformedAnswers(t *testing.T) {
	for _, body := range []string{`{}`, `{"locks": [{}]}`, `{"lock_key":"k"}`, `[`, `{"acquired_at":"x"}`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		}))
		cfg, _ := httpconn.ParseURL(server.URL)
		c, err := httpconn.New(cfg)
		must.Succeed(t, err)
		if l, err := lockhttp.New(c).Do(t.Context(), acquire("r")); err == nil || lock.IsAnswer(err) {
			t.Errorf("%s: %+v, %v", body, l, err)
		}
		_ = c.Close()
		server.Close()
	}
}
