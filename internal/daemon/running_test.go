package daemon

import (
	"strings"
	"testing"
)

// user is that of all connections of the test.
func (r *rig) user() (u *user) {
	r.server.budget.mu.Lock()
	defer r.server.budget.mu.Unlock()
	for _, u = range r.server.budget.users {
	}
	return u
}

// No more connections of one user are at work at a time than have places, nor of all users.
func TestConnectionsWaitForAPlaceToRun(t *testing.T) {
	for name, places := range map[string]func(*rig) running{
		"of the user": func(r *rig) running { return r.user().running },
		"of all":      func(r *rig) running { return r.server.budget.running },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t).start()
			p := r.dial()
			p.alive()
			taken := places(r)
			for range cap(taken) {
				taken <- struct{}{}
			}
			p.ask("NextIDs", maxLaneBatch+1, options{"timeout_ms": 0}) // not for the lane
			until(t, "it waits for a place", func() bool { return strings.Contains(stacks(), "(*conn).run(") })
			for range cap(taken) {
				<-taken
			}
			p.receive()
			p.alive()
		})
	}
}
