package redis_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func minReplicas(n int) func(*options) { return func(o *options) { o.MinReplicas = n } }

// impatient waits for silent replicas no longer than a test should.
func impatient(o *options) { o.ConfirmWait = 100 * time.Millisecond }

// unconfirmed acquires two leases where replicas must not confirm them.
func (p *leasing) unconfirmed(from provider.Provider, request, text string) {
	p.Helper()
	leases, err := from.Acquire(p.context(), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 512})
	if !errors.Is(err, redisconn.ErrUnconfirmed) || !strings.Contains(err.Error(), text) {
		p.Fatalf("Acquire gave %v and the error %v, want redisconn.ErrUnconfirmed with %q", leases, err, text)
	}
}

// Seed 001-18.
func TestUnconfirmedLeasesAreGivenBack(t *testing.T) {
	primary, replica := redistest.Pair(t)
	p := newPool(t, primary, minReplicas(1))
	request := provider.NewSecret()
	hasty := p.on(primary, impatient)
	replica.Signal(stop)
	for range 3 { // each time both machine IDs are free again
		p.unconfirmed(hasty, "", "the leases were given back") // no caller can ask for them again
	}
	records, err := p.provider.List(p.context(), "")
	must.Succeed(t, err)
	for _, rec := range records {
		if rec.End != rec.Lease.Created || !rec.Released {
			t.Errorf("the record of a grant that was given back is %+v", rec)
		}
	}
	replica.Signal(resume)
	all, err := p.provider.Acquire(p.context(), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 4 * 256})
	if err != nil || len(all) != 4 {
		t.Errorf("after that, %v and the error %v: want all four machine IDs", all, err)
	}
}

// Nothing is granted, and earlier grants are given back: a lost release only leaves the machine
// ID taken for longer.
// Seed 001-19.
func TestTooFewReplicasConnected(t *testing.T) {
	primary, _ := redistest.Pair(t)
	p := newPool(t, primary, minReplicas(1))
	l := p.acquire(p.provider)
	strict := p.on(primary, minReplicas(2))
	p.unconfirmed(strict, "", "1 are connected, and min_replicas=2 must confirm each write; nothing was done")
	if longer, err := provider.Extend(p.context(), strict, "", l); !errors.Is(err, redisconn.ErrUnconfirmed) {
		t.Errorf("extended: %v, %v", longer, err)
	}
	if records, err := p.provider.List(p.context(), ""); err != nil || len(records) != 1 || records[0].End != l.ReservedUntil {
		t.Errorf("there are records %v (%v)", records, err)
	}
	must.Succeed(t, strict.Release(p.context(), providertest.SignedRelease(l, p.clock.Load())))
	if p.lost(p.provider, l) != 1 {
		t.Error("it was not released")
	}
}

// A process dies between the grant and WAIT, and its request comes again: it is
// answered with the same leases once they are confirmed, and not before.
func TestCrashBeforeConfirmation(t *testing.T) {
	primary, replica := redistest.Pair(t)
	p := newPool(t, primary, minReplicas(1))
	request := provider.NewSecret()
	replica.Signal(stop)
	// Without replicas to wait for, the grant is as it is where the process died then.
	if _, err := p.on(primary, minReplicas(0)).Acquire(p.context(), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 512}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p.unconfirmed(p.on(primary, impatient), request, "the same request gets the leases once they are confirmed")
	}
	before, err := p.provider.List(p.context(), "")
	if err != nil || len(before) != 2 || before[0].Released || before[1].Released {
		t.Fatalf("the records are %v (%v), want two that are not released", before, err)
	}
	replica.Signal(resume)
	leases, err := p.provider.Acquire(p.context(), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 512})
	if err != nil || len(leases) != 2 {
		t.Fatalf("%v, %v", leases, err)
	}
	for _, l := range leases {
		if l.ID != before[0].Lease.ID && l.ID != before[1].Lease.ID {
			t.Errorf("the request was answered with %v, and before with %v", l, before)
		}
	}
}

// Two callers are answered with one lease, as happens when a request is
// repeated while its first attempt is still waiting for replicas. The one without a
// confirmation by replicas must not give back the other's lease.
func TestAnsweredTwiceIsNotGivenBack(t *testing.T) {
	primary, _ := redistest.Pair(t)
	silent := redistest.NewWithPort(t)
	silent.Follow(primary)
	silent.Signal(stop) // and still connected
	p := newPool(t, primary)
	request := provider.NewSecret()
	hasty := p.on(primary, minReplicas(1))
	var used []lease.Lease
	patient := p.on(primary, minReplicas(2), impatient, func(o *options) {
		o.around = func(s record.Store) record.Store {
			return answeredTwice{s, func() error {
				leases, err := hasty.Acquire(p.context(), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 512})
				used = append(used, leases...)
				return err
			}}
		}
	})
	p.unconfirmed(patient, request, "the same request gets the leases once they are confirmed")
	if len(used) != 2 || p.lost(hasty, used...) > 0 {
		t.Errorf("of %v, some were given back under their holder", used)
	}
}

// answeredTwice calls again once a change was not confirmed.
type answeredTwice struct {
	record.Store
	again func() error
}

func (a answeredTwice) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	at, err := a.Store.Change(ctx, ask, rule)
	if errors.Is(err, record.ErrUnconfirmed) {
		if err := a.again(); err != nil {
			return 0, err
		}
	}
	return at, err
}

func TestUnconfirmedExtension(t *testing.T) {
	primary, replica := redistest.Pair(t)
	p := newPool(t, primary, minReplicas(1))
	l := p.acquire(p.provider)
	p.clock.Add(1000)
	replica.Signal(stop)
	if longer, err := provider.Extend(p.context(), p.on(primary, impatient), "", l); !errors.Is(err, redisconn.ErrUnconfirmed) {
		t.Errorf("Extend gave %v and the error %v, want redisconn.ErrUnconfirmed", longer, err)
	}
	// The slot stays taken for as long as anybody may think.
	records, err := p.provider.List(p.context(), "")
	if err != nil || len(records) != 1 || records[0].End != l.ReservedUntil+1000 {
		t.Errorf("the records are %+v (%v)", records, err)
	}
	replica.Signal(resume)
	longer, err := provider.Extend(p.context(), p.provider, "", l)
	if err != nil || longer.Expired != l.Expired+1000 {
		t.Errorf("Extend gave %v and the error %v", longer, err)
	}
}
