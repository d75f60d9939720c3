package daemon

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/wire"
)

// method answers one kind of request. It replies itself, or returns an error
// without having replied.
type method struct {
	name string
	call func(*Server, context.Context, *responder) error
}

// methods are all there are, the most frequent first.
var methods = []method{
	{"NextID", (*Server).nextID},
	{"NextIDs", (*Server).nextIDs},
	{"Inspect", (*Server).inspect},
	{"Bounds", (*Server).boundsCall},
	{"ToExternal", (*Server).toExternal},
	{"ToInternal", (*Server).toInternal},
	{"Status", (*Server).statusCall},
	{"Ping", (*Server).ping},
	{"UUID", (*Server).uuid},
	{"Lock.Acquire", (*Server).lockAcquire},
	{"Lock.Renew", lockChange(lock.Renew, "ttl_ms", "lease_id", "request_id")},
	{"Lock.Release", lockChange(lock.Release, "lease_id", "request_id")},
	{"Lock.Get", (*Server).lockGet},
	{"Lock.List", (*Server).lockList},
	{"Lock.Watch", (*Server).lockWatch},
	{"Sequence.Next", (*Server).sequenceNext},
	{"Sequence.NextBatch", (*Server).sequenceNextBatch},
	{"Placement.Resolve", placing((*Placement).resolve)},
	{"Placement.Check", placing((*Placement).check)},
	{"Placement.Register", placing((*Placement).register)},
	{"Placement.Unregister", placing((*Placement).unregister)},
	{"Placement.Watch", placing((*Placement).watch)},
	{"Placement.Snapshot", placing((*Placement).snapshot)},
}

// countedMethod is a method with the counter of its answers without an error,
// which is too dear to be looked up for every request. Its series begins with the
// first one.
type countedMethod struct {
	method
	succeeded func() prometheus.Counter
}

func countMethods(m *metrics.Metrics) []countedMethod {
	counted := make([]countedMethod, len(methods))
	for i, one := range methods {
		counted[i] = countedMethod{one, sync.OnceValue(func() prometheus.Counter { return m.Requests(one.name, "ok") })}
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

func (s *Server) call(ctx context.Context, m *countedMethod, d *responder) error {
	switch {
	case s.draining.Load():
		return shuttingDown()
	case m == nil:
		var names []string
		for _, one := range methods {
			names = append(names, one.name)
		}
		return wire.Errorf(wire.CodeUnknownMethod, "there is no method %s; there are %s",
			wire.Excerpt(d.req.Method), strings.Join(names, ", "))
	}
	return m.call(s, ctx, d)
}

// failed is the counter of answers with an error.
func (s *Server) failed(m *countedMethod, code wire.Code) prometheus.Counter {
	if m == nil {
		return s.metrics.Requests("", string(code)) // peers choose names, and must not choose labels
	}
	return s.metrics.Requests(m.name, string(code))
}

// service finds the service that a request names.
func (s *Server) service(name []byte) (*issuer.Service, error) {
	if len(name) == 0 {
		return s.defaultService, nil
	}
	return s.named(name)
}

func (s *Server) named(name []byte) (*issuer.Service, error) {
	if svc, ok := s.services[string(name)]; ok {
		return svc, nil
	}
	return nil, wire.Errorf(wire.CodeUnknownService, "there is no service %s; there are %s",
		wire.Excerpt(name), strings.Join(s.names, ", "))
}

// options reads the options of a method, of which service is one. The others are for read.
func (s *Server) options(d *responder, known []string, read func(name string) error) (*issuer.Service, error) {
	var service []byte
	err := d.eachOption(known, func(name string) (err error) {
		if name != "service" {
			return read(name)
		}
		service, err = d.req.Bytes()
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.service(service)
}

// eachOption has read take the value of each option of a method, and refuses unknown options.
func (d *responder) eachOption(known []string, read func(name string) error) error {
	if err := d.req.Options(); err != nil {
		return err
	}
	for {
		name, ok, err := d.req.NextOption()
		if err != nil || !ok {
			return err
		}
		at := 0 // the known name is not made anew for each request
		for at < len(known) && known[at] != string(name) {
			at++
		}
		if at == len(known) {
			return wire.Errorf(wire.CodeInvalidParams, "there is no option %s; there are %s", wire.Excerpt(name), cmp.Or(strings.Join(known, ", "), "none"))
		}
		if err := read(known[at]); err != nil {
			return err
		}
	}
}

// milliseconds is a duration from 0 to the most, the value of the option.
func (d *responder) milliseconds(option string, most time.Duration) (time.Duration, error) {
	ms, err := d.req.Int64()
	if err == nil && (ms < 0 || ms > most.Milliseconds()) {
		err = wire.Errorf(wire.CodeInvalidParams, "%s of %d is out of range: 0 to %d", option, ms, most.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, err
}

// text is a string that outlives the request.
func (d *responder) text() (string, error) {
	b, err := d.req.Bytes()
	return string(b), err
}
