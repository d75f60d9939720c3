package httplease_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/httplease"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// otherServer is a lease server by its answers, as others could have written it.
type otherServer struct {
	*stub
	mu      sync.Mutex
	echo    func(requestID string) string // "" = leave it out
	reserve bool                          // reservedUntil is in leases
	verify  http.HandlerFunc
	seen    []string // method and path of each request
}

func newOtherServer(t *testing.T) *otherServer {
	o := &otherServer{echo: func(id string) string { return id }, reserve: true, verify: plain(200, "application/json", `{"lost":[]}`)}
	o.stub = newStub(t, o.serve)
	return o
}

func (o *otherServer) serve(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, r.Method+" "+r.URL.Path)
	if r.URL.Path != "/lease" {
		o.verify(w, r)
		return
	}
	var in struct{ RequestID string }
	_ = json.NewDecoder(r.Body).Decode(&in)
	l := provider.DefaultTerms().Grant(7, time.Now().UnixMilli(), "secret")
	fields := map[string]any{
		"id": 7, "created": l.Created, "expired": l.Expired, "secret": "secret",
		"customEpoch": l.EpochMS, "bitReserve": 1, "bitTs": 41, "bitId": 14, "bitSeq": 8,
	}
	if o.reserve {
		fields["reservedUntil"] = l.ReservedUntil
	}
	answer := map[string]any{"leases": []any{fields}}
	if id := o.echo(in.RequestID); id != "" {
		answer["requestId"] = id
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (o *otherServer) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func acquireOne(t *testing.T, p *httplease.Provider, requestID string) (lease.Lease, error) {
	leases, err := p.Acquire(within(t, await.Patience), provider.AcquireRequest{RequestID: requestID, ThroughputPerMS: 1})
	if err != nil {
		return lease.Lease{}, err
	}
	return leases[0], nil
}

// Leases in an answer to another request are neither used nor released nor verified.
// The same request is sent again, since its outcome is unknown.
func TestAnswerToAnotherRequest(t *testing.T) {
	o := newOtherServer(t)
	p := mustOpen(t, o.URL)
	other := provider.NewSecret()
	o.set(func() { o.echo = func(string) string { return other } })
	for range 2 {
		l, err := acquireOne(t, p, "mine")
		if err == nil || !strings.Contains(err.Error(), "another requestId") || !strings.Contains(err.Error(), o.URL) || errors.Is(err, provider.ErrNotSent) {
			t.Errorf("%v, %v", l, err)
		}
	}
	if want := []string{"POST /lease", "POST /lease"}; !slices.Equal(o.seen, want) {
		t.Errorf("the server was asked %v, want %v", o.seen, want)
	}
	o.set(func() { o.echo = func(id string) string { return id } })
	if _, err := acquireOne(t, p, "mine"); err != nil {
		t.Error(err)
	}
}

// A server that has repeated a request ID must always; a server that never does is accepted. Each
// is held to its own past.
func TestServerThatHasRepeated(t *testing.T) {
	none := func(string) string { return "" }
	repeats, never := newOtherServer(t), newOtherServer(t)
	never.echo = none
	p := mustOpen(t, repeats.URL+","+never.URL)
	ask := func(wantErr bool) {
		t.Helper()
		if _, err := acquireOne(t, p, provider.NewSecret()); (err != nil) != wantErr || err != nil && !strings.Contains(err.Error(), "no requestId") {
			t.Errorf("the error is %v", err)
		}
	}
	ask(false)
	repeats.set(func() { repeats.echo = none })
	ask(true)
	ask(true)
	repeats.stub.Close() // and the other one is asked
	ask(false)
	ask(false)
	q := mustOpen(t, never.URL)
	if _, err := acquireOne(t, q, "x"); err != nil {
		t.Error(err)
	}
}

func TestReservedUntilMayBeMissing(t *testing.T) {
	o := newOtherServer(t)
	o.reserve = false
	p := mustOpen(t, o.URL)
	if l, err := acquireOne(t, p, "x"); err != nil || l.ReservedUntil != l.Expired || l.Validate() != nil {
		t.Errorf("%+v, %v", l, err)
	}
}

// A server that cannot verify says so each time, until an upgrade has taught it.
func TestVerifyIsLacking(t *testing.T) {
	for name, verify := range map[string]http.HandlerFunc{
		"404": plain(404, "text/plain", "not found"), "405": plain(405, "text/html", "<h1>no</h1>"), "501": plain(501, "text/html", "Unsupported method"),
		"404 as a problem": refusing(problem.New(problem.NotFound, "there is no such path here")),
		"501 as a problem": refusing(problem.New(problem.NotSupported, "the provider behind this server cannot")),
	} {
		o := newOtherServer(t)
		o.echo, o.reserve, o.verify = func(string) string { return "" }, false, verify
		p := mustOpen(t, o.URL)
		l, err := acquireOne(t, p, "a")
		must.Succeed(t, err)
		if lost, err := provider.Verify(within(t, await.Patience), p, "", []lease.Lease{l}); len(lost) > 0 || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v, %v", name, lost, err)
		}
		o.set(func() { o.verify = plain(200, "application/json", `{"lost":[0]}`) })
		if lost, err := provider.Verify(within(t, await.Patience), p, "", []lease.Lease{l}); err != nil || len(lost) != 1 {
			t.Errorf("%s: once it can: %v, %v", name, lost, err)
		}
	}
}

