package lock

import "time"

// Wake is what a release through this host does to the line.
func (h *Host) Wake(tenant, key string) { h.turn(func() { h.core.wake(name{tenant, key}) }) }

// PollSeldom has hosts ask hardly ever by themselves, until the test ends.
func PollSeldom(t interface{ Cleanup(func()) }) {
	first, most, notice := pollFirst, pollMost, noticeMost
	pollFirst, pollMost, noticeMost = time.Hour, time.Hour, time.Hour
	t.Cleanup(func() { pollFirst, pollMost, noticeMost = first, most, notice })
}

// Hears reports whether the store tells the host of releases of the lock.
func (h *Host) Hears(tenant, key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.core.queues[name{tenant, key}]
	return l != nil && l.hears
}
