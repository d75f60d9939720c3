package daemon

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/eventloop"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// fastPathBuffer is read at a time, which is a connection's turn. Longer messages get a
	// goroutine. The bytes left in it while a request waits are part of the wait's cost.
	fastPathBuffer = 8 << 10
	// fastPathFull is after how many bytes of answers they are sent. The largest
	// answer that is made here still fits behind them into a buffer that is
	// used again: 9 bytes an ID, and less than 1 for each is its head.
	fastPathFull = wire.HighWater - 10*maxFastPathBatch
	// maxRound is how many connections are read from before the first of them is answered.
	maxRound = 16
	// maxTogether is how many requests for one ID share a visit to the generator.
	maxTogether = 128
	// timedEvery: one burst in so many is timed, and stands for all of them. To read a clock takes
	// as long as to make an ID.
	timedEvery = 8
)

// eventPath serves connections by one thread, in an event loop. It does what
// takes no time: it reads whole requests, answers them, and lets them wait for
// IDs. A connection on which anything else happens is given a goroutine: half a
// message, a peer that does not read, a huge batch, no message at all, the end
// of the daemon. Limits, patience and the drain have one place, which is not
// here.
type eventPath struct {
	server     *Server
	work       context.Context // of the goroutines that connections are given
	loop       *eventloop.Loop
	departures sync.WaitGroup // of connections that leave the loop
	ended      chan struct{}
	closed     atomic.Bool

	// Of the loop's thread:
	input     []byte
	responder responder // answers for the connection that has its turn
	split     wire.Splitter
	requests  [2]idRequest  // plain ones, by plainMethod, but for their ID and count
	answered  [2]int        // plain requests of this burst, by plainMethod
	bursts    uint          // so far
	began     time.Duration // of a burst that is timed, since the server's start
	took      time.Duration // the plain requests of the burst that was timed last
	// Requests for one ID that are answered together, and where each ends in the burst.
	ids  [maxTogether]uint32
	ends [maxTogether]int
	round
}

func newFastPath(s *Server, work context.Context) (fastPath, error) {
	l := &eventPath{server: s, work: work, ended: make(chan struct{}), input: make([]byte, fastPathBuffer)}
	loop, err := eventloop.New(l.answerRound)
	if err != nil {
		return nil, err
	}
	l.loop = loop
	l.responder = responder{server: s, out: wire.NewOutbox(nil)}
	for method := range l.requests {
		l.requests[method] = idRequest{
			single: plainMethod(method) == plainNextID, service: s.defaultService, generator: s.defaultService.Generator(),
			want: generator.Request{Timeout: DefaultTimeout},
		}
	}
	go func() {
		defer close(l.ended)
		loop.Run()
	}()
	return l, nil
}

// park implements fastPath.
func (l *eventPath) park(from stream, a *account) bool {
	raw, err := from.SyscallConn()
	if err != nil || l.closed.Load() {
		return false
	}
	fd := -1
	if raw.Control(func(original uintptr) {
		fd, err = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0)
	}) != nil || err != nil {
		return false
	}
	// The runtime's poller is not to be woken by connections of the fast path.
	_ = from.Close()
	p := &parked{path: l, fd: fd, account: a}
	a.park(func() { l.loop.Post(p.evicted) })
	if !l.loop.Post(p.admit) {
		panic("daemon: the fast path ended before it was closed")
	}
	return true
}

// prod implements fastPath.
func (l *eventPath) prod(turn func()) { l.loop.Post(turn) }

// admit has the loop serve the connection, unless it has been evicted already.
func (p *parked) admit() {
	if p.account == nil {
		return
	}
	if err := p.path.loop.Add(p.fd, p); err != nil {
		p.path.server.log.Debug("a connection that the event loop does not take gets a goroutine", zap.Error(err))
		p.handOver(unfinished{}, false)
	}
}

// close implements fastPath. The server accepts no more connections.
func (l *eventPath) close() {
	l.server.mu.Lock()
	l.closed.Store(true) // not in the middle of a park
	l.server.mu.Unlock()
	l.loop.Post(func() {
		l.loop.Stop()
		l.loop.Each(func(h eventloop.Handler) {
			p := h.(*parked)
			p.leave(unfinished{input: p.rest, waits: p.wait})
		})
	})
	<-l.ended
	l.departures.Wait()
}

// parked is a connection on the fast path.
type parked struct {
	path    *eventPath
	fd      int
	account *account // nil: the connection is not on the fast path any more
	rest    []byte   // came behind a request that waits, or is the begin of a message
	wait    *waiting // the request that waits for IDs
	more    bool     // there may be something to read
	half    bool     // the peer sends no more, and maybe reads no more
	gone    bool     // it reads no more either
}

