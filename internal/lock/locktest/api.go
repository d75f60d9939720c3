package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

func testInvalid(s *suite) {
	good := s.acquire(alice, long)
	for what, how := range map[string]func(*lock.Request){
		"no operation":     func(r *lock.Request) { r.Op = 0 },
		"empty key":        func(r *lock.Request) { r.Key = "" },
		"long key":         func(r *lock.Request) { r.Key = strings.Repeat("k", lock.MaxKey+1) },
		"key not UTF-8":    func(r *lock.Request) { r.Key = "a\xff" },
		"control in key":   func(r *lock.Request) { r.Key = "a\nb" },
		"empty tenant":     func(r *lock.Request) { r.Tenant = "" },
		"slash in tenant":  func(r *lock.Request) { r.Tenant = "a/b" },
		"empty owner":      func(r *lock.Request) { r.Owner = "" },
		"space in owner":   func(r *lock.Request) { r.Owner = "a b" },
		"long request ID":  func(r *lock.Request) { r.RequestID = strings.Repeat("r", lock.MaxRequestID+1) },
		"space in request": func(r *lock.Request) { r.RequestID = "a b" },
		"no lease ID":      func(r *lock.Request) { r.LeaseID = "" },
		"short term":       func(r *lock.Request) { r.TTLMS = lock.MinTTL.Milliseconds() - 1 },
		"long term":        func(r *lock.Request) { r.TTLMS = lock.MaxTTL.Milliseconds() + 1 },
		"negative term":    func(r *lock.Request) { r.TTLMS = -1 },
	} {
		r := good
		how(&r)
		if _, err := s.try(r); !errors.Is(err, lock.ErrInvalid) {
			s.Errorf("%s: error is %v, want ErrInvalid", what, err)
		}
	}
	ctx := context.Background()
	_, err := s.store.Get(ctx, tenant, "")
	s.want(err, lock.ErrInvalid)
	for _, limit := range []int{0, -1, lock.MaxList + 1} {
		_, err = s.store.List(ctx, tenant, "", limit)
		s.want(err, lock.ErrInvalid)
	}
	_, err = s.store.List(ctx, "", "", 1)
	s.want(err, lock.ErrInvalid)
	_, err = s.store.Get(ctx, tenant, key)
	s.want(err, lock.ErrNotFound)
}

// oddKeys are keys that a store could take for something else.
var oddKeys = []string{
	"a", "a/", "a/b", "a:b", "a b", " ", "%2F", "{a}", "{a", "a}b", "*", "?", "[a]", `\`, `"`, "'", "../a", "-", "_", "~",
	"ключ", "錠前", "🔒", strings.Repeat("k", lock.MaxKey), strings.Repeat("錠", lock.MaxKey/3),
}

func testKeys(s *suite) {
	for i, k := range oddKeys {
		r := s.acquire(fmt.Sprintf("owner-%d", i), long)
		r.Key = k
		s.do(r)
	}
	for i, k := range oddKeys {
		l, err := s.store.Get(context.Background(), tenant, k)
		s.must(err)
		if l.Key != k || l.Owner != fmt.Sprintf("owner-%d", i) {
			s.Errorf("Get of %q answers %+v", k, l)
		}
	}
	want := slices.Clone(oddKeys)
	slices.Sort(want)
	if got := s.pages(7); !slices.Equal(got, want) {
		s.Errorf("listed are %q, want %q", got, want)
	}
}

// pages is the keys that are listed, so many at a time.
func (s *suite) pages(limit int) (keys []string) {
	s.Helper()
	for after := ""; ; {
		page, err := s.store.List(context.Background(), tenant, after, limit)
		s.must(err)
		for _, l := range page {
			keys = append(keys, l.Key)
		}
		if len(page) < limit {
			return keys
		}
		after = page[limit-1].Key
	}
}

func testTenants(s *suite) {
	mine := s.acquire(alice, long)
	theirs := mine
	theirs.Tenant, theirs.Owner, theirs.LeaseID = "acme", bob, s.next()
	s.do(mine)
	if got := s.do(theirs); got.Tenant != "acme" || got.Owner != bob || got.Repeated {
		s.Errorf("another tenant's lock of the same key is %+v", got)
	}
	page, err := s.store.List(context.Background(), "acme", "", lock.MaxList)
	s.must(err)
	if len(page) != 1 || page[0].Tenant != "acme" || page[0].Owner != bob {
		s.Errorf("the other tenant's locks are %+v", page)
	}
	s.do(s.release(alice))
	if got, err := s.store.Get(context.Background(), "acme", key); err != nil || got.State != lock.Active {
		s.Errorf("the other tenant's lock is %+v, error %v", got, err)
	}
}

func testGet(s *suite) {
	_, err := s.store.Get(context.Background(), tenant, key)
	s.want(err, lock.ErrNotFound)
	want := s.do(s.acquire(alice, long))
	got := s.get()
	if got.RemainingMS < 1 || got.RemainingMS > long {
		s.Errorf("%d ms remain of %d", got.RemainingMS, long)
	}
	got.RemainingMS = want.RemainingMS
	if got != want {
		s.Errorf("Get answers %+v, want %+v", got, want)
	}
	want = s.do(s.release(alice))
	if got := s.get(); got != want {
		s.Errorf("after the release Get answers %+v, want %+v", got, want)
	}
}

