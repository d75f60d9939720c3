package lock_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
)

// requirements is LS-SPEC-001 as far as a store has a part in it, and the rules about
// request IDs. Each line is a request and its answer. A lease is shown as its state,
// token, owner and rest; "again" marks a repeated answer. Requests are of owner a or b
// and have a request ID of their own, a lease ID of their own for an acquire, a term of
// 1,000 ms and the key k, unless a field says otherwise. "+N" lets N ms pass.
var requirements = map[string]string{
	"LS-INV-001, LS-ACQ-001, LS-ACQ-002, LS-REL-002: one ACTIVE lease, a new one after it": `
		get = not found
		acquire a = ACTIVE 1 a 1000
		acquire a = held by a 1 1000
		acquire b = held by a 1 1000
		list = k
		+999
		acquire b = held by a 1 1
		release a = RELEASED 1 a
		list =
		get = RELEASED 1 a
		acquire b = ACTIVE 2 b 1000
		get = ACTIVE 2 b 1000
		list = k
		+1000
		acquire b = ACTIVE 3 b 1000`,
	"LS-INV-002, LS-ACQ-003, LS-ACC-03, LS-FENCE-001: the token is the next": `
		acquire a = ACTIVE 1 a 1000
		renew a = ACTIVE 1 a 1000
		release a = RELEASED 1 a
		acquire a = ACTIVE 2 a 1000
		+1000
		acquire b = ACTIVE 3 b 1000
		acquire a key=! = ACTIVE 1 a 1000
		acquire a key=~ = ACTIVE 1 a 1000
		+3601000
		sweep
		get = not found
		acquire a = ACTIVE 4 a 1000
		acquire a key=~ = ACTIVE 4 a 1000`,
	"LS-INV-003, LS-RNW-001, LS-REL-001, LS-ACC-02: by the owner of an ACTIVE lease": `
		renew a = not owned
		release a = not owned
		acquire a lease=one = ACTIVE 1 a 1000
		renew b = not owned
		release b = not owned
		renew a lease=two = not owned
		release a lease=two = not owned
		renew a lease=one = ACTIVE 1 a 1000
		+999
		acquire b = held by a 1 1
		renew a = ACTIVE 1 a 1000
		+999
		release a lease=one = RELEASED 1 a
		renew a = not owned
		release a = not owned
		+1
		renew a = not owned
		get = RELEASED 1 a`,
	"LS-INV-004, LS-EXP-001: the end": `
		acquire a = ACTIVE 1 a 1000
		+1000
		renew a = expired
		release a = expired
		renew b = not owned
		release b = not owned
		get = EXPIRED 1 a
		list =
		+1000
		get = EXPIRED 1 a
		acquire b = ACTIVE 2 b 1000
		renew a = not owned`,
	"LS-ACQ-004, LS-ACC-04: a repeated acquire": `
		acquire a id=x lease=one = ACTIVE 1 a 1000
		+10
		acquire a id=x lease=one = ACTIVE 1 a 990 again
		acquire a id=x lease=two = ACTIVE 1 a 990 again
		renew a lease=one ttl=500 = ACTIVE 1 a 500
		acquire a id=x = ACTIVE 1 a 500 again
		+500
		acquire a id=x = reused
		acquire b id=y = ACTIVE 2 b 1000
		acquire a id=x = reused
		release b = RELEASED 2 b
		acquire b id=y = reused
		acquire a = ACTIVE 3 a 1000
		acquire b id=y = reused`,
	"LS-RNW-002: the new end is now and the term": `
		acquire a = ACTIVE 1 a 1000
		+10
		renew a ttl=2000 = ACTIVE 1 a 2000
		+10
		renew a ttl=500 = ACTIVE 1 a 500
		+499
		get = ACTIVE 1 a 1
		+1
		get = EXPIRED 1 a`,
	"LS-RNW-003: a repeated renew changes nothing": `
		acquire a = ACTIVE 1 a 1000
		renew a id=x = ACTIVE 1 a 1000
		+10
		renew a id=x = ACTIVE 1 a 990 again
		get = ACTIVE 1 a 990
		+990
		renew a id=x = expired
		acquire a = ACTIVE 2 a 1000
		renew a id=x = not owned`,
	"LS-REL-003: a repeated release changes nothing": `
		acquire a = ACTIVE 1 a 1000
		release a id=x = RELEASED 1 a
		release a id=x = RELEASED 1 a again
		acquire a = ACTIVE 2 a 1000
		release a id=x = RELEASED 1 a again
		get = ACTIVE 2 a 1000`,
	"a request ID stands for one request": `
		acquire a id=x lease=one = ACTIVE 1 a 1000
		renew a id=y = ACTIVE 1 a 1000
		acquire b id=x = reused
		acquire a id=x ttl=1001 = reused
		renew a id=x = reused
		renew a id=y ttl=1001 = reused
		renew b id=y = reused
		renew a id=y lease=two = reused
		release a id=y = reused
		get = ACTIVE 1 a 1000
		acquire a id=x key=another = ACTIVE 1 a 1000`,
	"refusals are not kept": `
		acquire a = ACTIVE 1 a 1000
		acquire b id=x = held by a 1 1000
		renew b id=y = not owned
		release a = RELEASED 1 a
		acquire b id=x = ACTIVE 2 b 1000
		renew b id=y = ACTIVE 2 b 1000`,
	"an idle key is remembered for an hour after its lease's end": `
		acquire a = ACTIVE 1 a 1000
		acquire b key=other = ACTIVE 1 b 1000
		+10
		release a = RELEASED 1 a
		+3600989
		sweep
		get = RELEASED 1 a
		list =
		+1
		sweep
		get = not found
		acquire b key=other = ACTIVE 2 b 1000`,
	"an idle key whose lease has expired": `
		acquire a = ACTIVE 1 a 1000
		+3600999
		sweep
		get = EXPIRED 1 a
		+1
		sweep
		get = not found`,
	"a forgotten request is judged by the state": `
		acquire a lease=one = ACTIVE 1 a 1000
		renew a id=x lease=one = ACTIVE 1 a 1000
		renews a 15
		renew a id=x lease=one = ACTIVE 1 a 1000 again
		release a = RELEASED 1 a
		acquire a = ACTIVE 2 a 1000
		renew a id=x lease=one = not owned`,
}

