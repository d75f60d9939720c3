//go:build linux

package load

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/kazahana/kazahana/bench/process"
)

// Options describe one measurement of one server.
type Options struct {
	Socket      string
	Dialect     string
	Count       int
	Connections int
	Depth       int
	Warmup      time.Duration
	Duration    time.Duration
	Server      int // process ID whose CPU time is measured too; 0: none
}

// Arguments is the command line of the load generator.
func (o Options) Arguments() []string {
	return []string{"load", "-socket", o.Socket, "-dialect", o.Dialect, "-count", fmt.Sprint(o.Count),
		"-connections", fmt.Sprint(o.Connections), "-depth", fmt.Sprint(o.Depth),
		"-warmup", o.Warmup.String(), "-duration", o.Duration.String(), "-server", fmt.Sprint(o.Server)}
}

// Result is what the load generator prints, as JSON.
type Result struct {
	Requests int64         `json:"requests"`
	Elapsed  time.Duration `json:"elapsed_ns"`
	P50      time.Duration `json:"p50_ns"` // of the time from sending to having all answers
	P99      time.Duration `json:"p99_ns"`
	P999     time.Duration `json:"p999_ns"`
	CPU      time.Duration `json:"cpu_ns"`        // of the load generator
	Server   time.Duration `json:"server_cpu_ns"` // of Options.Server
}

// Rate is answers per second.
func (r Result) Rate() float64 { return float64(r.Requests) / r.Elapsed.Seconds() }

// Main is the sub-mode load.
func Main(args []string) error {
	var o Options
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.StringVar(&o.Socket, "socket", "", "path of the server's socket")
	flags.StringVar(&o.Dialect, "dialect", RPC, "how the server is asked")
	flags.IntVar(&o.Count, "count", 1, "IDs per request")
	flags.IntVar(&o.Connections, "connections", 1, "connections")
	flags.IntVar(&o.Depth, "depth", 1, "requests sent together, on one connection")
	flags.DurationVar(&o.Warmup, "warmup", 100*time.Millisecond, "time before counting begins")
	flags.DurationVar(&o.Duration, "duration", 2*time.Second, "time that is counted")
	flags.IntVar(&o.Server, "server", 0, "process ID whose CPU time is measured too")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Connections < 1 || o.Depth < 1 || o.Count < 1 || o.Connections > 1 && o.Depth > 1 {
		return errors.New("load: needs one connection with any depth, or several with a depth of 1")
	}
	// The loop allocates nothing, and nothing else should run.
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	result, err := putLoad(o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// putLoad puts load on a server until the time is up.
func putLoad(o Options) (Result, error) {
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
	m := new(meter)
	var put func(until int64, m *meter) error
	if len(sessions) == 1 {
		put = func(until int64, m *meter) error { return inTurn(sessions[0], o.Depth, until, m) }
	} else {
		poll, err := newPoller(sessions)
		if err != nil {
			return Result{}, err
		}
		defer poll.close()
		put = poll.all
	}
	if err := put(now()+int64(o.Warmup), m); err != nil {
		return Result{}, err
	}
	before, err := readCPU(o.Server)
	if err != nil {
		return Result{}, err
	}
	*m = meter{began: now()}
	if err := put(m.began+int64(o.Duration), m); err != nil {
		return Result{}, err
	}
	if m.requests == 0 {
		return Result{}, fmt.Errorf("no request was answered within %v", o.Duration)
	}
	after, err := readCPU(o.Server)
	if err != nil {
		return Result{}, err
	}
	result := m.result()
	result.CPU, result.Server = after.own-before.own, after.server-before.server
	return result, nil
}

// cpu is CPU time so far.
type cpu struct{ own, server time.Duration }

func readCPU(server int) (c cpu, err error) {
	if server == 0 {
		return c, nil
	}
	if c.server, err = process.CPUTime(server); err == nil {
		c.own, err = process.CPUTime(os.Getpid())
	}
	return c, err
}

// meter counts what was answered.
type meter struct {
	latencies    histogram
	requests     int64
	began, ended int64
}

func (m *meter) add(requests int, at, latency int64) {
	m.latencies.add(latency)
	m.requests += int64(requests)
	m.ended = at
}

func (m *meter) result() Result {
	return Result{
		Requests: m.requests, Elapsed: time.Duration(m.ended - m.began),
		P50: m.quantile(0.50), P99: m.quantile(0.99), P999: m.quantile(0.999),
	}
}

func (m *meter) quantile(q float64) time.Duration { return time.Duration(m.latencies.quantile(q)) }

var start = time.Now()

// now is the time since the process began, in nanoseconds, by the monotonic
// clock alone, which is the cheapest.
func now() int64 { return int64(time.Since(start)) }

// session is one connection with what is under way on it.
type session struct {
	socket socket
	talk   dialect
	next   uint32 // number of the next request
	due    uint32 // number of the request whose answer comes next
	sent   int64  // when the last requests were sent
	out    []byte
	in     []byte
	have   int // bytes in in
}

// inputSize holds the largest answer and all answers of one burst.
const inputSize = 64 << 10

// newSession connects. size is how many bytes of answers can wait at once.
func newSession(o Options, size int) (*session, error) {
	talk, err := newDialect(o.Dialect, o.Count)
	if err != nil {
		return nil, err
	}
	s, err := connect(o.Socket)
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
	s.sent = at
	return s.socket.write(s.out)
}

// receive reads once, waits if there is nothing, and returns how many answers
// are complete now.
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

// inTurn sends depth requests on one connection, awaits their answers, and so
// on until the time is up.
func inTurn(s *session, depth int, until int64, m *meter) error {
	for at := now(); at < until; {
		if err := s.ask(depth, at); err != nil {
			return err
		}
		for left := depth; left > 0; {
			n, err := s.receive()
			if err != nil {
				return err
			}
			left -= n
		}
		at = now()
		m.add(depth, at, at-s.sent)
	}
	return nil
}

// all keeps one request under way on every connection until the time is up,
// then awaits what is still due, which it does not count.
func (p *poller) all(until int64, m *meter) error {
	at := now()
	for _, s := range p.sessions {
		if err := s.ask(1, at); err != nil {
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
			if n == 0 {
				continue
			}
			at = now()
			if at >= until {
				due--
				continue
			}
			m.add(1, at, at-s.sent)
			if err := s.ask(1, at); err != nil {
				return err
			}
		}
	}
	return nil
}
