package daemon

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/wire"
)

// method answers one kind of request. It replies itself, or returns an error
// without having replied.
type method struct {
	name string
	call func(*Server, context.Context, *conn) error
}

// methods are all there are, the most frequent first.
var methods = []method{
	{"NextID", (*Server).nextID},
	{"NextIDs", (*Server).nextIDs},
	{"Inspect", (*Server).inspect},
	{"Bounds", (*Server).bounds},
	{"ToExternal", (*Server).toExternal},
	{"ToInternal", (*Server).toInternal},
	{"Status", (*Server).statusCall},
	{"Ping", (*Server).ping},
	{"UUID", (*Server).uuid},
	{"Lock.Acquire", (*Server).lockAcquire},
	{"Lock.Renew", (*Server).lockRenew},
	{"Lock.Release", (*Server).lockRelease},
	{"Lock.Get", (*Server).lockGet},
	{"Lock.List", (*Server).lockList},
	{"Lock.Watch", (*Server).lockWatch},
	{"Sequence.Next", (*Server).sequenceNext},
	{"Sequence.NextBatch", (*Server).sequenceNextBatch},
	{"Placement.Resolve", (*Server).placementResolve},
	{"Placement.Check", (*Server).placementCheck},
	{"Placement.Register", (*Server).placementRegister},
	{"Placement.Unregister", (*Server).placementUnregister},
	{"Placement.Watch", (*Server).placementWatch},
	{"Placement.Snapshot", (*Server).placementSnapshot},
}

// countedMethod is a method with the counter of its answers without an error,
// which is too dear to be looked up for every request.
type countedMethod struct {
	method
	succeeded prometheus.Counter
}

func countMethods(m *metrics.Metrics) []countedMethod {
	counted := make([]countedMethod, len(methods))
	for i, one := range methods {
		counted[i] = countedMethod{one, m.Requests(one.name, "ok")}
	}
	return counted
}

// method finds a method by its name, nil if there is none. The methods are few:
// comparing costs less than hashing would.
func (s *Server) method(name []byte) *countedMethod {
	for i := range s.methods {
		if m := &s.methods[i]; m.name == string(name) {
			return m
		}
	}
	return nil
}

// handle answers the connection's present request.
func (s *Server) handle(ctx context.Context, c *conn) {
	if c.req.Type != wire.TypeRequest {
		// In the lane nobody is asked, and no lock may be waited for.
		if c.req.Type == wire.TypeResponse && !c.hurried {
			if e := s.executorOf(c); e != nil {
				e.calls.answer(&c.req)
			}
		}
		return // nobody waits for an answer
	}
	began := s.elapsed()
	s.requests.Add(1)
	m := s.method(c.req.Method)
	switch err := s.call(ctx, m, c); {
	case errors.Is(err, errWaits):
		c.waits.method, c.waits.began = m, began
	case errors.Is(err, errLater):
		s.answerLater(ctx, c, m, began)
	case errors.Is(err, errHeavy):
		c.heavy = true
		s.requests.Add(^uint64(0)) // it comes again, elsewhere
	default:
		s.finish(c, c.req.ID, m, began, err)
	}
}

// elapsed is the time since the start, which costs half of what time.Now does.
func (s *Server) elapsed() time.Duration { return time.Since(s.started) }

// finish counts a request that was answered, or answers it with the error.
func (s *Server) finish(c *conn, id uint32, m *countedMethod, began time.Duration, err error) {
	switch {
	case err == nil:
		m.succeeded.Inc()
	case errors.Is(err, errHungUp):
		return // nobody waits any more
	default:
		reply := s.wireError(err)
		s.failed(m, reply.Code).Inc()
		c.wire.ReplyError(id, reply)
	}
	s.metrics.RPCDuration.Observe(s.elapsed()-began, 1)
}

func (s *Server) call(ctx context.Context, m *countedMethod, c *conn) error {
	switch {
	case s.draining.Load():
		return shuttingDown()
	case m == nil:
		var names []string
		for _, one := range methods {
			names = append(names, one.name)
		}
		return wire.Errorf(wire.CodeUnknownMethod, "there is no method %s; there are %s",
			wire.Excerpt(c.req.Method), strings.Join(names, ", "))
	}
	return m.call(s, ctx, c)
}

// failed is the counter of answers with an error.
func (s *Server) failed(m *countedMethod, code wire.Code) prometheus.Counter {
	if m == nil {
		return s.metrics.Requests("", string(code)) // peers choose names, and must not choose labels
	}
	return s.metrics.Requests(m.name, string(code))
}

// service finds the service that a request names.
func (s *Server) service(name []byte) (*Service, error) {
	if len(name) == 0 {
		return s.usual, nil
	}
	if svc, ok := s.services[string(name)]; ok {
		return svc, nil
	}
	return nil, wire.Errorf(wire.CodeUnknownService, "there is no service %s; there are %s",
		wire.Excerpt(name), strings.Join(s.names, ", "))
}

// options reads the options of a method: the service, and what other knows.
func (s *Server) options(c *conn, known string, other func(name string) (bool, error)) (*Service, error) {
	if err := c.req.Options(); err != nil {
		return nil, err
	}
	var service []byte
	for {
		name, ok, err := c.req.NextOption()
		if err != nil {
			return nil, err
		}
		if !ok {
			return s.service(service)
		}
		if string(name) == "service" {
			if service, err = c.req.Bytes(); err != nil {
				return nil, err
			}
			continue
		}
		ok = false
		if other != nil {
			if ok, err = other(string(name)); err != nil {
				return nil, err
			}
		}
		if !ok {
			return nil, unknownOption(name, known)
		}
	}
}

// eachOption has read take the value of each option of a method, and refuses
// those that it does not have.
func (c *conn) eachOption(known []string, read func(name string) error) error {
	if err := c.req.Options(); err != nil {
		return err
	}
	for {
		name, ok, err := c.req.NextOption()
		if err != nil || !ok {
			return err
		}
		if !slices.Contains(known, string(name)) {
			return unknownOption(name, cmp.Or(strings.Join(known, ", "), "none"))
		}
		if err := read(string(name)); err != nil {
			return err
		}
	}
}

// milliseconds is a duration from 0 to the most, the value of the option.
func (c *conn) milliseconds(option string, most time.Duration) (time.Duration, error) {
	ms, err := c.req.Int64()
	if err == nil && (ms < 0 || ms > most.Milliseconds()) {
		err = wire.Errorf(wire.CodeInvalidParams, "%s of %d is out of range: 0 to %d", option, ms, most.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, err
}

// text is a string that outlives the request.
func (c *conn) text() (string, error) {
	b, err := c.req.Bytes()
	return string(b), err
}
