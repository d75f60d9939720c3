package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// grantor is a provider; its acquires have the outcomes that the test sets, in order; then,
// always, the last one.
type grantor struct {
	provider.Provider
	stage    *stage
	answers  []func(requestID string) ([]lease.Lease, error)
	requests []string // IDs of the acquires
	at       []time.Duration
	released []provider.ReleaseRequest
}

func (g *grantor) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	g.requests = append(g.requests, req.RequestID)
	g.at = append(g.at, time.Since(g.stage.began))
	answer := g.answers[0]
	if len(g.answers) > 1 {
		g.answers = g.answers[1:]
	}
	leases, err := answer(req.RequestID)
	return leases, errors.Join(err, ctx.Err())
}

func (g *grantor) Release(_ context.Context, req provider.ReleaseRequest) error {
	g.released = append(g.released, req)
	return nil
}

func refuses(err error) func(string) ([]lease.Lease, error) {
	return func(string) ([]lease.Lease, error) { return nil, err }
}

func grants(string) ([]lease.Lease, error) {
	now := time.Now().UnixMilli()
	return []lease.Lease{{
		ID: 17, Created: now, Expired: now + term.Milliseconds(), ReservedUntil: now + term.Milliseconds(), Secret: fmt.Sprint("s", now),
		BitReserve: 1, BitTS: 41, BitID: 14, BitSeq: 8,
	}}, nil
}

// later answers after so long.
func later(pause time.Duration, answer func(string) ([]lease.Lease, error)) func(string) ([]lease.Lease, error) {
	return func(id string) ([]lease.Lease, error) {
		time.Sleep(pause)
		return answer(id)
	}
}

