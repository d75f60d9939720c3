package providertest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Differential is a property: the same random operations on two stores get the same
// answers. It holds a store that does not run package pool's rules to one that does.
// The clocks of both can be set, and both begin a ring with the same machine ID.
func Differential(t *testing.T, rules, other Factory) func(*rapid.T) {
	return func(rt *rapid.T) {
		a, b := newSuite(rt, t, rules), newSuite(rt, t, other)
		defer a.finish()
		defer b.finish()
		services := modelServices(true)
		d := &differential{a: a.openServices(services), b: b.openServices(services), services: services}
		actions := map[string]func(*rapid.T){
			"acquire": d.acquire, "acquire again": d.acquire, "repeat": d.repeat, "release": d.release, "extend": d.extend,
			"verify": d.verify, "locate": d.locate, "list": d.list, "time": d.passes,
		}
		for range 3 {
			rt.Repeat(actions)
		}
		d.list(rt)
		d.counters(rt)
	}
}

// differential is a run of operations on two providers.
type differential struct {
	a, b     *client
	services provider.Services
	counter  int     // of requests
	grants   []twins // oldest first
}

// twins is one grant on both stores: the leases differ in their secrets.
type twins struct {
	a, b             lease.Lease
	service, request string
}

// same compares two answers.
func (d *differential) same(t *rapid.T, what string, a, b any, errA, errB error) {
	t.Helper()
	if word(errA) != word(errB) || errA == nil && !reflect.DeepEqual(a, b) {
		t.Fatalf("%s at %d: by the rules %+v and the error %v; here %+v and the error %v", what, d.a.suite.now(), a, errA, b, errB)
	}
}

// word is as much of an error as both must agree on.
func word(err error) string {
	var full *provider.FullError
	if errors.As(err, &full) {
		return fmt.Sprintf("full %+v", *full)
	}
	for _, known := range []error{provider.ErrConflict, provider.ErrNotFound, provider.ErrBadSignature, provider.ErrTimestampSkew, provider.ErrInvalid} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if err != nil {
		return "another error"
	}
	return ""
}

// bare is leases without their secrets.
func bare(leases ...lease.Lease) []lease.Lease {
	all := append([]lease.Lease{}, leases...)
	for i := range all {
		all[i].Secret = ""
	}
	return all
}

func (d *differential) ask(t *rapid.T, req provider.AcquireRequest) {
	a, errA := d.a.try(req)
	b, errB := d.b.try(req)
	d.same(t, fmt.Sprintf("acquire %+v", req), bare(a...), bare(b...), errA, errB)
	for i := range a {
		twin := twins{a[i], b[i], req.Service, req.RequestID}
		if !slices.Contains(d.grants, twin) {
			d.grants = append(d.grants, twin)
		}
	}
}

func (d *differential) acquire(t *rapid.T) {
	d.counter++
	names := append([]string{""}, slices.Sorted(maps.Keys(d.services.Named))...)
	d.ask(t, provider.AcquireRequest{
		Service:         rapid.SampledFrom(names).Draw(t, "service"),
		ThroughputPerMS: rapid.Int64Range(0, 24).Draw(t, "throughput"),
		RequestID:       fmt.Sprintf("request-%d", d.counter),
		Meta:            map[string]string{"n": fmt.Sprint(d.counter)},
	})
}

func (d *differential) repeat(t *rapid.T) {
	g := d.draw(t)
	d.ask(t, provider.AcquireRequest{Service: g.service, ThroughputPerMS: 1, RequestID: g.request})
}

// draw is one of the latest grants.
func (d *differential) draw(t *rapid.T) *twins {
	n := len(d.grants)
	if n == 0 {
		t.Skip("nothing was granted")
	}
	return &d.grants[n-1-rapid.IntRange(0, min(n-1, 30)).Draw(t, "grant (0 is the latest)")]
}

