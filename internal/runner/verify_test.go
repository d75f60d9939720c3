package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// watchful is a stage with a provider that can verify: it does as the test says, by the time
// since the beginning.
type watchful struct {
	extending
	ours func(at time.Duration) (bool, error)
}

func (w watchful) Verify(context.Context, string, []provider.Claim) ([]int, error) {
	ours, err := w.ours(time.Since(w.stage.began))
	switch {
	case err != nil:
		w.stage.note("verify: %v", err)
		return nil, err
	case ours:
		w.stage.note("verified")
		return nil, nil
	}
	w.stage.note("lost")
	return []int{0}, nil
}

// playVerified is play with a provider that can verify.
func playVerified(t *testing.T, s *stage, ours func(time.Duration) (bool, error), every time.Duration, edit func(*Config)) (Result, error) {
	return play(t, s, func(c *Config) {
		held := c.Holding.(*LeaseHolding)
		s.held = HoldLease(held.Lease, watchful{extending{stage: s}, ours}, "", s, held.say)
		c.Holding, c.Verify, c.VerifyEvery = s.held, s.held.Verify, every
		if edit != nil {
			edit(c)
		}
	})
}

func until(robbed time.Duration) func(time.Duration) (bool, error) {
	return func(at time.Duration) (bool, error) { return at < robbed, nil }
}

// refusedAt is the transcript of extensions that a forgetful store refuses.
func refusedAt(seconds ...int) (transcript string) {
	for _, at := range seconds {
		transcript += fmt.Sprintf("%d extend: no such lease, %d verified, ", at, at)
	}
	return transcript
}

func TestVerify(t *testing.T) {
	unsupported := fmt.Errorf("this server: %w", errors.ErrUnsupported)
	forgotten := []func(lease.Lease) (lease.Lease, error){fails(provider.ErrNotFound)}
	gone := func(r Result) bool {
		var lost *LostError
		return errors.As(r.Lost, &lost) && lost.Gone
	}
	for _, test := range []struct {
		name  string
		stage *stage
		ours  func(time.Duration) (bool, error)
		every time.Duration
		edit  func(*Config)
		want  string
		gone  bool
	}{
		{
			name: "taken over", stage: &stage{}, ours: until(12 * time.Second), every: 10 * time.Second,
			want: "0 start, 10 verified, 20 lost, 20 SIGTERM", gone: true,
		},
		{
			name: "taken over, and the program is deaf", stage: &stage{deaf: true}, ours: until(0), every: 10 * time.Second,
			want: "0 start, 10 lost, 10 SIGTERM, 19 SIGKILL", gone: true,
		},
		{
			name: "taken over before the start", stage: &stage{}, ours: until(0), every: 10 * time.Second,
			edit: func(c *Config) { c.Delay = time.Minute }, want: "10 lost", gone: true,
		},
		{
			name: "an extension verifies too", stage: &stage{lives: 60 * time.Second}, ours: until(time.Hour), every: 25 * time.Second,
			want: "0 start, 25 verified, 33 extended, 58 verified",
		},
		{
			name: "not known, and then it is", stage: &stage{lives: 24 * time.Second}, every: 5 * time.Second,
			ours: func(at time.Duration) (bool, error) {
				if at < 12*time.Second {
					return false, errAway
				}
				return true, nil
			},
			want: "0 start, 5 verify: the provider is away, 10 verify: the provider is away, 15 verified, 20 verified",
		},
		{
			name: "not known to the end", stage: &stage{answers: []func(lease.Lease) (lease.Lease, error){fails(errAway)}}, every: 45 * time.Second,
			ours: func(time.Duration) (bool, error) { return false, errAway },
			want: "0 start, 33 extend: the provider is away, 34 extend: the provider is away, 38 extend: the provider is away, " +
				"44 extend: the provider is away, 45 verify: the provider is away, 51 extend: the provider is away, 58 extend: the provider is away, " +
				"64 extend: the provider is away, 71 extend: the provider is away, 78 extend: the provider is away, 84 extend: the provider is away, 90 SIGTERM",
		},
		{
			name: "a server that cannot tell", stage: &stage{lives: 30 * time.Second}, every: 5 * time.Second,
			ours: func(time.Duration) (bool, error) { return false, unsupported },
			want: "0 start, 5 verify: this server: unsupported operation",
		},
		{
			name: "refused while the store is fenced", stage: &stage{answers: []func(lease.Lease) (lease.Lease, error){
				fails(&provider.FencedError{Reason: "r"}), fails(&provider.FencedError{Reason: "r"}), granted,
			}, lives: 60 * time.Second}, ours: until(time.Hour), every: time.Hour,
			want: "0 start, 33 extend: " + (&provider.FencedError{Reason: "r"}).Error() + ", 34 extend: " + (&provider.FencedError{Reason: "r"}).Error() + ", 38 extended",
		},
		{
			name: "forgotten by a store that grants nothing", stage: &stage{answers: forgotten}, ours: until(time.Hour), every: time.Hour,
			want: "0 start, " + refusedAt(33, 34, 38, 44, 51, 58, 64, 71, 78, 84) + "90 SIGTERM",
		},
		{
			name: "forgotten by a store that grants", stage: &stage{answers: forgotten}, ours: until(0), every: time.Hour,
			want: "0 start, 33 extend: no such lease, 33 lost, 33 SIGTERM", gone: true,
		},
		{
			name: "forgotten, and the store does not say more", stage: &stage{answers: forgotten}, every: time.Hour,
			ours: func(time.Duration) (bool, error) { return false, errAway },
			want: "0 start, 33 extend: no such lease, 33 verify: the provider is away, 33 SIGTERM", gone: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := playVerified(t, test.stage, test.ours, test.every, test.edit)
				got := strings.Join(test.stage.transcript, ", ")
				if err != nil || got != test.want || gone(r) != test.gone { // seed 001-22
					t.Errorf("the transcript is\n%s, want\n%s\n%+v (%v)", got, test.want, r, err)
				}
			})
		})
	}
}

