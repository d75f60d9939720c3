package daemon

import (
	"github.com/kazahana/kazahana/internal/wire"
)

// plainMethod are the methods whose requests are mostly plain.
type plainMethod int

const (
	plainNextID plainMethod = iota
	plainNextIDs
)

// beginBurst reads the clocks, once for all requests that came together.
func (l *eventPath) beginBurst() {
	l.began = l.server.elapsed()
	l.responder.reading = l.server.defaultService.Generator().Read() // all services have one clock
}

// endBurst counts what was answered.
func (l *eventPath) endBurst() {
	s, plain := l.server, 0
	for method, n := range l.answered {
		if n > 0 {
			s.methods[method].succeeded().Add(float64(n))
			plain += n
		}
	}
	l.answered = [2]int{}
	if plain > 0 {
		s.requests.Add(uint64(plain))
		s.metrics.RPCDuration.Observe(s.elapsed()-l.began, plain)
	}
}

// answer handles the message that b begins with and returns its length; 0 if
// it is not for the fast path. waits is the request if it has to wait.
func (l *eventPath) answer(b []byte) (n int, waits *waiting) {
	var plain wire.Plain
	if n := wire.ParsePlain(b, &plain); n > 0 {
		switch {
		case plain.Count < 0 && string(plain.Method) == "NextID":
			return n, l.plain(plainNextID, 1, plain.ID)
		case 0 < plain.Count && plain.Count <= maxFastPathBatch && string(plain.Method) == "NextIDs":
			return n, l.plain(plainNextIDs, plain.Count, plain.ID)
		}
	}
	n, err := l.split.Scan(b)
	if err != nil || n == 0 {
		l.split.Reset()
		return 0, nil
	}
	if l.responder.req.Parse(b[:n]) != nil {
		return 0, nil
	}
	l.endBurst() // Status tells of those before it
	waits, here := l.responder.handle(l.work)
	l.began = l.server.elapsed() // those behind it have not waited for it to be read
	if !here {
		return 0, nil
	}
	return n, waits
}

// plain answers a request for IDs without options. Those that are answered at once
// are counted together, by endBurst.
func (l *eventPath) plain(method plainMethod, count int64, id uint32) (waits *waiting) {
	r := &l.requests[method]
	r.id, r.want.Count = id, count
	err := l.responder.issue(r)
	if err == nil {
		l.answered[method]++
		return nil
	}
	l.server.requests.Add(1)
	return l.responder.settle(id, &l.server.methods[method], l.began, err)
}