func TestAcquisition(t *testing.T) {
	type answers []func(string) ([]lease.Lease, error)
	inTime := time.Date(2000, 1, 1, 0, 0, 3, 0, time.UTC).UnixMilli() // a bubble begins 3 s before
	full := refuses(&provider.FullError{Pool: "p", Slots: 64, NextEndMS: time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC).UnixMilli()})
	fullFor := func(d time.Duration) func(string) ([]lease.Lease, error) {
		return func(id string) ([]lease.Lease, error) {
			if time.Now().Before(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(d)) {
				return full(id)
			}
			return grants(id)
		}
	}
	fenced := refuses(&provider.FencedError{UntilMS: inTime, Reason: "forgot"})
	away, invalid := refuses(errAway), refuses(provider.ErrInvalid)
	for _, test := range []struct {
		name    string
		answers answers
		wait    time.Duration
		lines   []string
		fails   string
		after   [2]time.Duration // how long it takes
	}{
		{name: "at once", answers: answers{grants}},
		{name: "away for a moment", answers: answers{away, away, grants}, after: [2]time.Duration{2 * time.Second, 2 * time.Second}, lines: []string{"trying again: the provider is away", "trying again: the provider is away"}},
		{name: "away", answers: answers{away}, fails: "no machine ID: the provider is away", after: [2]time.Duration{2 * time.Second, 2 * time.Second}, wait: -1},
		{name: "invalid", answers: answers{invalid}, fails: "no machine ID: invalid request", wait: -1},
		{name: "full, not to wait", answers: answers{full}, fails: "no machine ID: all 64 machine IDs of pool \"p\" are taken; the next one is free at 2000-01-01T01:00:00.000Z"},
		{name: "full for longer than to wait", answers: answers{full}, wait: 150 * time.Second, fails: "no machine ID within 2m30s: all 64", after: [2]time.Duration{150 * time.Second, 150 * time.Second}, lines: []string{
			"waiting for a machine ID, for 0s so far: all 64 machine IDs of pool \"p\" are taken; the next one is free at 2000-01-01T01:00:00.000Z",
			"waiting for a machine ID, for 1m", "waiting for a machine ID, for 2m",
		}},
		{name: "full for days", answers: answers{fullFor(30 * time.Minute)}, wait: -1, after: [2]time.Duration{30 * time.Minute, 30*time.Minute + mostPause}},
		{name: "full for a moment", answers: answers{full, grants}, wait: -1, after: [2]time.Duration{firstPause * 3 / 4, firstPause}},
		{name: "fenced", answers: answers{func(id string) ([]lease.Lease, error) {
			if time.Now().UnixMilli() < inTime {
				return fenced(id)
			}
			return grants(id)
		}}, wait: -1, after: [2]time.Duration{3 * time.Second, 3*time.Second + mostPause}, lines: []string{"waiting for a machine ID, for 0s so far: grants are refused until 2000-01-01T00:00:03.000Z: forgot"}},
		{name: "fenced, not to wait", answers: answers{fenced}, fails: "no machine ID: grants are refused until"},
		{name: "busy", answers: answers{refuses(&provider.BusyError{RetryAfter: 7 * time.Second}), grants}, wait: -1, after: [2]time.Duration{7 * time.Second, 19 * time.Second}},
		{name: "away while waiting", answers: answers{full, away, away, away, away, away, full, away, away, grants}, wait: -1, after: [2]time.Duration{7 * time.Second, 10 * time.Second}},
		{name: "away while waiting, for too long", answers: answers{full, away}, wait: 10 * time.Second, after: [2]time.Duration{10 * time.Second, 10 * time.Second}, fails: "no machine ID within 10s: the provider is away"},
		{name: "ended, unheard of", answers: answers{away, refuses(provider.ErrConflict), grants}, after: [2]time.Duration{2 * time.Second, 2 * time.Second}},
		{name: "malformed", answers: answers{func(id string) ([]lease.Lease, error) {
			l, _ := grants(id)
			l[0].Secret = ""
			return l, nil
		}}, fails: "malformed lease"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stage{began: time.Now()}
				g := &grantor{stage: s, answers: slices.Clone(test.answers)}
				var lines []string
				a := &Acquisition{Provider: g, Clock: s, Timeout: 3 * time.Second, Wait: test.wait, Say: func(format string, args ...any) {
					lines = append(lines, fmt.Sprintf(format, args...))
				}}
				l, askedAt, err := a.Run(t.Context())
				took := time.Since(s.began)
				if test.fails == "" && (err != nil || l.ID != 17) || test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
					t.Fatalf("%v, %v", l, err)
				}
				if took < test.after[0] || took > test.after[1] {
					t.Errorf("it took %v", took)
				}
				if len(test.lines) > 0 && !slices.EqualFunc(lines, test.lines, strings.HasPrefix) {
					t.Errorf("it says\n%s", strings.Join(lines, "\n"))
				}
				// A request is as old as its first call at most.
				if first := slices.Index(g.requests, a.Request.RequestID); err == nil && askedAt-time.Hour != g.at[first] {
					t.Errorf("asked at %v, and the request's first call was at %v", askedAt-time.Hour, g.at[first])
				}
			})
		})
	}
}

// A call that was given up may be carried out later. An answer in between that
// refuses belongs to a time before; so the request after it is another one. A busy provider
// refuses nothing: it may have granted the lease, and the same request gets it.
func TestEachRequestHasOneAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full, busy := refuses(&provider.FullError{}), refuses(&provider.BusyError{RetryAfter: time.Second})
		s := &stage{began: time.Now()}
		g := &grantor{stage: s, answers: []func(string) ([]lease.Lease, error){
			refuses(errAway), full, full, refuses(errAway), refuses(errAway), refuses(provider.ErrConflict), refuses(errAway), full, busy, refuses(errAway), busy, grants,
		}}
		a := &Acquisition{Provider: g, Clock: s, Timeout: time.Second, Wait: -1, Say: func(string, ...any) {}}
		if _, _, err := a.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		var ages []int // which request each call belongs to
		for i, id := range g.requests {
			if i == 0 || id != g.requests[i-1] {
				ages = append(ages, 0)
			}
			ages[len(ages)-1]++
		}
		if !slices.Equal(ages, []int{2, 1, 3, 2, 4}) {
			t.Errorf("the calls belong to requests of %v calls", ages)
		}
	})
}

