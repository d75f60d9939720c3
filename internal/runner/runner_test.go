package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

func TestMain(m *testing.M) { await.Main(m) }

// stage is a run on the bubble's clock, with a program and a provider that do as
// the test says. Its transcript has what happened, with seconds from the
// beginning.
type stage struct {
	began time.Time
	skew  time.Duration // of the wall clock
	slept atomic.Int64  // ns that the timers slept through
	set   atomic.Int64  // ns by which the wall clock was set wrong

	mu         sync.Mutex
	transcript []string

	// The provider: what the calls meet, in order; then, always, the last one.
	answers []func(lease.Lease) (lease.Lease, error)
	hang    time.Duration // each call takes so long

	// The program.
	lives    time.Duration // ends by itself after so long; 0 = after longer than any test takes
	deaf     bool          // ignores SIGTERM
	refuses  error         // cannot be started
	suspends time.Duration
	stays    bool // suspended
	ended    chan Exit
	stopped  chan syscall.Signal
	signals  chan syscall.Signal
	held     *LeaseHolding
}

const term = 100 * time.Second

func (s *stage) Wall() int64 { return time.Now().Add(s.skew).UnixNano() + s.set.Load() }
func (s *stage) Boot() time.Duration {
	return time.Since(s.began) + time.Duration(s.slept.Load()) + time.Hour
}

func (s *stage) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.transcript = append(s.transcript, fmt.Sprintf("%d %s", int(time.Since(s.began).Seconds()), fmt.Sprintf(format, args...)))
}

// extending is a stage as a provider that can only extend.
type extending struct {
	provider.Provider
	stage *stage
}

func (extending) Verify(context.Context, string, []provider.Claim) ([]int, error) {
	return nil, errors.ErrUnsupported
}

func (e extending) Extend(ctx context.Context, _ provider.ExtendRequest) (lease.Lease, error) {
	s := e.stage
	l := s.held.Lease
	answer := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	if s.hang > 0 {
		select {
		case <-ctx.Done():
			s.note("extend: %v", ctx.Err())
			return lease.Lease{}, ctx.Err()
		case <-time.After(s.hang):
		}
	}
	l, err := answer(l)
	if err == nil {
		s.note("extended")
	} else {
		s.note("extend: %v", err)
	}
	return l, err
}

func (s *stage) Start() error {
	if s.refuses != nil {
		return s.refuses
	}
	s.note("start")
	lives := s.lives
	if lives == 0 {
		lives = 2 * time.Hour
	}
	time.AfterFunc(lives, func() { s.end(Exit{Code: 7}) })
	return nil
}

func (s *stage) end(e Exit) {
	select {
	case s.ended <- e:
	default:
	}
}

func (s *stage) Signal(sig syscall.Signal) { s.note("%v", sig) }

func (s *stage) Terminate() {
	s.note("SIGTERM")
	if !s.deaf {
		s.end(Exit{Signal: syscall.SIGTERM})
	}
}

func (s *stage) Kill() {
	s.note("SIGKILL")
	s.end(Exit{Signal: syscall.SIGKILL})
}

func (s *stage) Ended() <-chan Exit             { return s.ended }
func (s *stage) Stopped() <-chan syscall.Signal { return s.stopped }

func (s *stage) Suspend(by syscall.Signal) (goOn bool) {
	s.note("suspend: %v", by)
	time.Sleep(s.suspends)
	return !s.stays
}

func (s *stage) Resume() { s.note("resume") }

// granted is what the provider does when all is well: one term from now.
func granted(l lease.Lease) (lease.Lease, error) {
	l.Expired = max(l.Expired, time.Now().Add(term).UnixMilli())
	l.ReservedUntil = l.Expired
	return l, nil
}

func fails(err error) func(lease.Lease) (lease.Lease, error) {
	return func(lease.Lease) (lease.Lease, error) { return lease.Lease{}, err }
}

var errAway = errors.New("the provider is away")

// play runs a stage, and returns what came of it.
func play(t *testing.T, s *stage, edit func(*Config)) (Result, error) {
	t.Helper()
	s.began = time.Now()
	s.ended, s.stopped, s.signals = make(chan Exit, 1), make(chan syscall.Signal, 1), make(chan syscall.Signal, 8)
	if s.answers == nil {
		s.answers = []func(lease.Lease) (lease.Lease, error){granted}
	}
	now := time.Now().UnixMilli()
	say := func(string, ...any) {}
	s.held = HoldLease(lease.Lease{ID: 17, Created: now, Expired: now + term.Milliseconds(), ReservedUntil: now + term.Milliseconds(), Secret: "s", BitTS: 41, BitID: 14, BitSeq: 8},
		extending{stage: s}, "", s, say)
	c := Config{
		Clock: s, Holding: s.held, Program: s, Signals: s.signals, AskedAt: s.Boot(), Term: term, BeginMS: now, Timeout: 3 * time.Second, Say: say,
	}
	if edit != nil {
		edit(&c)
	}
	return Run(t.Context(), c)
}

