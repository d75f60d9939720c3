package lock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// A host's line, and its holdings. Tokens are 1 for the first holder, 2 for the next.
var scenarios = map[string]struct{ kind, script string }{
	"first come, first served": {"notified", `
		first acquires
		first has 1
		a acquires wait=ever
		b acquires wait=ever
		c acquires wait=ever
		1s
		a waits
		first frees
		a has 2 at=1s
		b waits
		a frees
		b has 3 at=1s
		c waits`},
	"the first in line is asked for, others get what is known": {"plain", `
		holder acquires
		patient acquires wait=ever
		h asked
		2ms
		hasty acquires
		hasty is held by holder left=29998
		h asked 0..0
		patient waits
		holder frees
		patient has 2`},
	"the lock is free, and the first in line does not know yet": {"plain", `
		elsewhere@o acquires
		patient acquires wait=ever
		5s
		elsewhere frees
		hasty acquires
		hasty is held
		6s
		patient has 2`},
	"waits end in time": {"", `
		holder acquires
		a acquires wait=7s
		b acquires wait=3s
		10s
		a is held at=7s
		b is held at=3s`},
	"a release by another host, that the store tells of": {"notified", `
		elsewhere@o acquires
		next acquires wait=ever
		10s
		next waits
		elsewhere frees
		next has 2 at=10s`},
	"a release by another host, that nothing tells of": {"plain", `
		elsewhere@o acquires
		next acquires wait=ever
		10s
		next waits
		elsewhere frees
		11s
		next has 2`},
	"a release before the subscription": {"notified", `
		h subscribes 1s
		elsewhere@o acquires
		next acquires wait=ever
		500ms
		elsewhere frees
		1500ms
		next has 2`},
	"the store ends the subscription, and the lock is free": {"notified", `
		elsewhere@o acquires
		next acquires wait=ever
		6s
		h subscribes 10s
		h unsubscribed
		elsewhere frees
		6100ms
		next has 2`},
	"the store ends the subscription, and the lock is free before the next one": {"notified", `
		elsewhere@o acquires
		next acquires wait=ever
		6s
		h subscribes 2s
		h unsubscribed
		7990ms
		elsewhere frees
		8010ms
		next has 2`},
	"the store ends each subscription at once": {"notified", `
		holder@o holds
		a acquires wait=ever
		6s
		h unsubscribed
		6s
		h unsubscribed
		7s
		h asked 1..60`},
	"a host that hears of releases asks seldom, whoever waits": {"notified", `
		holder@o holds
		a acquires wait=ever
		b acquires wait=ever
		c acquires wait=ever
		1m
		h asked 1..16`},
	"a host that hears of nothing asks once a second, whoever waits": {"plain", `
		holder@o holds
		a acquires wait=ever
		b acquires wait=ever
		c acquires wait=ever
		1m
		h asked 1..130`},
	"leaving the line": {"notified", `
		holder acquires
		a acquires wait=ever
		b acquires wait=ever
		c acquires wait=ever
		b leaves
		b is canceled
		a leaves
		a is canceled
		holder frees
		c has 2
		c leaves
		store ACTIVE 2`},
	"a grant to one who is gone is released": {"plain", `
		h all back 1s
		gone acquires wait=ever id=x
		gone leaves
		gone is canceled
		store ACTIVE 1
		next acquires wait=ever
		10s
		next has 2`},
	"a grant to one who is gone is that of the same request": {"plain", `
		h all back 1s
		gone acquires wait=ever id=x
		gone leaves
		gone' acquires wait=ever id=x
		10s
		gone' has 1 at=1s`},
	"a grant to one who is gone, and whose repetition leaves too, is released": {"plain", `
		h all back 1s
		gone acquires wait=ever id=x
		gone leaves
		gone' acquires wait=ever id=x
		500ms
		gone' waits
		gone' leaves
		10s
		store RELEASED 1`},
	"a holder asked again, and left: it still holds": {"plain", `
		holder acquires id=x
		holder has 1
		h all back 1s
		holder' acquires wait=ever id=x
		holder' leaves
		holder' is canceled
		10s
		store ACTIVE 1`},
	"one who may ask again elsewhere keeps what it was granted": {"plain", `
		h all back 1s
		moved acquires wait=ever id=x elsewhere
		moved leaves
		moved is canceled
		moved'@o acquires id=x
		moved' has 1 again
		10s
		store ACTIVE 1`},
	"a lost answer that is not asked for again": {"plain", `
		h acquire back down
		h release way down
		once acquires
		once is down
		store ACTIVE 1
		h up
		3s
		store RELEASED 1`},
	"a lost answer that the caller asks for again": {"plain", `
		h acquire back down
		twice acquires id=x
		twice is down
		h up
		3s
		twice' acquires id=x
		twice' has 1 again left=26999`},
	"a lost answer that the host asks for again": {"plain", `
		h acquire back down
		patient acquires wait=1m
		10s
		patient waits
		h up
		13s
		patient has 1 again`},
	"a lost answer of a caller that gives up": {"plain", `
		h acquire back down
		h release way down
		gone acquires wait=ever
		1s
		gone leaves
		gone is canceled
		h up
		4s
		store RELEASED 1`},
	"a lost answer, and a second one that came too late": {"plain", `
		h acquire back down
		gone acquires wait=ever
		h up
		h all back 1s
		100ms
		gone leaves
		gone is canceled
		10s
		store RELEASED 1`},
	"what was granted after more than its term is released": {"plain", `
		h acquire way 2900ms
		h acquire back down
		h release way down
		gone acquires wait=ever ttl=1s
		gone leaves
		3050ms
		h up
		3800ms
		store RELEASED 1`},
	"the store is down while some wait": {"plain", `
		elsewhere@o acquires
		long acquires wait=1h
		short acquires wait=10s
		h all way down
		h asked
		11s
		short is open
		h asked 3..40
		elsewhere frees
		h up
		14s
		long has 2`},
	"waits end in time during an outage": {"plain", `
		h all way down
		a acquires wait=11s
		b acquires wait=10s
		12s
		a is down at=11s
		b is down at=10s`},
	"a holder whose answer was lost asks before all others": {"plain", `
		holder acquires id=x
		holder has 1
		waiter acquires wait=ever
		holder' acquires wait=0s id=x
		holder' has 1 again
		holder'' acquires wait=1s id=x
		holder'' has 1 again
		holder''' acquires wait=ever id=x
		holder''' has 1 again
		waiter waits
		holder frees
		waiter has 2`},
	"what remains is as of now": {"plain", `
		h all back 2s
		slow acquires
		2s
		slow has 1 left=27999`},
	"a fence": {"plain", `
		store forgets 10s
		hasty acquires
		hasty is fenced
		patient acquires wait=ever
		10100ms
		patient has any from=10s`},
	"what is invalid is answered at once": {"notified", `
		a acquires wait=ever ttl=48h
		a is invalid
		h asked 0..0`},

	"a host that closes ends the waits": {"notified", `
		elsewhere@o acquires
		a acquires wait=ever
		b acquires wait=ever
		h closes
		a is closed
		b is closed
		late acquires
		late is closed`},
	"a host that closes releases what is held": {"notified", `
		holder holds
		h closes
		store RELEASED 1
		holder lost 0`},
	"a host that closes clears up": {"plain", `
		h all back 1s
		open acquires wait=ever
		h closes
		open is closed
		store RELEASED 1`},
	"a host does not close for ever": {"notified", `
		holder holds
		h all way down
		h closes 5s
		h asked
		20s
		h asked 0..1`},

	"asked again without a wait, nobody is left in line": {"", `
		holder acquires
		waiter acquires wait=ever id=x
		waiter waits
		waiter' acquires id=x
		waiter' is held
		waiter is reused
		holder frees
		1s
		store RELEASED 1`},
	"asked again, the place is kept": {"notified", `
		holder acquires
		before acquires wait=ever
		waiter acquires wait=ever id=x
		behind acquires wait=ever
		waiter' acquires wait=ever id=x
		waiter is reused
		holder frees
		before has 2
		before frees
		waiter' has 3
		behind waits
		waiter' frees
		behind has 4`},
	"asked again while the store is asked, without a wait": {"plain", `
		h all back 1s
		waiter acquires wait=ever id=x
		next acquires wait=30s
		waiter' acquires id=x
		5s
		waiter is reused
		waiter' has 1 at=1s
		waiter' frees
		10s
		next has 2`},
	"asked again while the store is asked, with a wait": {"plain", `
		h all back 1s
		waiter acquires wait=ever id=x
		next acquires wait=30s
		waiter' acquires wait=ever id=x
		5s
		waiter is reused
		waiter' has 1 at=1s
		waiter' frees
		10s
		next has 2`},
	"asked again while the store is asked, and the lock is held": {"plain", `
		holder@o acquires
		h all back 1s
		waiter acquires wait=ever id=x
		next acquires wait=30s
		waiter' acquires id=x
		5s
		waiter is reused
		waiter' is held at=1s
		holder frees
		20s
		next has 2`},
	"asked again while the store is asked, and the store is fenced": {"plain", `
		store forgets 30s
		h all back 1s
		waiter acquires wait=ever id=x
		waiter' acquires id=x
		5s
		waiter is reused
		waiter' is fenced at=1s
		waiter' leaves`},
	"asked again during a grant, it is told no old news": {"plain", `
		holder@o acquires
		waiter acquires wait=ever id=x
		5s
		h acquire back 1s
		holder frees
		6s
		waiter waits
		waiter' acquires id=x
		10s
		waiter is reused
		waiter' has 2`},
	"asked again in an outage": {"plain", `
		h acquire back down
		waiter acquires wait=ever id=x
		1s
		h up
		waiter' acquires id=x
		10s
		waiter is reused
		waiter' has 1 again`},
	"asked again while a server waits": {"plain", `
		holder@o acquires
		waiter@s acquires wait=ever id=x
		5s
		waiter waits
		waiter'@s acquires id=x
		waiter is reused
		waiter' is held at=5s
		waiter''@s acquires wait=ever id=x
		10s
		holder frees
		waiter'' has 2`},
	"asked again while it is released": {"plain", `
		h acquire back down once
		h release way down
		gone acquires wait=ever id=x
		gone leaves
		gone is canceled
		100ms
		gone' acquires id=x
		gone' is down at=100ms
		h up
		10s
		store RELEASED 1`},
	"another request is no repetition": {"notified", `
		holder acquires
		waiter acquires wait=ever id=x
		waiter' acquires id=x ttl=1m
		waiter' is held
		another acquires id=x
		another is held
		waiter waits
		holder frees
		waiter has 2`},
	"asked again, and both left": {"plain", `
		h acquire back 1s
		waiter acquires wait=ever id=x
		waiter' acquires wait=ever id=x
		waiter is reused
		waiter' leaves
		waiter' is canceled
		5s
		store RELEASED 1`},
	"asked again, no answer came, and both left": {"plain", `
		h acquire back 1s down
		waiter acquires wait=ever id=x
		waiter' acquires wait=ever id=x
		waiter is reused
		1100ms
		waiter' leaves
		waiter' is canceled
		6s
		store RELEASED 1`},
	"asked again after an outage, and left": {"plain", `
		h acquire back down
		h release way down
		waiter acquires wait=ever id=x
		waiter' acquires wait=ever id=x
		waiter is reused
		waiter' leaves
		waiter' is canceled
		h up
		15s
		store RELEASED 1`},

	"a release while the store is asked: the first in line is asked for again": {"plain", `
		holder acquires
		holder has 1
		h acquire back 1s
		next acquires wait=ever
		500ms
		holder frees
		1500ms
		next waits
		2s
		next has 2 at=2s`},
	"a release while the store is asked: the old answer is no news": {"plain", `
		holder acquires
		holder has 1
		h acquire back 1s
		next acquires wait=ever
		500ms
		holder frees
		hasty acquires
		1500ms
		next waits
		hasty waits
		2s
		next has 2 at=2s
		hasty is held by next`},
	"an answer under way past the lease's end is no news": {"plain", `
		holder acquires ttl=1s
		holder has 1
		h acquire back 3s
		next acquires wait=ever
		2s
		hasty acquires
		12s
		next has 2 at=6s
		hasty is held by next`},
	"releases do not heat up the line": {"plain", `
		holder@o acquires
		h acquire back 100ms
		next acquires wait=ever
		h asked
		10ms
		h wakes
		20ms
		h wakes
		30ms
		h wakes
		40ms
		h wakes
		110ms
		h wakes
		120ms
		h wakes
		130ms
		h wakes
		400ms
		h asked 1..5`},

	"a server waits as long as the caller": {"plain", `
		holder@o acquires
		gone@s acquires wait=ever
		hasty@s acquires wait=7s
		next@s acquires wait=ever
		7s
		hasty is held
		gone waits
		gone leaves
		gone is canceled
		holder frees
		next has 2`},
	"a server waits, with hardly a request": {"plain", `
		holder@o holds
		one@s acquires wait=ever
		two@s acquires wait=ever
		90s
		one waits
		s asked 0..12
		holder drops
		91s
		one has 2
		one frees
		92s
		two has 3`},
	"a held lock has as much left as the store says": {"plain", `
		first@o acquires
		second@s holds wait=ever ttl=5s
		15s
		first frees
		second has 2 at=15s
		second knows
		s all way down
		19s
		second knows
		s suspends 1m
		21s
		second lost 1
		second knows`},
	"a held lock is not kept for less than was waited": {"plain", `
		first@o acquires
		second@s holds wait=ever ttl=1s
		19500ms
		first frees
		second has 2 at=19500ms
		1m20s
		second has 2
		second lost 0`},
}

