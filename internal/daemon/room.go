package daemon

import "time"

// roomPatience bounds the wait for connections that end, which takes them no time.
const roomPatience = 10 * time.Second

// roomWait is the wait of a connection for memory. Of one user, one connection at a time
// looks whether there is room when some is given back, for there may be thousands.
type roomWait struct {
	account *account
	timer   *time.Timer
	first   bool // of its user
	listed  bool // in budget.scarce
}

// wait waits until there may be room, and reports whether that was in time. key names the quota
// that is short, "" if only a poorer user goes first. The budget's mu is held, but not while it waits.
func (w *roomWait) wait(key string) bool {
	a := w.account
	b := a.budget
	if key == keyMemory && !w.listed {
		w.listed = true
		b.scarce[a.user]++
	}
	if w.timer == nil {
		w.timer = time.NewTimer(roomPatience)
	}
	if a.lost == nil {
		a.lost = make(chan struct{})
	}
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	var turn chan<- struct{}
	changed, lost := b.changed, a.lost
	if !w.first {
		turn, changed = a.user.queue, nil
	}
	b.mu.Unlock()
	defer b.mu.Lock()
	select {
	case turn <- struct{}{}:
		w.first = true
	case <-changed:
	case <-lost:
	case <-w.timer.C:
		return false
	}
	return true
}

// end ends the wait, if there was one. mu is held.
func (w *roomWait) end() {
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.first {
		<-w.account.user.queue
	}
	if a := w.account; w.listed {
		if a.budget.scarce[a.user]--; a.budget.scarce[a.user] == 0 {
			delete(a.budget.scarce, a.user)
		}
		a.budget.wake()
	}
}

// poorerWaits reports whether another user waits for memory, and has less. That one goes first. mu
// is held.
func (b *budget) poorerWaits(u *user) bool {
	for other := range b.scarce {
		if other.stays() < u.stays() {
			return true
		}
	}
	return false
}
