package memcached

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/generator"
)

const (
	// maxFastPathKeys is how many IDs one get may have in the event loop, where all others
	// wait meanwhile.
	maxFastPathKeys = 64
	// sendAt is after how many bytes of answers they are sent.
	sendAt = 4 << 10
)

var errBadKey = errors.New("bad key")

// speaker answers lines: those of one connection, or those of all in the event loop.
type speaker struct {
	server *server
	guest  *daemon.Guest // whose line it is
	orders []order
	ranges []generator.Range
	began  time.Duration
	gets   int // answered since began
	ids    int
}

// outcome is what follows from a line.
type outcome uint8

const (
	goOn  outcome = iota
	stop          // the connection ends, once out is sent
	heavy         // not answered: the line is not for the event loop
	waits         // not answered: the get in g waits
)

// get is one that has IDs, or waits for the first of them.
type get struct {
	keys   []byte
	orders []order
	cas    bool
	wait   *daemon.Wait
}

// begin is called before the lines that came together, done after them.
func (s *speaker) begin() { s.began = s.server.door.Elapsed() }

func (s *speaker) done() {
	if s.gets > 0 {
		s.server.door.Answered(s.gets, s.began)
		s.server.gets.Add(int64(s.gets))
		s.server.hits.Add(int64(s.ids))
		s.gets, s.ids = 0, 0
	}
}

// answer appends the answer to a line, without its end. In the event loop g tells of a
// get that waits.
func (s *speaker) answer(out, line []byte, onFastPath bool) (_ []byte, g get, then outcome) {
	if len(line) > 0 && line[0] == binaryRequest {
		return append(out, notBinary...), g, stop
	}
	line = bytes.TrimSuffix(line, []byte{'\r'})
	v, rest := parse(line)
	switch v {
	case verbGet, verbGets:
		return s.get(out, rest, v == verbGets, onFastPath)
	case verbStats:
		s.done() // it tells of those before it
		s.begin()
		return s.server.stats(out), g, goOn
	case verbVersion:
		return fmt.Appendf(out, "VERSION %s\r\n", s.server.o.Version), g, goOn
	case verbQuit, verbHTTP:
		return out, g, stop
	case verbStore:
		return append(out, readOnly...), g, stop // what follows is no command
	}
	return append(out, unknownCommand...), g, goOn
}

func (s *speaker) get(out, keys []byte, cas, onFastPath bool) (_ []byte, g get, then outcome) {
	var count int
	var err error
	s.orders, count, err = orders(s.server.door, keys, s.orders[:0])
	switch {
	case errors.Is(err, errBadKey):
		return append(out, badKey...), g, goOn
	case err != nil:
		return s.failed(out, err)
	case count == 0:
		return append(out, unknownCommand...), g, goOn
	}
	g = get{keys: keys, orders: s.orders, cas: cas}
	if !onFastPath {
		return out, g, waits
	}
	if count > maxFastPathKeys || len(s.orders) > 1 {
		return out, get{}, heavy
	}
	ranges, wait, err := s.guest.Start(g.orders[0].order(), s.ranges[:0])
	if wait != nil {
		s.ranges, g.wait = nil, wait
		return out, g, waits
	}
	if s.ranges = ranges; err != nil {
		return s.failed(out, err)
	}
	out, _ = values(out, keys, ranges, cas, nil)
	s.gets++
	s.ids += count
	return out, g, goOn
}

func (o order) order() daemon.Order {
	return daemon.Order{Service: o.service, Count: o.count, Timeout: daemon.DefaultTimeout}
}

// finish answers a get in a goroutine. It gets all IDs before it writes the first: an
// answer is whole, or an error.
func (s *speaker) finish(ctx context.Context, out []byte, g get, send func([]byte) ([]byte, error)) (_ []byte, err error) {
	count := int64(0)
	for _, o := range g.orders {
		count += o.count
	}
	defer s.guest.Room(count + int64(len(g.orders)))()
	defer func() { s.orders, s.ranges = nil, nil }() // a large get leaves nothing behind
	ranges, todo := s.ranges[:0], g.orders
	if g.wait != nil {
		if ranges, err = g.wait.Result(ctx); err == nil {
			todo = todo[1:]
		}
	}
	for len(todo) > 0 && err == nil {
		ranges, err = s.guest.Next(ctx, todo[0].order(), ranges)
		todo = todo[1:]
	}
	if err != nil {
		out, _, then := s.failed(out, err)
		if then == stop {
			return out, err
		}
		return out, nil
	}
	s.gets++
	s.ids += int(count)
	return values(out, g.keys, ranges, g.cas, send)
}

func (s *speaker) failed(out []byte, err error) ([]byte, get, outcome) {
	reply := s.server.door.Failed(err, s.began)
	s.server.gets.Add(1)
	if reply == nil {
		return out, get{}, stop
	}
	s.server.misses.Add(1)
	return append(out, Refusal(reply)...), get{}, goOn
}

// stats appends what katsubushi's STATS has.
func (s *server) stats(out []byte) []byte {
	now := time.Now()
	for _, one := range []struct {
		name  string
		value any
	}{
		{"pid", os.Getpid()}, {"uptime", int64(now.Sub(s.started).Seconds())}, {"time", now.Unix()}, {"version", s.o.Version},
		{"curr_connections", s.open.Load()}, {"total_connections", s.total.Load()},
		{"cmd_get", s.gets.Load()}, {"get_hits", s.hits.Load()}, {"get_misses", s.misses.Load()},
	} {
		out = fmt.Appendf(out, "STAT %s %v\r\n", one.name, one.value)
	}
	return append(out, end...)
}
