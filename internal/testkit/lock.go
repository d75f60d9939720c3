package testkit

import (
	"strings"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// LockOf is how the daemon shows a lock now.
func (c *Client) LockOf(key string) (l lock.Answer) {
	c.T.Helper()
	c.Must("Lock.Get", &l, key)
	return l
}

// WantLock checks how the daemon shows a lock now.
func (c *Client) WantLock(key string, state lock.Status, token int64) lock.Answer {
	c.T.Helper()
	l := c.LockOf(key)
	if l.State != state || l.FencingToken != token {
		c.T.Errorf("lock %q is %+v, want it %s with token %d", key, l, state, token)
	}
	return l
}

// AwaitWaiters returns when n requests wait, the last of them from a process that was
// just started: before it asks, the count can be one too high, because a request is
// counted until a moment after its answer.
func (c *Client) AwaitWaiters(n int, last *Instance) {
	c.T.Helper()
	await.Eventually(c.T, "it asks", func() bool { return strings.Contains(last.Log.String(), "acquiring lock") })
	await.Eventually(c.T, "it waits", func() bool { return c.Status().InFlight == int64(n) })
}