func TestRequirements(t *testing.T) {
	for name, script := range requirements {
		t.Run(name, func(t *testing.T) {
			r := newRigged(t)
			for n, line := range strings.Split(strings.TrimSpace(script), "\n") {
				asked, want := line, ""
				if i := strings.LastIndex(line, " ="); i >= 0 {
					asked, want = line[:i], strings.TrimSpace(line[i+2:])
				}
				if got := r.play(strings.Fields(asked)); got != want { // seeds 002-3-1, 002-3-2, 002-3-3 and 002-3-5
					t.Fatalf("line %d, %s: it answers %q, want %q", n+1, line, got, want)
				}
			}
		})
	}
}

// play carries out one line of a script, and shows its answer.
func (r *rigged) play(asked []string) string {
	r.Helper()
	switch what := asked[0]; what {
	case "get":
		l, err := r.store.Get(r.Context(), tenant, "k")
		return r.answer(l, err)
	case "list":
		page, err := r.store.List(r.Context(), tenant, "", lock.MaxList)
		var keys []string
		for _, l := range page {
			keys = append(keys, l.Key)
		}
		r.must(err)
		return strings.Join(keys, " ")
	case "sweep":
		r.must(sweep(r.records))
		return ""
	case "renews":
		n, err := strconv.Atoi(asked[2])
		r.must(err)
		for range n {
			r.play([]string{"renew", asked[1]})
		}
		return ""
	default:
		if ms, err := strconv.Atoi(what); err == nil { // +N
			r.clock.Add(int64(ms))
			return ""
		}
		l, err := r.store.Do(r.Context(), r.requestOf(asked))
		return r.answer(l, err)
	}
}

