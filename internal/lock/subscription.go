package lock

// news is the event that the lock may be free.
func (l *line) news() {
	l.forget()
	l.step()
}

// subscribed is the event that the store tells of releases from now on. What was released
// since an earlier subscription ended is asked for.
func (l *line) subscribed() {
	l.hears = true
	if l.missed {
		l.missed = false
		l.news()
	}
}

// unsubscribed is the event that it does so no more. If the store has ended the
// subscription, a release may have gone unnoticed.
func (l *line) unsubscribed(byStore bool) {
	l.deafen, l.hears = nil, false
	if byStore {
		l.missed = true
		l.news()
	}
}
