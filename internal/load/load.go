//go:build linux

package load

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Put puts load on a server until the time is up or ctx is done. The result covers the
// time until then.
//
// The caller must turn the garbage collector off and lock its goroutine to its thread:
// the runtime does not know of the blocking system calls.
func Put(ctx context.Context, o Options) (Result, error) {
	sessions := make([]*session, o.Connections)
	defer func() {
		for _, s := range sessions {
			if s != nil {
				s.socket.close()
			}
		}
	}()
	for i := range sessions {
		s, err := newSession(o, inputSize)
		if err != nil {
			return Result{}, err
		}
		sessions[i] = s
	}
	m := &meter{}
	defer context.AfterFunc(ctx, func() { m.stopped.Store(true) })()
	put := func(until int64) error { return inTurn(sessions[0], o.Depth, until, m) }
	if len(sessions) > 1 {
		poll, err := newPoller(sessions, o.Timeout)
		if err != nil {
			return Result{}, err
		}
		defer poll.close()
		put = func(until int64) error { return poll.all(o.Depth, until, m) }
	}
	if err := put(now() + int64(o.Warmup)); err != nil {
		return Result{}, err
	}
	if o.Began != nil {
		if err := o.Began(); err != nil {
			return Result{}, err
		}
	}
	m.begin()
	// On a machine that is busy with other things, the time may pass without an answer.
	for again := range int64(longest) {
		if err := put(m.began + (again+1)*int64(o.Duration)); err != nil {
			return Result{}, err
		}
		if m.requests > 0 || ctx.Err() != nil {
			break
		}
	}
	if err := ctx.Err(); m.requests == 0 && err != nil {
		return Result{}, err
	}
	if m.requests == 0 {
		return Result{}, fmt.Errorf("nothing was answered as a whole within %v: measure for longer, or send less together", longest*o.Duration)
	}
	return m.result(), nil
}

// longest is how many durations a measurement may take until something is answered.
const longest = 50

// meter counts the answers.
type meter struct {
	latencies    histogram
	requests     int64
	began, ended int64
	stopped      atomic.Bool // send no more requests
}

// begin resets the counts.
func (m *meter) begin() {
	m.latencies, m.requests = histogram{}, 0
	m.began = now()
	m.ended = m.began
}

// over reports whether the time is up.
func (m *meter) over(at, until int64) bool { return at >= until || m.stopped.Load() }

func (m *meter) add(requests int, at, latency int64) {
	m.latencies.add(latency)
	m.requests += int64(requests)
	m.ended = at
}

func (m *meter) result() Result {
	return Result{
		Requests: m.requests, Elapsed: time.Duration(m.ended - m.began),
		P50: m.quantile(0.50), P90: m.quantile(0.90), P99: m.quantile(0.99), P999: m.quantile(0.999), Max: m.quantile(1),
	}
}

func (m *meter) quantile(q float64) time.Duration { return time.Duration(m.latencies.quantile(q)) }

var start = time.Now()

// now is the time since the process began, in nanoseconds. The monotonic clock alone is
// the cheapest to read.
func now() int64 { return int64(time.Since(start)) }

// AskOnce connects, makes one request and awaits its answer. Unless there is an
// error, the connection stays open until hangUp is called.
func AskOnce(o Options) (hangUp func(), err error) {
	const oneAnswer = 256
	s, err := newSession(o, oneAnswer)
	if err != nil {
		return nil, err
	}
	if err := s.ask(1, 0); err != nil {
		s.socket.close()
		return nil, err
	}
	for {
		n, err := s.receive()
		if err != nil {
			s.socket.close()
			return nil, err
		}
		if n > 0 {
			return s.socket.close, nil
		}
	}
}

// session is one connection with its requests under way.
type session struct {
	socket socket
	talk   dialect
	next   uint32 // number of the next request
	due    uint32 // number of the request with the next answer
	sent   int64  // when the last requests were sent
	left   int    // of their answers, the ones still to come
	out    []byte
	in     []byte
	have   int // bytes in in
}

// inputSize holds the largest answer and all answers of one burst.
const inputSize = 64 << 10

// newSession connects. size is the size of the buffer for answers, unless one burst
// needs more.
func newSession(o Options, size int) (*session, error) {
	talk, err := newDialect(o.Dialect, o.Count)
	if err != nil {
		return nil, err
	}
	if o.Dialect == RPC {
		ids := newRPC(o.Count, o.Service)
		talk, size = ids, max(size, o.Depth*ids.answerSize()+1)
	}
	s, err := connect(o.Socket, o.Timeout)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", o.Socket, err)
	}
	return &session{socket: s, talk: talk, next: firstNumber, due: firstNumber, in: make([]byte, size)}, nil
}

// ask sends n requests in one piece. at is the present time.
func (s *session) ask(n int, at int64) error {
	s.out = s.out[:0]
	for range n {
		s.out = s.talk.appendRequest(s.out, s.next)
		s.next++
	}
	s.sent, s.left = at, n
	return s.socket.write(s.out)
}

// receive reads once, waiting if necessary, and returns how many answers are complete
// now.
func (s *session) receive() (answers int, err error) {
	n, err := s.socket.read(s.in[s.have:])
	if err != nil {
		return 0, err
	}
	rest := s.in[:s.have+n]
	for len(rest) > 0 {
		if s.due == s.next {
			return 0, fmt.Errorf("the server sent %d bytes more than it was asked for", len(rest))
		}
		n, err := s.talk.take(rest, s.due)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			break
		}
		rest = rest[n:]
		s.due++
		answers++
	}
	s.have = copy(s.in, rest)
	if s.have == len(s.in) {
		return 0, fmt.Errorf("an answer is larger than %d bytes", len(s.in))
	}
	return answers, nil
}

// inTurn repeatedly sends depth requests on one connection and awaits their answers,
// until the time is up.
func inTurn(s *session, depth int, until int64, m *meter) error {
	for at := now(); !m.over(at, until); {
		if err := s.ask(depth, at); err != nil {
			return err
		}
		for s.left > 0 {
			n, err := s.receive()
			if err != nil {
				return err
			}
			s.left -= n
		}
		at = now()
		m.add(depth, at, at-s.sent)
	}
	return nil
}

// all does the same on every connection at once. It awaits answers that come after the
// time is up, but does not count them.
func (p *poller) all(depth int, until int64, m *meter) error {
	at := now()
	for _, s := range p.sessions {
		if err := s.ask(depth, at); err != nil {
			return err
		}
	}
	for due := len(p.sessions); due > 0; {
		ready, err := p.wait()
		if err != nil {
			return err
		}
		for _, i := range ready {
			s := p.sessions[i]
			n, err := s.receive()
			if err != nil {
				return err
			}
			if s.left -= n; s.left > 0 {
				continue
			}
			at = now()
			if m.over(at, until) {
				due--
				continue
			}
			m.add(depth, at, at-s.sent)
			if err := s.ask(depth, at); err != nil {
				return err
			}
		}
	}
	return nil
}
