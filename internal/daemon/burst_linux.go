package daemon

import (
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/wire"
)

// plainMethod are the methods whose requests are mostly plain.
type plainMethod int

const (
	plainNextID plainMethod = iota
	plainNextIDs
)

// beginBurst reads the clocks, once for all requests that came together.
func (l *fastLane) beginBurst() {
	l.began = l.server.elapsed()
	l.conn.reading = l.server.usual.gen.Read() // all services have one clock
}

// endBurst counts what was answered.
func (l *fastLane) endBurst() {
	s, plain := l.server, 0
	for method, n := range l.answered {
		if n > 0 {
			s.methods[method].succeeded.Add(float64(n))
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
// it is not for the lane. l.conn.waits is set if the request waits.
func (l *fastLane) answer(b []byte) int {
	var plain wire.Plain
	if n := wire.ParsePlain(b, &plain); n > 0 {
		switch {
		case plain.Count < 0 && string(plain.Method) == "NextID":
			l.plain(plainNextID, 1, plain.ID)
			return n
		case 0 < plain.Count && plain.Count <= maxLaneBatch && string(plain.Method) == "NextIDs":
			l.plain(plainNextIDs, plain.Count, plain.ID)
			return n
		}
	}
	n, err := l.split.Scan(b)
	if err != nil || n == 0 {
		l.split.Reset()
		return 0
	}
	c := l.conn
	if c.req.Parse(b[:n]) != nil {
		return 0
	}
	l.endBurst() // Status tells of those before it
	l.server.handle(l.work, c)
	l.began = l.server.elapsed() // those behind it have not waited for it to be read
	if c.heavy {
		c.heavy = false
		return 0
	}
	return n
}

// plain answers a request for IDs without options.
func (l *fastLane) plain(method plainMethod, count int64, id uint32) {
	s, c := l.server, l.conn
	ranges, pending, err := s.usual.gen.Start(c.reading, generator.Request{Count: count, Timeout: defaultTimeout}, c.ranges[:0])
	if pending == nil && err == nil {
		c.ranges = ranges
		if method == plainNextID {
			c.wire.ReplyUint64(id, uint64(ranges[0].Start))
		} else {
			c.wire.BeginArray(id, int(count))
			for _, g := range ranges {
				c.wire.AppendRange(uint64(g.Start), int(g.Count))
			}
			c.ranges = keepSmall(ranges)
		}
		l.answered[method]++
		return
	}
	s.requests.Add(1)
	m := &s.methods[method]
	if pending != nil {
		c.ranges = nil
		if err = s.enter(pending); err == nil {
			c.waits = &waiting{
				request: idRequest{
					id: id, single: method == plainNextID, service: s.usual,
					want: generator.Request{Count: count, Timeout: defaultTimeout},
				},
				pending: pending, method: m, began: l.began,
			}
			return
		}
	}
	s.finish(c, id, m, l.began, err)
}