// A server that merely fails can verify.
func TestFailedVerify(t *testing.T) {
	o := newOtherServer(t)
	p := mustOpen(t, o.URL)
	l, err := acquireOne(t, p, "a")
	must.Succeed(t, err)
	for _, failing := range []http.HandlerFunc{
		plain(200, "application/json", `{}`), plain(200, "application/json", `{"lost":null}`), plain(500, "text/plain", "no"), plain(403, "text/plain", "no"), refusing(problem.New(problem.Unavailable, "no")),
		refusing(problem.New(problem.RateLimited, "no")), plain(200, "application/json", `{"lost":[1]}`), plain(200, "text/html", `{"lost":[0]}`), cut,
	} {
		o.set(func() { o.verify = failing })
		if lost, err := provider.Verify(within(t, await.Patience), p, "", []lease.Lease{l}); err == nil || errors.Is(err, errors.ErrUnsupported) || len(lost) > 0 {
			t.Errorf("an answer that says nothing: %v, %v", lost, err)
		}
	}
	o.set(func() { o.verify = plain(200, "application/json", `{"lost":[]}`) })
	works := func() {
		t.Helper()
		if lost, err := provider.Verify(within(t, await.Patience), p, "", []lease.Lease{l}); err != nil || len(lost) > 0 {
			t.Errorf("%v, %v", lost, err)
		}
	}
	works()
	o.set(func() { o.verify = plain(404, "text/html", "<h1>a proxy</h1>") })
	if lost, err := provider.Verify(within(t, await.Patience), p, "", []lease.Lease{l}); err == nil || len(lost) > 0 {
		t.Errorf("a proxy's answer: %v, %v", lost, err)
	}
	o.set(func() { o.verify = plain(200, "application/json", `{"lost":[]}`) })
	works()
	if _, err := acquireOne(t, p, "b"); err != nil {
		t.Error(err)
	}
}

// A server that cannot extend says so: the holder has to know, and no one else.
func TestExtendIsLacking(t *testing.T) {
	for _, status := range []int{404, 405, 501} {
		o := newOtherServer(t)
		o.verify = plain(status, "text/plain", "")
		p := mustOpen(t, o.URL)
		l, err := acquireOne(t, p, "a")
		must.Succeed(t, err)
		if _, err := provider.Extend(within(t, await.Patience), p, "", l); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%d: %v", status, err)
		}
	}
	o := newOtherServer(t)
	o.verify = refusing(problem.New(problem.LeaseNotFound, "no such lease"))
	p := mustOpen(t, o.URL)
	if _, err := p.Extend(within(t, await.Patience), provider.ExtendRequest{ID: 1, BitSeq: 8}); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("a slot that was never granted: %v", err)
	}
}

