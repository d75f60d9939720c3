package runner

import (
	"errors"
	"fmt"
	"time"
)

// The parts of a term after which, or before the end of which, an action is due.
const (
	extendPart     = 3   // extend a third of a term after the last request
	firstRetryPart = 60  // the wait after the first failure
	mostRetryPart  = 15  // the longest wait between attempts
	terminatePart  = 10  // before the end: SIGTERM
	killPart       = 100 // before the end: SIGKILL; more than a slewed clock drifts in a term
	pollPart       = 20
)

// pollInterval is the longest time between two readings of the clocks: timers stand
// still while the machine sleeps, and the wall clock may be set.
const pollInterval = time.Second

// minRetry keeps a short term from becoming a storm of requests.
const minRetry = 10 * time.Millisecond

// action is an action that is due.
type action int

const (
	wait      action = iota
	start            // start the program
	extend           // ask for another term
	verify           // ask whether it is still ours
	terminate        // SIGTERM
	kill             // SIGKILL
	abandon          // do not start the program at all
)

type phase int

const (
	waiting phase = iota // for the clock, and for the delay
	running
	ending // SIGTERM was sent, because the lease ends
	killed
)

// machine decides when to do what. Boot times are readings of the clock that cannot be
// set.
type machine struct {
	name    string // of the lease or lock
	beginMS int64  // wall clock: when it begins
	term    time.Duration
	delay   time.Duration

	phase     phase
	end       time.Duration // boot time at which it is over
	killAt    time.Duration // boot time, while ending
	reached   bool          // the wall clock has reached the beginning
	reachedAt time.Duration // boot time

	asking      bool          // an extension or a verification is under way
	askedAt     time.Duration // boot time
	nextExtend  time.Duration // boot time
	failures    int           // of extensions, in a row
	lastErr     error         // of the latest failed extension; nil after a good one
	lost        error         // why it cannot be extended any more
	verifyEvery time.Duration // 0 = never
	nextVerify  time.Duration // boot time
	doubts      int           // verifications in a row that failed
}

func newMachine(c Config) *machine {
	m := &machine{
		name: c.Holding.Name(), beginMS: c.BeginMS, term: c.Term, delay: c.Delay,
		end: c.AskedAt + c.Term, nextExtend: c.AskedAt + c.Term/extendPart, nextVerify: c.AskedAt + c.VerifyEvery,
	}
	if c.Verify != nil {
		m.verifyEvery = c.VerifyEvery
	}
	return m
}

// next returns the action that is due now or, if there is none, how long to wait at most
// before calling next again. An action stays due until it is reported as done.
func (m *machine) next(boot time.Duration, wallMS int64) (due action, pause time.Duration) {
	pause = min(pollInterval, m.term/pollPart)
	// come reports whether a time has come, and else shortens the pause to it.
	come := func(at time.Duration) bool {
		if boot >= at {
			return true
		}
		pause = min(pause, at-boot)
		return false
	}
	if m.phase == running && wallMS < m.beginMS && m.lost == nil {
		m.lost = fmt.Errorf("this host's clock was set back to before %s began: IDs dated by it may repeat those of the former holder", m.name)
	}
	switch m.phase {
	case waiting:
		if come(m.tooLate()) || m.lost != nil {
			return abandon, 0
		}
		// If the clock goes back before the beginning, that is no longer reached.
		if reached := come(boot + time.Duration(m.beginMS-wallMS)*time.Millisecond); reached != m.reached {
			m.reached, m.reachedAt = reached, boot
		}
		if m.reached && come(m.reachedAt+m.delay) {
			return start, 0
		}
	case running:
		if come(m.end - m.term/killPart) {
			return kill, 0
		}
		if come(m.tooLate()) || m.lost != nil {
			return terminate, 0
		}
	case ending:
		if come(m.killAt) {
			return kill, 0
		}
	}
	if m.phase <= running && !m.asking {
		if come(m.nextExtend) {
			return extend, 0
		}
		if m.verifyEvery > 0 && come(m.nextVerify) {
			return verify, 0
		}
	}
	return wait, max(pause, time.Millisecond)
}

// tooLate is the boot time from which on no program may start, and a running one is ended.
func (m *machine) tooLate() time.Duration { return m.end - m.term/terminatePart }

// terminated notes that SIGTERM was sent. The program has until the end or, if another
// holder has the lease already, as long as it normally has before the end.
func (m *machine) terminated(boot time.Duration) {
	m.phase = ending
	m.killAt = min(m.end-m.term/killPart, boot+m.term/terminatePart-m.term/killPart)
}

// asked notes that an extension or a verification is about to be requested.
func (m *machine) asked(boot time.Duration) { m.asking, m.askedAt = true, boot }

// extended notes the outcome of the extension, and its end. A success also verifies the
// lease.
func (m *machine) extended(boot, until time.Duration, err error) {
	m.asking = false
	var lost *LostError
	switch {
	case err == nil:
		m.end, m.failures, m.lastErr = until, 0, nil
		m.nextExtend = m.askedAt + m.term/extendPart
		m.nextVerify = m.askedAt + m.verifyEvery
	case errors.As(err, &lost):
		m.lost = lost
	default:
		m.failures++
		m.lastErr = err
		m.nextExtend = boot + backoff(m.failures, m.term)
	}
}

// verified notes the outcome of the verification. A failed one has no effect.
func (m *machine) verified(err error) {
	m.asking = false
	m.nextVerify = m.askedAt + m.verifyEvery
	var lost *LostError
	switch {
	case err == nil:
		m.doubts = 0
	case errors.As(err, &lost):
		m.lost = lost
	case errors.Is(err, errors.ErrUnsupported):
		m.verifyEvery = 0
	default:
		m.doubts++
	}
}

func backoff(failures int, term time.Duration) time.Duration {
	d := max(term/firstRetryPart, minRetry)
	for range min(failures-1, 20) {
		d *= 2
	}
	return min(d, max(term/mostRetryPart, minRetry))
}

// cause is why the holding has ended or is about to end; nil before that.
func (m *machine) cause(boot time.Duration) error {
	switch {
	case m.lost != nil:
		return m.lost
	case boot < m.tooLate():
		return nil
	case m.lastErr != nil:
		return fmt.Errorf("%s could not be extended in time: %w", m.name, m.lastErr)
	}
	return fmt.Errorf("%s was not extended in time", m.name)
}