func TestRun(t *testing.T) {
	away := fails(errAway)
	for _, test := range []struct {
		name  string
		stage *stage
		edit  func(*Config)
		want  string
		check func(Result, error) bool
	}{
		{
			name: "the program ends early", stage: &stage{lives: 10 * time.Second}, want: "0 start",
			check: func(r Result, err error) bool {
				return err == nil && r.Exit.Status() == 7 && r.Lost == nil
			},
		},
		{
			// Seed 003-4.3-3: after each third of the term.
			name: "extended while it runs", stage: &stage{lives: 250 * time.Second},
			want:  "0 start, 33 extended, 66 extended, 99 extended, 133 extended, 166 extended, 199 extended, 233 extended",
			check: func(r Result, err error) bool { return err == nil && r.Exit.Code == 7 && r.Lost == nil },
		},
		{
			name: "fails, then works", stage: &stage{lives: 80 * time.Second, answers: []func(lease.Lease) (lease.Lease, error){away, away, away, granted}},
			want:  "0 start, 33 extend: the provider is away, 34 extend: the provider is away, 38 extend: the provider is away, 44 extended, 78 extended",
			check: func(r Result, err error) bool { return err == nil && r.Exit.Code == 7 && r.Lost == nil },
		},
		{
			name: "the provider hangs", stage: &stage{hang: time.Hour},
			want: "0 start, 36 extend: context deadline exceeded, 40 extend: context deadline exceeded, 47 extend: context deadline exceeded, " +
				"56 extend: context deadline exceeded, 66 extend: context deadline exceeded, 76 extend: context deadline exceeded, " +
				"85 extend: context deadline exceeded, 90 SIGTERM",
			check: func(r Result, err error) bool {
				return err == nil && r.Exit.Status() == 143 && errors.Is(r.Lost, context.DeadlineExceeded) && strings.Contains(r.Lost.Error(), "machine ID 17")
			},
		},
		{
			name: "gone until the margin, and the program is deaf", stage: &stage{deaf: true, answers: []func(lease.Lease) (lease.Lease, error){granted, away}},
			want: "0 start, 33 extended, 66 extend: the provider is away, 68 extend: the provider is away, 71 extend: the provider is away, " +
				"78 extend: the provider is away, 84 extend: the provider is away, 91 extend: the provider is away, 98 extend: the provider is away, " +
				"104 extend: the provider is away, 111 extend: the provider is away, 118 extend: the provider is away, 123 SIGTERM, 132 SIGKILL",
			check: func(r Result, err error) bool {
				return err == nil && r.Exit.Status() == 137 && errors.Is(r.Lost, errAway)
			},
		},
		{
			name: "fenced to the end", stage: &stage{answers: []func(lease.Lease) (lease.Lease, error){fails(&provider.FencedError{Reason: "r"})}},
			check: func(r Result, err error) bool {
				return err == nil && r.Exit.Status() == 143 && errors.As(r.Lost, new(*provider.FencedError)) && r.LastMS >= 90_000
			},
		},
		{
			name: "taken over", stage: &stage{deaf: true, answers: []func(lease.Lease) (lease.Lease, error){fails(provider.ErrBadSignature)}},
			want:  fmt.Sprintf("0 start, 33 extend: %v, 33 SIGTERM, 42 SIGKILL", provider.ErrBadSignature),
			check: func(r Result, err error) bool { return errors.Is(r.Lost, provider.ErrBadSignature) },
		},
		{
			name: "a proxy that answers in between", stage: &stage{lives: 80 * time.Second, answers: []func(lease.Lease) (lease.Lease, error){granted, fails(errors.ErrUnsupported), granted}},
			want:  "0 start, 33 extended, 66 extend: unsupported operation, 68 extended",
			check: func(r Result, err error) bool { return err == nil && r.Exit.Code == 7 && r.Lost == nil },
		},
		{
			name: "the clock is behind the beginning", stage: &stage{skew: -50 * time.Second, lives: time.Second},
			want:  "33 extended, 50 start",
			check: func(r Result, err error) bool { return err == nil && r.Exit.Code == 7 },
		},
		{
			// Seed 001-23.
			name: "behind, and a delay on top", stage: &stage{skew: -5 * time.Second, lives: time.Second},
			edit: func(c *Config) { c.Delay = 20 * time.Second }, want: "25 start",
			check: func(r Result, err error) bool { return err == nil && r.Exit.Code == 7 },
		},
		{
			name: "a delay longer than the term", stage: &stage{lives: time.Second}, edit: func(c *Config) { c.Delay = 110 * time.Second },
			want:  "33 extended, 66 extended, 99 extended, 110 start",
			check: func(r Result, err error) bool { return err == nil },
		},
		{
			name: "lost before the start", stage: &stage{answers: []func(lease.Lease) (lease.Lease, error){away}}, edit: func(c *Config) { c.Delay = time.Hour },
			check: func(r Result, err error) bool { return err == nil && !r.Started && errors.Is(r.Lost, errAway) },
		},
		{
			name: "cannot be started", stage: &stage{refuses: syscall.ENOENT},
			check: func(r Result, err error) bool { return errors.Is(err, syscall.ENOENT) && !r.Started },
		},
		{
			name: "asked for long ago", stage: &stage{}, edit: func(c *Config) { c.AskedAt -= 95 * time.Second },
			check: func(r Result, err error) bool { return err == nil && !r.Started && r.Lost != nil },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := play(t, test.stage, test.edit)
				got := strings.Join(test.stage.transcript, ", ")
				if test.want != "" && got != test.want {
					t.Errorf("the transcript is\n%s, want\n%s", got, test.want)
				}
				if !test.check(r, err) {
					t.Errorf("the result is %+v with the error %v after\n%s", r, err, got)
				}
			})
		})
	}
}

