package placement

import (
	"fmt"
	"testing"
	"time"
)

// A store that is down is asked for few of many removals; when it is back, all go
// without another Tick.
func TestStoreThatIsDownIsNotCrowded(t *testing.T) {
	d := newDesk(t)
	d.member()
	const many = 10 * tickRetries
	down := false
	// work carries out the commands, and returns how many there were.
	work := func() (n int) {
		for ; len(d.todo) > 0; n++ {
			c := d.todo[0]
			d.todo = d.todo[1:]
			r := Result{ID: c.ID, Lease: Lease{"l", 5}, PID: "pid"}
			if c.Op == Remove && down {
				r.Err = errRefused
			}
			d.take(d.core.HandleResult(r, d.now))
		}
		return n
	}
	for i := range many {
		_, o, _ := d.core.Resolve(Key{"room", fmt.Sprint(i)}, d.now)
		d.take(o)
	}
	work()
	down = true
	d.now.Boot += time.Minute
	d.take(d.core.Tick(d.now))
	if n := work(); n != 2*many {
		t.Fatalf("%d commands, want a Passivate and a Remove of each", n)
	}
	for range 3 {
		d.take(d.core.Tick(d.now))
		if n := work(); n != tickRetries {
			t.Errorf("the store that is down is asked %d times at once", n)
		}
	}
	down = false
	d.take(d.core.Tick(d.now))
	if n := work(); n != many || !d.core.Idle() {
		t.Errorf("the store that is back is asked %d times, and all is done: %v", n, d.core.Idle())
	}
}
