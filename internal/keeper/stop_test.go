package keeper

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
)

// TestStopIsNeverWorseThanAKill: with any answer to a verify and to a release at the
// stop, a start without a provider goes on with regular IDs, as after a kill -9. The one
// exception is a release that was sent and not answered, beside releases that were
// answered.
func TestStopIsNeverWorseThanAKill(t *testing.T) {
	notSent := providertest.Fail(fmt.Errorf("%w: connection refused", provider.ErrNotSent))
	fenced := providertest.Fail(&provider.FencedError{Reason: "a restart"})
	busy := providertest.Fail(&provider.BusyError{RetryAfter: time.Second, Reason: "too many requests"})
	well := providertest.Fault{}
	for name, c := range map[string]struct {
		verify, release providertest.Fault
		plain           bool // the provider cannot verify
		kept            bool
	}{
		"well":                    {well, well, false, false},
		"refused":                 {notSent, notSent, false, true},
		"frozen":                  {hanging, hanging, false, true},
		"verify fails":            {providertest.Fail(errors.New("500")), well, false, true},
		"gone after the verify":   {well, notSent, false, true},
		"fenced after the verify": {well, fenced, false, true},
		"busy after the verify":   {well, busy, false, true},
		"clock too far":           {well, providertest.Fail(provider.ErrTimestampSkew), false, true},
		"not ours any more":       {well, providertest.Fail(provider.ErrBadSignature), false, false},
		"frozen after the verify": {well, hanging, false, false},
		"answer lost":             {well, answerLost, false, false},
		"late, but in time":       {providertest.Fault{Delay: 2 * time.Second}, providertest.Fault{Delay: 2 * time.Second}, false, false},
		"something else answers":  {providertest.Fail(errors.ErrUnsupported), providertest.Fail(errors.New("404")), false, true},
		"no verify":               {well, well, true, false},
		"no verify, refused":      {well, notSent, true, true},
	} {
		t.Run(name, hosted(func(s *setup) { s.plain, s.startupWait = c.plain, 0 }, func(t *testing.T, r *rig) {
			r.start()
			r.until(r.setup.VerifyEvery + time.Second) // a verify has worked, where there is one
			r.expect(generator.Regular)
			r.remote.fail(c.verify, providertest.OpVerify)
			r.remote.fail(c.release, providertest.OpRelease)
			r.shutdown()
			if n := len(r.remote.of(providertest.OpRelease)); n > 1 {
				t.Errorf("the release was sent %d times", n)
			}
			r.remote.fail(unreachable)
			r.build(r.keeper.Log)
			r.start()
			r.pass(time.Second)
			want := generator.FallbackRandomID
			if c.kept {
				want = generator.Regular
			}
			r.expect(want)
		}))
	}
}

// TestStopKeepsWhatItDidNotSend: where the provider goes away between two of many
// releases, the leases that were not given back stay, all of them.
func TestStopKeepsWhatItDidNotSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leases, answered = 9, 4
		r := newRig(t, func(s *setup) { s.MaxThroughput = leases * 256 })
		r.start()
		r.until(time.Second)
		if n := len(r.store.leases()); n != leases {
			t.Fatalf("%d leases, want %d", n, leases)
		}
		faults := make([]providertest.Fault, answered, answered+1)
		r.remote.faulty.Next(providertest.OpRelease, append(faults, providertest.Fail(provider.ErrNotSent))...)
		r.shutdown()
		released := map[int64]bool{}
		for _, call := range r.remote.of(providertest.OpRelease) {
			if call.err == nil {
				released[call.back.ID] = true
			}
		}
		kept := r.store.leases()
		if len(released) != answered || len(kept) != leases-answered {
			t.Errorf("%d were released and %d kept, of %d", len(released), len(kept), leases)
		}
		for _, l := range kept {
			if released[l.ID] {
				t.Errorf("%v was released and kept", l)
			}
		}
	})
}
