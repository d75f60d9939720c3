package lock

import "time"

// Forget has the store lose what it knows, as a server without persistence does
// that is restarted, and grant nothing for as long as a lease may have had left.
func (m *Memory) Forget(incarnation string, fence time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys, m.floor, m.incarnation = map[name]State{}, 0, incarnation
	m.fencedUntilMS = m.nowMS() + fence.Milliseconds()
}

// Remember gives the store a life's name, as a server that may forget has one.
func (m *Memory) Remember(incarnation string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.incarnation = incarnation
}

// Wake is what a release through this host does to the line.
func (h *Host) Wake(tenant, key string) { h.wake(name{tenant, key}) }
