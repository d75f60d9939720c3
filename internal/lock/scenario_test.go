package lock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// A scenario is a story of hosts and their clients, in bubble time. Each line is a time,
// until which nothing happens, or an event or a check:
//
//	CLIENT acquires|holds [wait=D|ever] [ttl=D] [id=ID] [elsewhere]   in the background, with ttl 30 s
//	CLIENT waits                                                      there is no outcome yet
//	CLIENT has TOKEN|any [again] [at=T] [from=T] [left=MS]                it was granted that lease, and it lives
//	CLIENT is ERROR [at=T] [left=MS]                                  or was refused
//	CLIENT leaves                                                     its context ends
//	CLIENT frees|drops|renews [ttl=D]                                 it releases by name, lets its holding go, or renews; in the background
//	CLIENT did|dropped [ERROR]                                        that is over, with this outcome
//	CLIENT knows                                                      its holding says as much as the store of what is left
//	CLIENT lost COUNT [ERROR] [from=T] [by=T]                         so many losses were reported to it
//	store STATE TOKEN | store freed CLIENT | store forgets D | store limits D
//	HOST OPERATION|all way|back [D] [down|astray] [once]               requests, or answers, take a time, are lost, or go astray
//	HOST up | HOST suspends D | HOST closes [D] | HOST asked LEAST..MOST | HOST subscribes D | HOST unsubscribed
//	HOST asked
//
// Clients are on the host h, or on the one after an @. Host o gets no news of
// releases, and h none in a plain scenario; s asks o, which waits for it.
type scenario struct {
	*rig
	plain   bool
	hosts   map[string]*storyHost
	clients map[string]*client
}

type storyHost struct {
	*host
	asked int64 // calls at the last check
}

type client struct {
	owner   string
	host    *storyHost
	leave   context.CancelFunc
	outcome chan result
	got     *result
	holding *lock.Holding
	lost    *losses
	did     chan error // a change by name
	dropped chan error
}

// play runs a script. kind is plain, notified, or empty for both.
func play(t *testing.T, kind, script string) {
	t.Helper()
	if kind == "" {
		t.Run("notified", func(t *testing.T) { play(t, "notified", script) })
		t.Run("plain", func(t *testing.T) { play(t, "plain", script) })
		return
	}
	bubble(t, func(r *rig) {
		s := &scenario{r, kind == "plain", map[string]*storyHost{}, map[string]*client{}}
		for line := range strings.Lines(script) {
			if fields := strings.Fields(line); len(fields) > 0 {
				if problem := s.line(fields); problem != "" {
					t.Fatalf("at %v, %s: %s", r.elapsed(), strings.TrimSpace(line), problem)
				}
				synctest.Wait()
			}
		}
	})
}

func (s *scenario) hostOf(name string) *storyHost {
	if s.hosts[name] == nil {
		h := &storyHost{}
		switch {
		case name == "s":
			h.host = s.behind(s.hostOf("o").host)
		case name == "o" || s.plain:
			h.host = s.rig.plain()
		default:
			h.host = s.host()
		}
		s.hosts[name] = h
	}
	return s.hosts[name]
}

func (s *scenario) line(f []string) (problem string) {
	if d, err := time.ParseDuration(f[0]); err == nil {
		time.Sleep(d - s.elapsed())
		return ""
	}
	switch {
	case f[0] == "store":
		return s.storeLine(f[1:])
	case len(f[0]) == 1 && strings.Contains("hos", f[0]):
		return s.hostLine(s.hostOf(f[0]), f[1:])
	}
	name, host, _ := strings.Cut(f[0], "@")
	c := s.clients[name]
	if c == nil {
		owner, _, _ := strings.Cut(name, "'") // a' is a on another connection
		c = &client{owner: owner, host: s.hostOf(cmp.Or(host, "h")), lost: &losses{rig: s.rig}}
		s.clients[name] = c
	}
	return s.clientLine(c, f[1], f[2:])
}

// option returns the value of a field NAME=VALUE, and whether it is there.
func option(f []string, name string) (string, bool) {
	for _, field := range f {
		if n, value, _ := strings.Cut(field, "="); n == name {
			return value, true
		}
	}
	return "", false
}