// Ready implements eventloop.Handler.
func (p *parked) Ready(events uint32) {
	if events != 0 {
		p.more = true
		// A peer that has merely stopped sending still reads its answers.
		p.gone = p.gone || events&(unix.EPOLLHUP|unix.EPOLLERR) != 0
		p.half = p.half || p.gone || events&unix.EPOLLRDHUP != 0
	}
	switch {
	case p.wait != nil && p.gone:
		p.end()
	case p.wait == nil && p.more:
		p.read()
	}
}

// read takes the bytes that have come. The rest, if any, comes in another turn.
func (p *parked) read() {
	input := p.path.input
	begun := copy(input, p.rest)
	p.rest = nil
	n, errno := eventloop.Receive(p.fd, input[begun:])
	switch {
	case begun > 0 && (errno != 0 || n == 0): // there is no more of it
		p.leave(unfinished{input: input[:begun]})
	case errno == unix.EAGAIN:
		p.more = false
	case errno != 0 || n == 0:
		p.end()
	default:
		// A read that fills less took everything, except for the end. (Not where
		// the peer passes descriptors, for which there is no use here: the bytes behind
		// one are read together with the next message.)
		n += begun
		p.more = n == len(input) || p.half
		if id, length := wire.ParseNextID(input[:n]); length == n && !p.more {
			p.path.askedInRound(p, id)
			return
		}
		p.serve(input[:n])
	}
}

// serve answers the requests in b until one waits, and gives away the connection if that
// cannot be done here.
func (p *parked) serve(b []byte) {
	l := p.path
	l.responder.account = p.account
	l.beginBurst()
	for len(b) > 0 && p.wait == nil {
		if len(l.responder.out.Unsent()) >= fastPathFull && !p.send(b) {
			return
		}
		n, waits := l.answer(b)
		if n == 0 {
			break
		}
		b, p.wait = b[n:], waits
	}
	l.endBurst()
	if cut := p.more && len(b) < fastPathBuffer; len(b) > 0 && p.wait == nil && !cut {
		p.leave(unfinished{input: b, output: l.responder.out.Unsent()})
		return
	}
	if !p.send(b) {
		return
	}
	p.rest = append([]byte(nil), b...)
	switch {
	case p.wait != nil && p.gone: // of which the loop has told already
		p.end()
	case p.wait != nil:
		p.wait.pending.Notify(p.served)
	case p.more:
		l.loop.Again(p.fd)
	}
}

// round is the connections that the loop has read one plain request for one ID from, and nothing
// else. They are answered together: one look at the clock, one visit to the generator, and one
// count serve them all.
type round struct {
	asked [maxRound]roundAsk
	n     int // of them
	// answers are those of a round that are being sent.
	answers []byte
}

// roundAsk is one of them.
type roundAsk struct {
	conn *parked
	id   uint32
	end  int // of its answer, behind those before
}

// askedInRound notes a request. The loop calls answerRound when it has no more to read.
func (l *eventPath) askedInRound(p *parked, id uint32) {
	l.asked[l.n] = roundAsk{conn: p, id: id}
	if l.n++; l.n == maxRound {
		l.answerRound()
	}
}

// answerRound answers the requests of a round. All of them are counted before the first answer
// leaves.
func (l *eventPath) answerRound() {
	if l.n == 0 {
		return
	}
	all := l.asked[:l.n]
	l.n = 0
	l.beginBurst()
	out := l.responder.out
	for rest := all; len(rest) > 0; {
		got := l.requests[plainNextID].generator.Run(l.responder.reading, int64(len(rest)))
		for i := range rest[:got.Count] {
			l.ids[0] = rest[i].id
			out.ReplyConsecutive(l.ids[:1], uint64(got.Start)+uint64(i))
			rest[i].end = len(out.Unsent())
		}
		l.answered[plainNextID] += int(got.Count)
		if rest = rest[got.Count:]; len(rest) > 0 { // the first one begins a millisecond, or waits
			one := &rest[0]
			l.responder.account = one.conn.account
			one.conn.wait = l.plain(plainNextID, 1, one.id)
			one.end = len(out.Unsent())
			rest = rest[1:]
		}
	}
	l.endBurst()
	l.answers = append(l.answers[:0], out.Unsent()...) // a connection that leaves empties the outbox
	out.Sent(len(l.answers))
	begin := 0
	for _, one := range all {
		p, answer := one.conn, l.answers[begin:one.end]
		begin = one.end
		if p.wait != nil {
			p.wait.pending.Notify(p.served)
		} else {
			p.deliver(answer, nil)
		}
	}
}