func (d *differential) release(t *rapid.T) {
	g := d.draw(t)
	window := provider.ReleaseWindow.Milliseconds()
	at := d.a.suite.now() + rapid.SampledFrom([]int64{0, 0, -700, 700, -window, window, -window - 1, window + 1}).Draw(t, "off")
	atEnd := rapid.IntRange(0, 4).Draw(t, "at the end if 0") == 0
	if atEnd {
		at = g.a.Expired - 1
	}
	bitSeq := rapid.SampledFrom([]int{g.a.BitSeq, provider.AnyBitSeq}).Draw(t, "bit_seq")
	send := func(c *client, l lease.Lease) error {
		return c.release(l, provider.ReleaseRequest{
			Service: g.service, ID: l.ID, BitSeq: bitSeq, TimestampMS: at, Signature: lease.Sign(l.Secret, l.ID, at), AtEnd: atEnd,
		})
	}
	d.same(t, fmt.Sprintf("release of %v as of %d", g.a, at), nil, nil, send(d.a, g.a), send(d.b, g.b))
}

func (d *differential) extend(t *rapid.T) {
	g := d.draw(t)
	a, errA := d.a.extend(g.service, g.a)
	b, errB := d.b.extend(g.service, g.b)
	d.same(t, fmt.Sprintf("extend %v", g.a), bare(a), bare(b), errA, errB)
	if errA == nil {
		g.a, g.b = a, b
	}
}

func (d *differential) verify(t *rapid.T) {
	var claimsA, claimsB []provider.Claim
	for _, g := range d.grants[max(0, len(d.grants)-20):] {
		claimsA, claimsB = append(claimsA, provider.ClaimOf(g.a)), append(claimsB, provider.ClaimOf(g.b))
	}
	ctx, cancel := d.a.suite.ctx()
	defer cancel()
	a, errA := d.a.Verify(ctx, "", claimsA)
	b, errB := d.b.Verify(ctx, "", claimsB)
	d.same(t, "verify", append([]int{}, a...), append([]int{}, b...), errA, errB)
}

// shown is as much of records as both must agree on.
func shown(records []provider.Record) []provider.Record {
	all := append([]provider.Record{}, records...)
	for i := range all {
		all[i].Lease.ReservedUntil = 0
	}
	return all
}

func (d *differential) locate(t *rapid.T) {
	low := rapid.Int64Range(0, 1<<(snowflake.ValueBits-modelServices(true).Default.Timeline.BitTS)).Draw(t, "low")
	at := d.a.suite.now() + rapid.Int64Range(-4000, 1000).Draw(t, "at")
	ctx, cancel := d.a.suite.ctx()
	defer cancel()
	a, errA := d.a.Locate(ctx, "", low, at)
	b, errB := d.b.Locate(ctx, "", low, at)
	d.same(t, fmt.Sprintf("locate %d at %d", low, at), shown(a), shown(b), errA, errB)
}

func (d *differential) list(t *rapid.T) {
	d.same(t, "list", shown(d.a.list()), shown(d.b.list()), nil, nil)
}

func (d *differential) counters(t *rapid.T) {
	ctx, cancel := d.a.suite.ctx()
	defer cancel()
	a, errA := d.a.Counters(ctx, "")
	b, errB := d.b.Counters(ctx, "")
	for _, counted := range []map[string]int64{a, b} {
		maps.DeleteFunc(counted, func(name string, _ int64) bool { return !slices.Contains(provider.CounterNames, name) })
	}
	d.same(t, "counters", a, b, errA, errB)
}

// passes lets time pass on both, or jump.
func (d *differential) passes(t *rapid.T) {
	hour := time.Hour.Milliseconds()
	step := rapid.OneOf(
		rapid.Int64Range(1, 300), rapid.Int64Range(1, 3000), rapid.Int64Range(1, 3000),
		rapid.Int64Range(-2000, 0), rapid.SampledFrom([]int64{hour, -hour}),
	).Draw(t, "ms")
	now := d.a.suite.now() + step
	d.a.suite.set(now)
	d.b.suite.set(now)
}