// A lease may have been granted to the first of many calls. A lease that may be old is handed
// back, and another is asked for.
func TestStaleLease(t *testing.T) {
	for name, late := range map[string]func(string) ([]lease.Lease, error){
		"away": later(20*time.Second, refuses(errAway)), "busy": refuses(&provider.BusyError{RetryAfter: 20 * time.Second}),
	} {
		t.Run(name, func(t *testing.T) { testStaleLease(t, late) })
	}
}

func testStaleLease(t *testing.T, late func(string) ([]lease.Lease, error)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{began: time.Now()}
		g := &grantor{stage: s, answers: []func(string) ([]lease.Lease, error){refuses(&provider.FullError{}), late, late, grants}}
		a := &Acquisition{Provider: g, Clock: s, Timeout: time.Hour, Wait: -1, Say: func(string, ...any) {}}
		l, askedAt, err := a.Run(t.Context())
		if err != nil || s.Boot() != askedAt || len(g.released) != 1 || len(g.requests) != 5 || g.requests[3] == g.requests[4] {
			t.Fatalf("asked at %v, now %v (%v); released %+v", askedAt, s.Boot(), err, g.released)
		}
		if back := g.released[0]; back.TimestampMS != l.Created || back.Signature != lease.Sign(l.Secret, 17, l.Created) {
			t.Errorf("released %+v of %+v", back, l)
		}
	})
}

// An acquisition that is no longer wanted ends its wait at once, but not a call: its
// lease would be lost.
func TestAcquisitionIsInterrupted(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(string) ([]lease.Lease, error)
		at     time.Duration
		leased bool
	}{
		"while it waits":    {refuses(&provider.FullError{}), 2 * time.Second, false},
		"while it is asked": {later(4*time.Second, grants), 4 * time.Second, true},
		"while it is away":  {later(4*time.Second, refuses(errAway)), 4 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stage{began: time.Now()}
				g := &grantor{stage: s, answers: []func(string) ([]lease.Lease, error){test.answer}}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				a := &Acquisition{Provider: g, Clock: s, Timeout: 5 * time.Second, Wait: -1, Say: func(string, ...any) {}}
				_, _, err := a.Run(ctx)
				if took := time.Since(s.began); took != test.at || (err == nil) != test.leased {
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}

// Release tries the times until one is accepted.
func TestRelease(t *testing.T) {
	l := lease.Lease{ID: 3, BitSeq: 8, Created: 1000, Expired: 5000, Secret: "s"}
	for _, test := range []struct {
		accepted int64
		err      error
		want     int64
		asked    int
	}{
		{1000, nil, 1000, 1}, {2000, nil, 2000, 2}, {4999, nil, 4999, 3}, {1, nil, 4999, 3}, {2000, errAway, 1000, 1},
	} {
		r := &releaser{accepted: test.accepted, err: test.err}
		at, err := HoldLease(l, r, "x", nil, nil).Release(t.Context(), time.Second, 1000, 2000, 4999)
		if at != test.want || len(r.asked) != test.asked || (err == nil) != (test.accepted == test.want && test.err == nil) {
			t.Errorf("%+v: %d, %v after %+v", test, at, err, r.asked)
		}
		for _, req := range r.asked {
			if req.AtEnd != (req.TimestampMS == 4999) || req.Service != "x" || !lease.SameSignature(req.Signature, lease.Sign("s", 3, req.TimestampMS)) {
				t.Errorf("the request is %+v", req)
			}
		}
	}
}

type releaser struct {
	provider.Provider
	accepted int64
	err      error
	asked    []provider.ReleaseRequest
}

func (r *releaser) Release(_ context.Context, req provider.ReleaseRequest) error {
	r.asked = append(r.asked, req)
	if r.err == nil && req.TimestampMS != r.accepted {
		return provider.ErrTimestampSkew
	}
	return r.err
}