// plainMethod is a method that mostly gets plain requests.
type plainMethod int

const (
	plainNextID plainMethod = iota
	plainNextIDs
)

// beginBurst reads the clock, once for all requests that came together. It follows the reads that
// brought them: no ID embeds a time before its request.
func (l *eventPath) beginBurst() {
	if l.bursts++; l.timed() {
		l.began = l.server.elapsed()
	}
	l.responder.reading = l.requests[plainNextID].generator.Read() // all services have one clock
}

func (l *eventPath) timed() bool { return l.bursts%timedEvery == 1 }

// endBurst counts the answers.
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
		if l.timed() {
			l.took = s.elapsed() - l.began
		}
		s.metrics.RPCDuration.Observe(l.took, plain)
	}
}

// answer handles the message that b begins with and returns its length; 0 if
// it is not for the fast path. waits is the request if it has to wait.
func (l *eventPath) answer(b []byte) (n int, waits *waiting) {
	if id, n := wire.ParseNextID(b); n > 0 {
		if all := l.answerTogether(b, n, id); all > 0 {
			return all, nil
		}
		return n, l.plain(plainNextID, 1, id)
	}
	if id, count, n := wire.ParseNextIDs(b); n > 0 && 0 < count && count <= maxFastPathBatch {
		return n, l.plain(plainNextIDs, int64(count), id)
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
	if l.timed() {
		l.began = l.server.elapsed() // the requests behind it have not waited for it to be read
	}
	if !here {
		return 0, nil
	}
	return n, waits
}

// answerTogether answers the plain requests for one ID that b begins with, as far as the
// generator has IDs for them at once, and returns their length. The first one is known. It
// returns 0 where there is no ID: then the first is answered alone.
func (l *eventPath) answerTogether(b []byte, n int, first uint32) int {
	l.ids[0], l.ends[0] = first, n
	asks := 1
	for ; asks < maxTogether && n < len(b); asks++ {
		id, length := wire.ParseNextID(b[n:])
		if length == 0 {
			break
		}
		n += length
		l.ids[asks], l.ends[asks] = id, n
	}
	got := l.requests[plainNextID].generator.Run(l.responder.reading, int64(asks))
	if got.Count == 0 {
		return 0
	}
	l.responder.out.ReplyConsecutive(l.ids[:got.Count], uint64(got.Start))
	l.answered[plainNextID] += int(got.Count)
	return l.ends[got.Count-1]
}

// plain answers a request for IDs without options. endBurst counts together the ones that are
// answered at once.
func (l *eventPath) plain(method plainMethod, count int64, id uint32) (waits *waiting) {
	r := &l.requests[method]
	r.id, r.want.Count = id, count
	err := l.responder.issue(r)
	if err == nil {
		l.answered[method]++
		return nil
	}
	return l.responder.settle(id, &l.server.methods[method], l.server.elapsed(), err)
}

// evicted gives the connection a goroutine, which closes it.
func (p *parked) evicted() {
	if p.account != nil {
		p.leave(unfinished{waits: p.wait})
	}
}

// send writes the answers that are ready, and reports whether the connection
// is still here. b is the part that has not been answered yet.
func (p *parked) send(b []byte) bool {
	out := p.path.responder.out
	unsent := out.Unsent()
	if len(unsent) == 0 {
		return true
	}
	sent := p.deliver(unsent, b)
	out.Sent(len(out.Unsent()))
	return sent
}

// deliver is send for these answers.
func (p *parked) deliver(answers, b []byte) bool {
	n, errno := eventloop.Send(p.fd, answers)
	n = max(n, 0)
	switch {
	case errno != 0 && errno != unix.EAGAIN:
		p.path.endBurst()
		p.end()
		return false
	case errno != 0 || n < len(answers):
		p.path.endBurst()
		p.leave(unfinished{input: b, output: answers[n:], waits: p.wait})
		return false
	}
	return true
}

// served has the loop answer the request that has waited. Any goroutine may call it.
func (p *parked) served() {
	p.path.loop.Post(func() {
		if p.wait != nil { // else the connection is gone
			p.resume()
		}
	})
}

func (p *parked) resume() {
	w, l := p.wait, p.path
	p.wait = nil
	ranges, err := w.pending.Result()
	l.responder.conclude(w, ranges, err)
	rest := p.rest
	p.rest = nil
	p.serve(rest)
}
