package redis

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func minReplicas(n int) func(*Config) { return func(c *Config) { c.MinReplicas = n } }

// impatient waits for silent replicas no longer than a test should.
func impatient(c *Config) { c.ConfirmWait = 100 * time.Millisecond }

func (r *rig) unconfirmed(p *Provider, request, text string) {
	r.Helper()
	leases, err := p.Acquire(testContext(r), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 512})
	if !errors.Is(err, redisconn.ErrUnconfirmed) || !strings.Contains(err.Error(), text) {
		r.Fatalf("Acquire gave %v and the error %v, want redisconn.ErrUnconfirmed with %q", leases, err, text)
	}
}

// Seed 001-18.
func TestUnconfirmedIsGivenBack(t *testing.T) {
	primary, replica := redistest.Pair(t)
	r := newRig(t, primary, minReplicas(1))
	request := provider.NewSecret()
	hasty := r.on(primary, impatient)
	replica.Signal(stop)
	for range 3 { // each time both machine IDs are free again
		r.unconfirmed(hasty, request, "it was given back")
	}
	records, err := r.provider.List(testContext(t), "")
	must.Succeed(t, err)
	for _, rec := range records {
		if rec.End != rec.Lease.Created || !rec.Released {
			t.Errorf("the record of a grant that was given back is %+v", rec)
		}
	}
	if err := checkRings(primary, r.cfg.Prefix+"default:"); err != nil {
		t.Error(err)
	}
	replica.Signal(resume)
	all, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 4 * 256})
	if err != nil || len(all) != 4 {
		t.Errorf("after that, %v and the error %v: want all four machine IDs", all, err)
	}
}

// Seed 001-19.
func TestTooFewReplicasConnected(t *testing.T) {
	primary, _ := redistest.Pair(t)
	r := newRig(t, primary, minReplicas(2))
	r.unconfirmed(r.provider, "", "1 are connected, and min_replicas=2 must confirm each write; nothing was done")
	if records, err := r.provider.List(testContext(t), ""); err != nil || len(records) > 0 {
		t.Errorf("there are records %v (%v)", records, err)
	}
	r.acquire(r.on(primary, minReplicas(1)))
}

// A process dies between the grant and WAIT, and its request comes again: it is
// answered with the same leases once they are confirmed, and not before.
func TestCrashBeforeConfirmation(t *testing.T) {
	primary, replica := redistest.Pair(t)
	r := newRig(t, primary, minReplicas(1))
	request := provider.NewSecret()
	replica.Signal(stop)
	dying := r.on(primary)
	dying.at = func(step string) error {
		if step == stepGranted {
			return errDied
		}
		return nil
	}
	if _, err := dying.Acquire(testContext(t), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 512}); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	r.unconfirmed(r.on(primary, impatient), request, "stay as they are")
	before, err := r.provider.List(testContext(t), "")
	if err != nil || len(before) != 2 || before[0].Released || before[1].Released {
		t.Fatalf("the records are %v (%v), want two that are not released", before, err)
	}
	replica.Signal(resume)
	leases, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 512})
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
// repeated while its first attempt is still waiting for replicas. The one whose
// replicas do not confirm must not give back what the other uses.
func TestAnsweredTwiceIsNotGivenBack(t *testing.T) {
	primary, _ := redistest.Pair(t)
	silent := redistest.NewWithPort(t)
	silent.Follow(primary)
	silent.Signal(stop) // and still connected
	r := newRig(t, primary)
	request := provider.NewSecret()
	patient, hasty := r.on(primary, minReplicas(2), impatient), r.on(primary, minReplicas(1))
	var used []lease.Lease
	patient.at = func(step string) (err error) {
		if step == stepGranted {
			used, err = hasty.Acquire(testContext(t), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 512})
		}
		return err
	}
	r.unconfirmed(patient, request, "answered twice")
	if len(used) != 2 || r.lost(hasty, used...) > 0 {
		t.Errorf("of %v, %d leases were given back under their holder", used, r.lost(hasty, used...))
	}
}

func TestUnconfirmedExtension(t *testing.T) {
	primary, replica := redistest.Pair(t)
	r := newRig(t, primary, minReplicas(1))
	l := r.acquire(r.provider)
	r.clock.Add(1000)
	replica.Signal(stop)
	if longer, err := provider.Extend(testContext(t), r.on(primary, impatient), "", l); !errors.Is(err, redisconn.ErrUnconfirmed) {
		t.Errorf("Extend gave %v and the error %v, want redisconn.ErrUnconfirmed", longer, err)
	}
	// The slot stays taken for as long as anybody may think.
	records, err := r.provider.List(testContext(t), "")
	if err != nil || len(records) != 1 || records[0].End != l.ReservedUntil+1000 {
		t.Errorf("the records are %+v (%v)", records, err)
	}
	replica.Signal(resume)
	longer, err := provider.Extend(testContext(t), r.provider, "", l)
	if err != nil || longer.Expired != l.Expired+1000 {
		t.Errorf("Extend gave %v and the error %v", longer, err)
	}
}