// leaseJSON is an answer to an acquire with one field in place of a good one.
func leaseJSON(field, value string) string {
	now := time.Now().UnixMilli()
	fields := map[string]string{
		"id": "7", "created": fmt.Sprint(now), "expired": fmt.Sprint(now + 600_000), "reservedUntil": fmt.Sprint(now + 1_200_000),
		"secret": `"secret"`, "customEpoch": "1767225600000", "bitReserve": "1", "bitTs": "41", "bitId": "14", "bitSeq": "8",
	}
	fields[field] = value
	var parts []string
	for name, v := range fields {
		parts = append(parts, fmt.Sprintf("%q:%s", name, v))
	}
	return `{"leases":[{` + strings.Join(parts, ",") + `}]}`
}

// An overflowing field is called malformed, here or by the lease's own check.
func TestOverflowingFields(t *testing.T) {
	for _, field := range []string{"id", "created", "expired", "reservedUntil", "customEpoch", "bitReserve", "bitTs", "bitId", "bitSeq"} {
		for _, value := range []string{fmt.Sprint(math.MaxInt64), fmt.Sprint(math.MinInt64), "9223372036854775808", "1e300", "-1", `"7"`, "null", "1.5"} {
			if field == "customEpoch" && value == "-1" || field == "reservedUntil" && value == "null" {
				continue // which are right
			}
			if value == "null" && (field == "id" || field == "customEpoch") {
				continue // 0, which is right
			}
			s := newStub(t, plain(200, "application/json", leaseJSON(field, value)))
			l, err := acquireOne(t, mustOpen(t, s.URL), "a")
			if err == nil {
				err = l.Validate()
			}
			if err == nil || !strings.Contains(err.Error(), "malformed") {
				t.Errorf("%s %s: %v, %v", field, value, l, err)
			}
			s.Close()
		}
	}
	// Times in microseconds are no milliseconds: the lease would last for ever.
	s := newStub(t, plain(200, "application/json", leaseJSON("reservedUntil", fmt.Sprint(time.Now().UnixMicro()))))
	if _, err := acquireOne(t, mustOpen(t, s.URL), "a"); !errors.Is(err, lease.ErrMalformed) || !strings.Contains(err.Error(), provider.MaxTerm.String()) {
		t.Errorf("reserved for ever: %v", err)
	}
}

// An answer is limited before it is read, and the limit is named.
func TestLongAnswers(t *testing.T) {
	long := func(n int) string { return leaseJSON("secret", `"`+strings.Repeat("s", n)+`"`) }
	s := newStub(t, plain(200, "application/json", long(10<<20)))
	if _, err := acquireOne(t, mustOpen(t, s.URL), "a"); err == nil || !strings.Contains(err.Error(), "larger than 67584 bytes") {
		t.Errorf("a secret of 10 MB, in chunks: %.200v", err)
	}
	s.answer.Store(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", fmt.Sprint(10<<20))
		w.(http.Flusher).Flush() // and never a byte of it
	}))
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	if _, err := mustOpen(t, s.URL).Acquire(ctx, provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), "has 10485760 bytes, and may have 67584") {
		t.Errorf("a secret of 10 MB, announced: %.200v", err)
	}
	s.answer.Store(plain(200, "application/json", long(2000)))
	l, err := acquireOne(t, mustOpen(t, s.URL), "a")
	if err == nil {
		err = l.Validate()
	}
	if !errors.Is(err, lease.ErrMalformed) || !strings.Contains(err.Error(), "2000 bytes, and may have 1024") {
		t.Errorf("a secret of 2 kB: %.200v", err)
	}
}