func (r *rigged) requestOf(asked []string) lock.Request {
	op := map[string]lock.Op{"acquire": lock.Acquire, "renew": lock.Renew, "release": lock.Release}[asked[0]]
	r.serial++
	q := lock.Request{Op: op, Tenant: tenant, Key: "k", Owner: asked[1], RequestID: fmt.Sprint("request-", r.serial)}
	if op == lock.Acquire {
		q.LeaseID = fmt.Sprintf("%032x", r.serial)
	}
	if op != lock.Release {
		q.TTLMS = 1000
	}
	for _, field := range asked[2:] {
		switch name, value, _ := strings.Cut(field, "="); name {
		case "id":
			q.RequestID = value
		case "lease":
			q.LeaseID = fmt.Sprintf("%x%026d", value, 0)
		case "ttl":
			q.TTLMS, _ = strconv.ParseInt(value, 10, 64)
		case "key":
			q.Key = value
		}
	}
	return q
}

// answer shows a lease or an error. Every answer about a live lease says the same of its
// end in both ways.
func (r *rigged) answer(l lock.Lease, err error) string {
	r.Helper()
	if held, ok := errors.AsType[*lock.HeldError](err); ok {
		if held.ExpiresMS != r.clock.Load()+held.RemainingMS {
			r.Errorf("at %d, it is held: %+v", r.clock.Load(), held)
		}
		return fmt.Sprintf("held by %s %d %d", held.Owner, held.Token, held.RemainingMS)
	}
	for text, known := range map[string]error{
		"not owned": lock.ErrNotOwned, "expired": lock.ErrExpired, "reused": lock.ErrRequestReused, "not found": lock.ErrNotFound,
	} {
		if errors.Is(err, known) {
			return text
		}
	}
	r.must(err)
	text := fmt.Sprintf("%s %d %s", l.State, l.Token, l.Owner)
	if l.State == lock.Active {
		if l.ExpiresMS != r.clock.Load()+l.RemainingMS {
			r.Errorf("at %d, it is %+v", r.clock.Load(), l)
		}
		text += fmt.Sprint(" ", l.RemainingMS)
	}
	if l.Repeated {
		text += " again"
	}
	return text
}

// TestInvalid is what no store carries out.
func TestInvalid(t *testing.T) {
	r := newRigged(t)
	for what, how := range map[string]func(*lock.Request){
		"no operation":     func(q *lock.Request) { q.Op = 0 },
		"empty key":        func(q *lock.Request) { q.Key = "" },
		"long key":         func(q *lock.Request) { q.Key = strings.Repeat("k", lock.MaxKey+1) },
		"key not UTF-8":    func(q *lock.Request) { q.Key = "a\xff" },
		"control in key":   func(q *lock.Request) { q.Key = "a\nb" },
		"empty tenant":     func(q *lock.Request) { q.Tenant = "" },
		"slash in tenant":  func(q *lock.Request) { q.Tenant = "a/b" },
		"empty owner":      func(q *lock.Request) { q.Owner = "" },
		"space in owner":   func(q *lock.Request) { q.Owner = "a b" },
		"long request ID":  func(q *lock.Request) { q.RequestID = strings.Repeat("r", lock.MaxRequestID+1) },
		"space in request": func(q *lock.Request) { q.RequestID = "a b" },
		"no lease ID":      func(q *lock.Request) { q.LeaseID = "" },
		"short term":       func(q *lock.Request) { q.TTLMS = lock.MinTTL.Milliseconds() - 1 },
		"long term":        func(q *lock.Request) { q.TTLMS = lock.MaxTTL.Milliseconds() + 1 },
		"overflowing term": func(q *lock.Request) { q.TTLMS = 1 << 62 },
		"negative term":    func(q *lock.Request) { q.TTLMS = -1 },
		"release's term":   func(q *lock.Request) { q.Op = lock.Release },
	} {
		q := r.requestOf([]string{"acquire", "a"})
		how(&q)
		if _, err := r.store.Do(t.Context(), q); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%s: error is %v, want ErrInvalid", what, err)
		}
	}
	_, get := r.store.Get(t.Context(), tenant, "")
	_, long := r.store.List(t.Context(), tenant, "", lock.MaxList+1)
	_, list := r.store.List(t.Context(), "", "", 1)
	for _, err := range []error{get, long, list} {
		if !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("error is %v, want ErrInvalid", err)
		}
	}
}