// A robber who waits as long as RobberyDelay says starts when the robbed program
// has been killed, however the calls of the robbed holder are spread. Every other
// time the calls are as slow as they can be, and the robbery follows a good answer.
func TestRobberAndRobbedDoNotOverlap(t *testing.T) {
	ring.All(t)
	for seed := range uint64(600) {
		synctest.Test(t, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(seed, 1))
			worst := seed%2 == 1
			every := time.Duration(1+chance.IntN(20_000)) * time.Millisecond
			timeout := time.Duration(1+chance.IntN(5_000)) * time.Millisecond
			robbery := time.Duration(chance.Int64N(int64(200 * time.Second)))
			if worst {
				robbery = time.Hour // until there was an answer to follow
				if seed%4 == 3 {
					every = time.Millisecond
				}
			}
			s := &stage{deaf: true}
			slow := func() (arrived time.Duration) {
				all, there := timeout-1, time.Duration(0)
				if !worst {
					all = time.Duration(chance.Int64N(int64(timeout)))
					there = time.Duration(chance.Int64N(int64(all) + 1))
				}
				time.Sleep(there)
				arrived = time.Since(s.began)
				time.Sleep(all - there)
				return arrived
			}
			s.answers = []func(lease.Lease) (lease.Lease, error){func(l lease.Lease) (lease.Lease, error) {
				switch arrived := slow(); {
				case worst || chance.IntN(2) == 0:
					return l, errAway
				case arrived >= robbery:
					return l, provider.ErrBadSignature
				}
				return granted(l)
			}}
			ours := func(at time.Duration) (bool, error) {
				if worst && robbery == time.Hour && at > term/extendPart && chance.IntN(3) == 0 {
					robbery = at + 1
				}
				return slow() < robbery, nil
			}
			r, err := playVerified(t, s, ours, every, func(c *Config) { c.Timeout = timeout })
			killed, starts := time.Since(s.began), robbery+RobberyDelay(every, timeout, term)
			if err != nil || r.Lost == nil || killed >= starts { // seed 001-23
				t.Fatalf("seed %d: robbed at %v, killed at %v, and the robber starts at %v: %+v (%v)\n%q", seed, robbery, killed, starts, r, err, s.transcript)
			}
		})
	}
}

// A clock that is set back to before the lease lets the program date IDs as its
// former holder did.
func TestClockSetBackToBeforeTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		r, err := play(t, s, func(c *Config) {
			time.AfterFunc(5*time.Second+time.Millisecond, func() { s.set.Store(int64(-4 * time.Second)) })
			time.AfterFunc(50*time.Second+time.Millisecond, func() { s.set.Store(int64(-time.Minute)) })
		})
		var lost *LostError
		got := strings.Join(s.transcript, ", ")
		if err != nil || got != "0 start, 33 extended, 50 SIGTERM" || errors.As(r.Lost, &lost) || !strings.Contains(r.Lost.Error(), "set back") {
			t.Errorf("%s, %+v (%v)", got, r, err)
		}
	})
}

// LastMS bounds what a program can have read from the clock, or counted on from
// such a reading.
func TestLastMS(t *testing.T) {
	for name, test := range map[string]struct {
		set     map[time.Duration]time.Duration // when, and to how far from the right time
		stopped time.Duration
		ahead   time.Duration
		gap     bool
	}{
		"a good clock":            {},
		"ahead, and set right":    {set: map[time.Duration]time.Duration{3 * time.Second: time.Hour, 6 * time.Second: 0}, ahead: time.Hour},
		"set back":                {set: map[time.Duration]time.Duration{3 * time.Second: -2 * time.Second}},
		"ahead before the start":  {set: map[time.Duration]time.Duration{0: time.Hour, time.Second: 0}},
		"ahead at the very end":   {set: map[time.Duration]time.Duration{19 * time.Second: time.Minute}, ahead: time.Minute},
		"this process was halted": {stopped: mostGap + 2*time.Second, gap: true},
		"busy for a while":        {stopped: mostGap - 2*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stage{lives: 18 * time.Second, suspends: test.stopped}
				r, err := play(t, s, func(c *Config) {
					c.Delay = 2 * time.Second
					for at, to := range test.set {
						time.AfterFunc(at+500*time.Millisecond, func() { s.set.Store(int64(to)) })
					}
					if test.stopped > 0 {
						time.AfterFunc(3*time.Second, func() { s.stopped <- syscall.SIGTSTP })
					}
				})
				want := s.began.Add(20 * time.Second).Add(test.ahead).UnixMilli()
				if err != nil || r.LastMS != want || r.Unwatched != test.gap {
					t.Errorf("%+v (%v), want the last at %d", r, err, want)
				}
			})
		})
	}
}