func TestScenarios(t *testing.T) {
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) { play(t, s.kind, s.script) })
	}
	for name, s := range holdScenarios {
		t.Run(name, func(t *testing.T) { play(t, s.kind, s.script) })
	}
}

// TestEndOfAnotherHostsLease: the holder is gone, and nothing tells of the end. The pauses
// are random; the question comes at the end or up to 11 ms later: spread and a tick.
func TestEndOfAnotherHostsLease(t *testing.T) {
	for range 50 {
		play(t, "", `
			crashed@o acquires
			next acquires wait=ever
			30012ms
			next has 2 from=30s`)
	}
}

// A release that the store does not answer is repeated for as long as the lease can live.
// Callers that do not wait, and callers with a wait that ends meanwhile, hear of the failure.
func TestNobodyWaitsForAReleaseThatDoesNotComeThrough(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		h.meet(&obstacle{op: "all", fails: true})
		long := wanted("gone", 0)
		long.TTLMS = lock.MaxTTL.Milliseconds()
		if _, err := h.Acquire(r.Context(), long); !errors.Is(err, errDown) {
			r.Fatal(err)
		}
		time.Sleep(time.Minute) // the host goes on releasing a lease that it may have been granted
		for range 3 {
			began := r.elapsed()
			if _, err := h.Acquire(r.Context(), wanted("other", 0)); !errors.Is(err, errDown) || r.elapsed() != began {
				r.Errorf("it took %v: %v", r.elapsed()-began, err)
			}
		}
		patient := r.line(r.Context(), h, wanted("patient", time.Hour))
		began := r.elapsed()
		if _, err := h.Acquire(r.Context(), wanted("waits", 10*time.Second)); !errors.Is(err, errDown) || r.elapsed()-began != 10*time.Second {
			r.Errorf("it took %v: %v", r.elapsed()-began, err)
		}
		h.meet()
		if got := <-patient; got.err != nil {
			r.Error(got.err)
		}
	})
}