func testList(s *suite) {
	if got := s.pages(1); len(got) != 0 {
		s.Errorf("an empty store lists %q", got)
	}
	for _, k := range []string{"b", "a", "c", "d"} {
		r := s.acquire(alice, long)
		r.Key = k
		want := s.do(r)
		page, err := s.store.List(context.Background(), tenant, "", lock.MaxList)
		s.must(err)
		i := slices.IndexFunc(page, func(l lock.Lease) bool { return l.Key == k })
		if i < 0 {
			s.Fatalf("%q is not listed: %+v", k, page)
		}
		page[i].RemainingMS = want.RemainingMS
		if page[i] != want {
			s.Errorf("listed is %+v, want %+v", page[i], want)
		}
	}
	r := s.release(alice)
	r.Key = "c"
	s.do(r)
	if got := s.pages(lock.MaxList); !slices.Equal(got, []string{"a", "b", "d"}) {
		s.Errorf("listed are %q, want a, b and d", got)
	}
}

func testListPages(s *suite) {
	var want []string
	for i := range 23 {
		r := s.acquire(alice, long)
		r.Key = fmt.Sprintf("k%02d", i)
		s.do(r)
		if i%5 == 0 { // gaps, so that a page cannot be filled by counting records
			r := s.release(alice)
			r.Key = fmt.Sprintf("k%02d", i)
			s.do(r)
			continue
		}
		want = append(want, r.Key)
	}
	for _, limit := range []int{1, 4, 6, len(want), len(want) + 1} {
		if got := s.pages(limit); !slices.Equal(got, want) {
			s.Errorf("in pages of %d, listed are %q, want %q", limit, got, want)
		}
	}
	// A page may begin after a key that does not exist.
	page, err := s.store.List(context.Background(), tenant, "k0999", 2)
	s.must(err)
	if len(page) != 2 || page[0].Key != "k11" || page[1].Key != "k12" {
		s.Errorf("after k0999 come %+v, want k11 and k12", page)
	}
}

func testContextEnded(s *suite) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.store.Do(ctx, s.acquire(alice, long))
	if err == nil || lock.IsAnswer(err) {
		s.Errorf("with an ended context, Do gives %v", err)
	}
	if _, err = s.store.Get(ctx, tenant, key); err == nil || lock.IsAnswer(err) {
		s.Errorf("with an ended context, Get gives %v", err)
	}
	if _, err = s.store.List(ctx, tenant, "", 1); err == nil || lock.IsAnswer(err) {
		s.Errorf("with an ended context, List gives %v", err)
	}
	s.do(s.acquire(alice, long))
}

// testRestart checks that what was answered is still so afterwards.
func testRestart(s *suite) {
	if s.backend.Restart == nil {
		s.Skip("the backend promises nothing over a restart")
	}
	acquire := s.acquire(alice, long)
	first := s.do(acquire)
	renew := s.renew(alice, 2*long)
	renewed := s.do(renew)

	s.reopen(s.backend.Restart)
	if got := s.get(); got.LeaseID != first.LeaseID || got.Token != first.Token || got.ExpiresMS != renewed.ExpiresMS || got.State != lock.Active {
		s.Errorf("after the restart the lock is %+v, want %+v", got, renewed)
	}
	_, err := s.try(s.acquire(bob, long))
	s.wantHeld(err)
	for _, r := range []lock.Request{acquire, renew} {
		if got := s.do(r); !got.Repeated || got.LeaseID != first.LeaseID || got.ExpiresMS != renewed.ExpiresMS {
			s.Errorf("after the restart the %v answers %+v, want %+v", r.Op, got, renewed)
		}
	}
	release := s.release(alice)
	s.do(release)
	s.reopen(s.backend.Restart)
	if got := s.do(release); !got.Repeated || got.State != lock.Released {
		s.Errorf("after the restart the release answers %+v", got)
	}
	if got := s.do(s.acquire(bob, long)); got.Token <= first.Token {
		s.Errorf("token %d after %d", got.Token, first.Token)
	}
}

func testNotify(s *suite) {
	other := s.clients[0]
	s.store = s.open() // whoever releases it
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tokens, err := other.Notify(ctx, tenant, key)
	if errors.Is(err, errors.ErrUnsupported) {
		s.Skip("the store does not notify")
	}
	s.must(err)
	for range 3 {
		s.do(s.acquire(alice, long))
		for len(tokens) > 0 {
			<-tokens
		}
		s.do(s.release(alice))
		select {
		case _, open := <-tokens:
			if !open {
				s.Fatalf("the channel was closed")
			}
		case <-time.After(patience):
			s.Fatalf("nothing tells of the release")
		}
	}
	cancel()
	for deadline := time.After(patience); ; {
		select {
		case _, open := <-tokens:
			if !open {
				return
			}
		case <-deadline:
			s.Fatalf("the channel is not closed after its context has ended")
		}
	}
}
