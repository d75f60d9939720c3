package redis_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
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
		if rec.End != rec.Lease.Created || !rec.Released { // seed 001-18
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
func TestTooFewReplicasConnected(t *testing.T) {
	primary, _ := redistest.Pair(t)
	p := newPool(t, primary, minReplicas(1))
	l := p.acquire(p.provider)
	strict := p.on(primary, minReplicas(2))
	// Seed 001-19.
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
