package backend

import (
	"errors"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// A standby that is promoted may have forgotten locks and values.
func TestPromotedPostgres(t *testing.T) {
	primary := postgrestest.New(t)
	url := primary.URL()
	s, err := OpenStore(url, StoreOptions{})
	must.Succeed(t, err)
	defer s.Close()
	works(t, s)
	if s.Fenced() != nil {
		t.Errorf("a new store is fenced: %+v", s.Fenced())
	}
	standby := primary.Standby("standby")
	primary.Stop()
	standby.Promote()
	after, err := OpenStore(standby.Move(url, primary), StoreOptions{})
	must.Succeed(t, err)
	defer after.Close()
	request := lock.Request{Op: lock.Acquire, Tenant: "default", Key: "another", Owner: "o", LeaseID: lock.NewLeaseID(), TTLMS: 1000}
	var fenced *lock.FencedError
	if _, err := after.Locks.Do(t.Context(), request); !errors.As(err, &fenced) {
		t.Errorf("a lock was granted: %v", err)
	}
	var doubt *sequence.FencedError
	if _, err := after.Sequences.Next(t.Context(), sequence.Request{Tenant: "default", Key: "s", Count: 1, Options: sequence.DefaultOptions()}); !errors.As(err, &doubt) {
		t.Errorf("a sequence went on: %v", err)
	}
	if f := after.Fenced(); f == nil || !f.Sequences || f.UntilMS <= time.Now().UnixMilli() {
		t.Errorf("the fence is %+v", f)
	}
	if err := after.Init(t.Context()); err != nil || after.Look(t.Context()) != nil || after.Fenced() != nil {
		t.Errorf("after Init (%v): %+v", err, after.Fenced())
	}
	if _, err := after.Locks.Do(t.Context(), request); err != nil {
		t.Errorf("after Init: %v", err)
	}
	if f, err := after.Fence(t.Context()); err != nil || f == nil || f.UntilMS <= time.Now().UnixMilli() {
		t.Errorf("by hand: %+v, %v", f, err)
	}
}
