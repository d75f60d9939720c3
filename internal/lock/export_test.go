package lock

// Wake is what a release through this host does to the line.
func (h *Host) Wake(tenant, key string) { h.turn(func() { h.core.wake(name{tenant, key}) }) }
