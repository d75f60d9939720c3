package providertest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

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
		d := &differential{a: a.openServices(services), b: b.openServices(services)}
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
	a, b    *client
	counter int     // of requests
	grants  []*twin // oldest first
}

// twin is one grant on both stores: the leases differ in their secrets.
type twin struct {
	a, b             lease.Lease
	service, request string
}

// both sends the same to both providers, and compares the answers.
func both[T any](t *rapid.T, d *differential, what string, ask func(c *client, own func(*twin) lease.Lease) (T, error)) (a, b T, err error) {
	t.Helper()
	a, errA := ask(d.a, func(g *twin) lease.Lease { return g.a })
	b, errB := ask(d.b, func(g *twin) lease.Lease { return g.b })
	if word(errA) != word(errB) || errA == nil && !reflect.DeepEqual(comparable(a), comparable(b)) {
		t.Fatalf("%s at %d: by the rules %+v and the error %v; here %+v and the error %v", what, d.a.suite.now(), a, errA, b, errB)
	}
	return a, b, errA
}

// word is as much of an error as both must agree on.
func word(err error) string {
	if full, ok := errors.AsType[*provider.FullError](err); ok {
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

// comparable is as much of an answer as both must agree on.
func comparable(answer any) any {
	switch answer := answer.(type) {
	case lease.Lease:
		answer.Secret = ""
		return answer
	case []lease.Lease:
		all := append([]lease.Lease{}, answer...)
		for i := range all {
			all[i].Secret = ""
		}
		return all
	case []provider.Record:
		all := append([]provider.Record{}, answer...)
		for i := range all {
			all[i].Lease.ReservedUntil = 0
		}
		return all
	case []int:
		return append([]int{}, answer...)
	case map[string]int64:
		maps.DeleteFunc(answer, func(name string, _ int64) bool { return !slices.Contains(provider.CounterNames, name) })
	}
	return answer
}

func (d *differential) ask(t *rapid.T, req provider.AcquireRequest) {
	a, b, err := both(t, d, fmt.Sprintf("acquire %+v", req), func(c *client, _ func(*twin) lease.Lease) ([]lease.Lease, error) { return c.try(req) })
	if err != nil || slices.ContainsFunc(d.grants, func(g *twin) bool { return g.a.Key() == a[0].Key() }) {
		return
	}
	for i := range a {
		d.grants = append(d.grants, &twin{a[i], b[i], req.Service, req.RequestID})
	}
}

func (d *differential) acquire(t *rapid.T) {
	d.counter++
	d.ask(t, drawRequest(t, d.a.services, d.counter))
}

func (d *differential) repeat(t *rapid.T) {
	g := drawLatest(t, d.grants)
	d.ask(t, provider.AcquireRequest{Service: g.service, ThroughputPerMS: 1, RequestID: g.request})
}

func (d *differential) release(t *rapid.T) {
	g := drawLatest(t, d.grants)
	req := drawRelease(t, g.service, g.a, d.a.suite.now(), true)
	both(t, d, fmt.Sprintf("release %+v", req), func(c *client, own func(*twin) lease.Lease) (struct{}, error) {
		l, signed := own(g), req
		signed.Signature = lease.Sign(l.Secret, l.ID, req.TimestampMS)
		return struct{}{}, c.release(l, signed)
	})
}

func (d *differential) extend(t *rapid.T) {
	g := drawLatest(t, d.grants)
	a, b, err := both(t, d, fmt.Sprintf("extend %v", g.a), func(c *client, own func(*twin) lease.Lease) (lease.Lease, error) {
		return c.extend(g.service, own(g))
	})
	if err == nil {
		g.a, g.b = a, b
	}
}

func (d *differential) verify(t *rapid.T) {
	both(t, d, "verify", func(c *client, own func(*twin) lease.Lease) ([]int, error) {
		var claims []provider.Claim
		for _, g := range d.grants[max(0, len(d.grants)-20):] {
			claims = append(claims, provider.ClaimOf(own(g)))
		}
		ctx, cancel := c.suite.ctx()
		defer cancel()
		return c.Verify(ctx, "", claims)
	})
}

func (d *differential) locate(t *rapid.T) {
	low := rapid.Int64Range(0, 1<<(snowflake.ValueBits-d.a.services.Default.Timeline.BitTS)).Draw(t, "low")
	at := d.a.suite.now() + rapid.Int64Range(-4000, 1000).Draw(t, "at")
	both(t, d, fmt.Sprintf("locate %d at %d", low, at), func(c *client, _ func(*twin) lease.Lease) ([]provider.Record, error) {
		return c.locate(low, at), nil
	})
}

func (d *differential) list(t *rapid.T) {
	both(t, d, "list", func(c *client, _ func(*twin) lease.Lease) ([]provider.Record, error) { return c.list(), nil })
}

func (d *differential) counters(t *rapid.T) {
	both(t, d, "counters", func(c *client, _ func(*twin) lease.Lease) (map[string]int64, error) { return c.counters(), nil })
}

// passes lets time pass on both, or jump.
func (d *differential) passes(t *rapid.T) {
	step := drawStep(t, true)
	d.a.suite.passes(step)
	d.b.suite.passes(step)
}
