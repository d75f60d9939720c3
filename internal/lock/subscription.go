package lock

// news is the event that the lock may be free.
func (q *waitQueue) news() {
	q.forget()
	q.step()
}

// subscribed is the event that the store tells of releases from now on. What was released
// since an earlier subscription ended is asked for.
func (q *waitQueue) subscribed() {
	q.hears = true
	if q.missed {
		q.missed = false
		q.news()
	}
}

// unsubscribed is the event that it does so no more. If the store has ended the
// subscription, a release may have gone unnoticed.
func (q *waitQueue) unsubscribed(byStore bool) {
	q.deafen, q.hears = nil, false
	if byStore {
		q.missed = true
		q.news()
	}
}