// A provider with a clock that leaps ahead says that the lease lasts for longer than it can; with
// a clock that went back, or a shorter term, it gives less.
func TestEndIsCountedHere(t *testing.T) {
	for _, test := range []struct {
		name  string
		moved time.Duration // of the lease's end by the extension after 33 s
		want  time.Duration // when SIGTERM comes, if nothing follows
	}{
		{"a term from now", 33 * time.Second, 123 * time.Second},
		{"an hour ahead", time.Hour, 123 * time.Second},
		{"not at all", 0, 90 * time.Second},
		{"a little", 5 * time.Second, 95 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &stage{answers: []func(lease.Lease) (lease.Lease, error){
				func(l lease.Lease) (lease.Lease, error) {
					l.Expired += test.moved.Milliseconds()
					return l, nil
				},
				fails(errAway),
			}}
			if _, err := play(t, s, nil); err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("%d SIGTERM", int(test.want.Seconds())); s.transcript[len(s.transcript)-1] != want {
				t.Errorf("%s: the transcript ends with %q, want %q", test.name, s.transcript[len(s.transcript)-1], want)
			}
		})
	}
}

func TestSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{lives: 10 * time.Second}
		r, err := play(t, s, func(c *Config) {
			for i, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGTERM, syscall.SIGINT} {
				time.AfterFunc(time.Duration(i+1)*time.Second, func() { s.signals <- sig })
			}
		})
		want := []string{"0 start", "1 hangup", "2 user defined signal 1", "3 terminated", "4 terminated", "5 interrupt"}
		if err != nil || !slices.Equal(s.transcript, want) || r.Lost != nil || r.Exit.Code != 7 {
			t.Errorf("%q, %+v, %v", s.transcript, r, err)
		}
	})
	// Before the start they mean this process.
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		r, err := play(t, s, func(c *Config) {
			c.Delay = 10 * time.Second
			time.AfterFunc(time.Second, func() { s.signals <- syscall.SIGUSR1 })
			time.AfterFunc(2*time.Second, func() { s.signals <- syscall.SIGINT })
		})
		if err != nil || r.Started || r.Signal != syscall.SIGINT || len(s.transcript) > 0 {
			t.Errorf("%q, %+v, %v", s.transcript, r, err)
		}
	})
}

