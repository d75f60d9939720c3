package daemon

import "runtime"

// maxRunning and maxUserRunning are how many connections with a goroutine may be at work at a
// time: of all users, and of one. The runtime serves goroutines in the order in which they
// become ready, so without a bound those of one user would be thousands before everybody
// else's, and before the fast path's thread. One user leaves half of the processors to others.
var (
	maxRunning     = runtime.NumCPU()
	maxUserRunning = max(runtime.NumCPU()/2, 1)
)

// messagesPerRun is after how many messages others may take the place.
const messagesPerRun = 32

// running has a place for each connection that is at work.
type running chan struct{}

// run waits until the connection may work: first for a place of its user, so that those who
// wait for one of all are few of each. mu is held, and stays so until rest: nobody who has a
// place waits for a peer, or for somebody who does. A connection that is made to end needs
// no place: others wait for what it holds.
func (c *conn) run() {
	select {
	case c.user.running <- struct{}{}:
	case <-c.abandoned:
		return
	}
	select {
	case c.server.budget.running <- struct{}{}:
		c.working = true
	case <-c.abandoned:
		<-c.user.running
	}
}

// rest gives the place up, if there is one. mu is held.
func (c *conn) rest() (had bool) {
	if !c.working {
		return false
	}
	c.working = false
	<-c.server.budget.running
	<-c.user.running
	return true
}

// resting calls do, which may wait, without a place. mu is held.
func (c *conn) resting(do func()) {
	if c.rest() {
		defer c.run()
	}
	do()
}

// restingMemory is the connection's account, which is waited for without a place.
type restingMemory struct {
	*account
	conn *conn
}

// Reserve implements wire.Memory.
func (m *restingMemory) Reserve(n int) (err error) {
	m.conn.resting(func() { err = m.account.Reserve(n) })
	return err
}

// Take implements wire.Memory.
func (m *restingMemory) Take(n int) { m.conn.resting(func() { m.account.Take(n) }) }