func duration(f []string, name string, otherwise time.Duration) time.Duration {
	text, found := option(f, name)
	if !found {
		return otherwise
	}
	if text == "ever" {
		return -1
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}

func (s *scenario) clientLine(c *client, verb string, f []string) string {
	switch verb {
	case "acquires", "holds":
		return s.begin(c, verb, f)
	case "leaves":
		c.leave()
		return ""
	case "frees", "drops", "renews":
		did := make(chan error, 1)
		if verb == "drops" {
			c.dropped = did
		} else {
			c.did = did
		}
		q := lock.Request{Op: lock.Release, Tenant: tenant, Key: key, Owner: c.owner}
		if verb == "renews" {
			q.Op, q.TTLMS = lock.Renew, duration(f, "ttl", ttl).Milliseconds()
		}
		if c.got != nil && verb == "frees" {
			q.LeaseID = c.got.lease.LeaseID
		}
		go func() {
			if verb == "drops" {
				did <- c.holding.Release(context.Background())
				return
			}
			_, err := c.host.Change(context.Background(), q)
			did <- err
		}()
		return ""
	case "did", "dropped":
		over := c.did
		if verb == "dropped" {
			over = c.dropped
		}
		select {
		case err := <-over:
			return is(err, f)
		default:
			return "it is not over"
		}
	case "lost":
		return s.wereLost(c, f)
	case "knows":
		if told, left := c.holding.Lease().RemainingMS, s.state().RemainingMS; told > left || told < left-5 {
			return fmt.Sprintf("its holding says that %d ms are left, the store %d", told, left)
		}
		return ""
	}
	if c.got == nil {
		select {
		case got := <-c.outcome:
			c.got = &got
		default:
			if verb == "waits" {
				return ""
			}
			return "it waits"
		}
	}
	return s.outcome(c, verb, f)
}

func (s *scenario) begin(c *client, verb string, f []string) string {
	want := wanted(c.owner, duration(f, "wait", 0))
	want.TTLMS, want.Elsewhere = duration(f, "ttl", ttl).Milliseconds(), slices.Contains(f, "elsewhere")
	want.RequestID, _ = option(f, "id")
	ctx, cancel := context.WithCancel(context.Background())
	s.Cleanup(cancel)
	c.leave, c.got = cancel, nil
	outcome := make(chan result, 1)
	c.outcome = outcome
	go func() {
		var got result
		if verb == "holds" {
			var g *lock.Holding
			if g, got.err = c.host.Hold(ctx, want, c.lost.told); got.err == nil {
				got.lease, c.holding = g.Lease(), g
			}
		} else {
			got.lease, got.err = c.host.Acquire(ctx, want)
		}
		got.at = s.elapsed()
		outcome <- got
	}()
	return ""
}

// outcome checks how a wait has ended.
func (s *scenario) outcome(c *client, verb string, f []string) string {
	got := c.got
	if at := duration(f, "at", got.at); got.at != at || got.at < duration(f, "from", 0) {
		return fmt.Sprintf("it was over at %v", got.at)
	}
	left := got.lease.RemainingMS
	if held, ok := errors.AsType[*lock.HeldError](got.err); ok {
		left = held.RemainingMS
	}
	if text, found := option(f, "left"); found && text != fmt.Sprint(left) {
		return fmt.Sprintf("%d ms are left", left)
	}
	switch {
	case verb == "is":
		return is(got.err, f)
	case verb != "has":
		return fmt.Sprintf("it is over: %+v", got)
	case got.err != nil:
		return got.err.Error()
	}
	if l := s.state(); f[0] != "any" && f[0] != fmt.Sprint(got.lease.Token) || got.lease.Repeated != slices.Contains(f, "again") || l.LeaseID != got.lease.LeaseID || l.State != lock.Active {
		return fmt.Sprintf("it has %+v, and the lock is %+v", got.lease, l)
	}
	return ""
}

// is compares an error with its name: "held by OWNER" or one of these.
func is(err error, f []string) string {
	var held *lock.HeldError
	var fenced *lock.FencedError
	known := map[string]error{
		"reused": lock.ErrRequestReused, "expired": lock.ErrExpired, "canceled": context.Canceled, "closed": lock.ErrClosed, "down": errDown, "astray": errAstray,
		"invalid": lock.ErrInvalid, "not-owned": lock.ErrNotOwned, "late": context.DeadlineExceeded,
	}
	fits := false
	switch {
	case len(f) == 0:
		fits = err == nil
	case f[0] == "held":
		fits = errors.As(err, &held) && (len(f) < 3 || f[1] != "by" || held.Owner == f[2])
	case f[0] == "fenced":
		fits = errors.As(err, &fenced)
	case f[0] == "open": // why the outcome is unknown, or what stood in the way last
		fits = errors.Is(err, errDown) || errors.As(err, &held)
	default:
		fits = known[f[0]] != nil && errors.Is(err, known[f[0]])
	}
	if !fits {
		return fmt.Sprintf("the outcome is %v", err)
	}
	return ""
}

func (s *scenario) wereLost(c *client, f []string) string {
	told := c.lost.seen()
	if fmt.Sprint(len(told)) != f[0] {
		return fmt.Sprintf("told was %+v", told)
	}
	for _, one := range told {
		if one.at < duration(f, "from", 0) || one.at >= duration(f, "by", time.Hour) || one.lease.LeaseID != c.got.lease.LeaseID {
			return fmt.Sprintf("told was %+v", one)
		}
		if len(f) > 1 && !strings.Contains(f[1], "=") {
			return is(one.err, f[1:])
		}
	}
	return ""
}

func (s *scenario) storeLine(f []string) string {
	switch f[0] {
	case "freed":
		_, err := s.memory.Do(s.Context(), lock.Request{Op: lock.Release, Tenant: tenant, Key: key, Owner: f[1]})
		return is(err, nil)
	case "forgets":
		d, err := time.ParseDuration(f[1])
		s.records.forget("second", d)
		return is(err, nil)
	case "limits": // the longest term
		d, err := time.ParseDuration(f[1])
		if err == nil {
			var limited *lock.Records
			limited, err = s.memory.Limit(d)
			*s.memory = *limited // hosts have it already
		}
		return is(err, nil)
	}
	if l := s.state(); string(l.State) != f[0] || fmt.Sprint(l.Token) != f[1] {
		return fmt.Sprintf("the lock is %+v", l)
	}
	return ""
}

func (s *scenario) hostLine(h *storyHost, f []string) string {
	at := func(i int) time.Duration { d, _ := time.ParseDuration(f[i]); return d }
	switch f[0] {
	case "up":
		h.meet()
	case "suspends":
		h.suspended.Add(int64(at(1)))
	case "subscribes":
		h.subscribing = at(1)
	case "unsubscribed":
		h.mu.Lock()
		defer h.mu.Unlock()
		h.unsubscribe()
	case "wakes":
		h.Wake(tenant, key)
	case "closes":
		ctx, cancel := context.Background(), func() {}
		if len(f) > 1 {
			ctx, cancel = context.WithTimeout(ctx, at(1))
		}
		defer cancel()
		before := s.elapsed()
		err := h.Close(ctx)
		if len(f) > 1 && s.elapsed() != before+at(1) {
			return fmt.Sprintf("it took %v", s.elapsed()-before)
		}
		return is(err, map[bool][]string{true: {"late"}}[len(f) > 1])
	case "asked":
		calls := h.calls.Load() - h.asked
		h.asked += calls
		if len(f) > 1 {
			least, most, _ := strings.Cut(f[1], "..")
			low, _ := strconv.ParseInt(least, 10, 64)
			high, _ := strconv.ParseInt(most, 10, 64)
			if calls < low || calls > high {
				return fmt.Sprintf("%d times", calls)
			}
		}
	default:
		o := &obstacle{op: f[0], back: f[1] == "back", once: slices.Contains(f, "once"), fails: slices.Contains(f, "down"), astray: slices.Contains(f, "astray"), delay: at(2)}
		h.meet(append(slices.Clone(h.obstacles), o)...)
	}
	return ""
}