// While job control has stopped everything, nothing is extended. What goes on
// afterwards is first judged by the clock.
func TestSuspend(t *testing.T) {
	for _, test := range []struct {
		suspends time.Duration
		want     string
	}{
		{20 * time.Second, "0 start, 5 suspend: stopped, 25 resume"},
		{60 * time.Second, "0 start, 5 suspend: stopped, 65 extended, 65 resume"},
		{87 * time.Second, "0 start, 5 suspend: stopped, 92 SIGTERM, 92 resume"},
		{time.Hour, "0 start, 5 suspend: stopped, 3605 SIGKILL, 3605 resume"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &stage{suspends: test.suspends, deaf: true}
			_, err := play(t, s, func(*Config) {
				time.AfterFunc(5*time.Second, func() { s.stopped <- syscall.SIGTSTP })
				time.AfterFunc(5*time.Second+test.suspends+100*time.Millisecond, func() { s.end(Exit{}) })
			})
			// An extension that is asked for at the resume ends beside it.
			got := strings.Join(s.transcript, ", ")
			if swapped := strings.Replace(got, "65 resume, 65 extended", "65 extended, 65 resume", 1); err != nil || swapped != test.want {
				t.Errorf("suspended for %v: %s (%v), want %s", test.suspends, got, err, test.want)
			}
		})
	}
	// A program that cannot go on keeps its lease.
	synctest.Test(t, func(t *testing.T) {
		s := &stage{stays: true, lives: 50 * time.Second}
		_, err := play(t, s, func(*Config) { time.AfterFunc(5*time.Second, func() { s.stopped <- syscall.SIGTTIN }) })
		if got := strings.Join(s.transcript, ", "); err != nil || got != "0 start, 5 suspend: stopped (tty input), 33 extended" {
			t.Errorf("%s (%v)", got, err)
		}
	})
}

// A machine that slept wakes up with timers that are late.
func TestSleptMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		_, err := play(t, s, func(*Config) {
			time.AfterFunc(5*time.Second+time.Millisecond, func() { s.slept.Store(int64(time.Hour)) })
		})
		if got := strings.Join(s.transcript, ", "); err != nil || got != "0 start, 6 SIGKILL" {
			t.Errorf("%s (%v)", got, err)
		}
	})
}

// An extension under way when the program ends is waited for, as the record may
// have its outcome.
func TestEndsDuringExtension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{lives: 34 * time.Second, hang: 2 * time.Second}
		r, err := play(t, s, nil)
		if got := strings.Join(s.transcript, ", "); err != nil || got != "0 start, 34 extend: context canceled" || r.Lost != nil {
			t.Errorf("%s, %+v (%v)", got, r, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &stage{lives: 34 * time.Second}
		s.answers = []func(lease.Lease) (lease.Lease, error){func(l lease.Lease) (lease.Lease, error) {
			time.Sleep(2 * time.Second) // and does not listen
			return granted(l)
		}}
		r, err := play(t, s, nil)
		if err != nil || s.held.Lease.Expired != s.began.Add(35*time.Second+term).UnixMilli()+333 {
			t.Errorf("%+v, %+v (%v) after %q", r, s.held.Lease, err, s.transcript)
		}
	})
}

func TestCheckClock(t *testing.T) {
	l := lease.Lease{Created: 1_000_000, Expired: 2_000_000}
	if err := CheckClock(l, 1_999_999); err != nil {
		t.Error(err)
	}
	if err := CheckClock(l, 2_000_000); err == nil || !strings.Contains(err.Error(), "16m40s ahead") {
		t.Error(err)
	}
}

// lasting is a Holding with extensions that do as the test says.
type lasting struct {
	*stage
	answers []func(sent, end time.Duration) (time.Duration, error)
}

func (lasting) Name() string { return "the thing" }

func (l *lasting) Extend(_ context.Context, sent, end time.Duration) (time.Duration, error) {
	answer := l.answers[0]
	l.answers = l.answers[1:]
	l.note("extend at %v, over at %v", (sent - time.Hour).Round(time.Second), (end - time.Hour).Round(time.Second))
	return answer(sent, end)
}

// A Holding answers when it is over, be it sooner than before; and the caller is told its words
// about a loss.
func TestHoldingSaysWhenItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		held := &lasting{stage: s, answers: []func(sent, end time.Duration) (time.Duration, error){
			func(sent, _ time.Duration) (time.Duration, error) { return sent + term, nil },
			func(sent, _ time.Duration) (time.Duration, error) { return sent + term/2, nil },
			func(_, end time.Duration) (time.Duration, error) {
				return end, &LostError{Err: errors.New("the thing is gone")}
			},
		}}
		r, err := play(t, s, func(c *Config) { c.Holding, c.BeginMS = held, 0 })
		want := "0 start, 33 extend at 33s, over at 1m40s, 66 extend at 1m7s, over at 2m13s, 99 extend at 1m40s, over at 1m57s, 99 SIGTERM"
		if got := strings.Join(s.transcript, ", "); err != nil || got != want || r.Lost == nil || r.Lost.Error() != "the thing is gone" {
			t.Errorf("%s\nwant\n%s\n%+v, %v", got, want, r, err)
		}
	})
}
