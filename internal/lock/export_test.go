package lock

// Wake is what a release through this host does to the line.
func (h *Host) Wake(tenant, key string) { h.wake(name{tenant, key}) }
