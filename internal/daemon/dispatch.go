package daemon

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

// method answers one kind of request. It replies itself, or returns an error
// without having replied.
type method struct {
	name string
	call func(*Server, context.Context, *conn) error
}

// methods are all there are. They are few, and a switch over the bytes of the
// name costs no allocation.
var (
	methodNextID     = method{"NextID", (*Server).nextID}
	methodNextIDs    = method{"NextIDs", (*Server).nextIDs}
	methodInspect    = method{"Inspect", (*Server).inspect}
	methodBounds     = method{"Bounds", (*Server).bounds}
	methodToExternal = method{"ToExternal", (*Server).toExternal}
	methodToInternal = method{"ToInternal", (*Server).toInternal}
	methodStatus     = method{"Status", (*Server).statusCall}
	methodPing       = method{"Ping", (*Server).ping}
	methodUUID       = method{"UUID", (*Server).uuid}
)

// methodNames is for the error that names them.
var methodNames = []string{"NextID", "NextIDs", "Inspect", "Bounds", "ToExternal", "ToInternal", "Status", "Ping", "UUID"}

func methodOf(name []byte) *method {
	switch string(name) {
	case "NextID":
		return &methodNextID
	case "NextIDs":
		return &methodNextIDs
	case "Inspect":
		return &methodInspect
	case "Bounds":
		return &methodBounds
	case "ToExternal":
		return &methodToExternal
	case "ToInternal":
		return &methodToInternal
	case "Status":
		return &methodStatus
	case "Ping":
		return &methodPing
	case "UUID":
		return &methodUUID
	}
	return nil
}

// handle answers the connection's present request.
func (s *Server) handle(ctx context.Context, c *conn) {
	if c.req.Type != wire.TypeRequest {
		return // nobody waits for an answer
	}
	began := time.Now()
	s.requests.Add(1)
	m := methodOf(c.req.Method)
	var err error
	switch {
	case s.draining.Load():
		err = shuttingDown()
	case m == nil:
		err = wire.Errorf(wire.CodeUnknownMethod, "there is no method %s; there are %s",
			wire.Excerpt(c.req.Method), strings.Join(methodNames, ", "))
	default:
		err = m.call(s, ctx, c)
	}
	if err == nil {
		s.succeeded(m).Inc()
	} else {
		reply := s.wireError(err)
		s.failed(m, reply.Code).Inc()
		c.wire.ReplyError(c.req.ID, reply)
	}
	s.metrics.RPCDuration.Observe(time.Since(began).Seconds())
}

// succeeded is the counter of answers without an error.
func (s *Server) succeeded(m *method) prometheus.Counter {
	return s.metrics.Requests(m.name, "ok")
}

func (s *Server) failed(m *method, code wire.Code) prometheus.Counter {
	if m == nil {
		return s.metrics.Requests("", string(code)) // peers choose names, and must not choose labels
	}
	return s.metrics.Requests(m.name, string(code))
}

func shuttingDown() *wire.Error {
	return wire.Errorf(wire.CodeShuttingDown, "the daemon is stopping: connect again")
}

// service finds the service that a request names.
func (s *Server) service(name []byte) (*Service, error) {
	if len(name) == 0 {
		return s.services[s.cfg.DefaultService], nil
	}
	if svc, ok := s.services[string(name)]; ok {
		return svc, nil
	}
	return nil, wire.Errorf(wire.CodeUnknownService, "there is no service %s; there are %s",
		wire.Excerpt(name), strings.Join(s.names, ", "))
}

// unknownOption is the error for an option that the method does not have.
func unknownOption(name []byte, known string) error {
	return wire.Errorf(wire.CodeInvalidParams, "there is no option %s; there are %s", wire.Excerpt(name), known)
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

func (s *Server) ping(_ context.Context, c *conn) error {
	if err := c.req.End(); err != nil {
		return err
	}
	c.wire.ReplyString(c.req.ID, "pong")
	return nil
}

func (s *Server) uuid(_ context.Context, c *conn) error {
	version := int64(7)
	if c.req.NumParams() > 0 && !c.req.Nil() {
		var err error
		if version, err = c.req.Int64(); err != nil {
			return err
		}
	}
	if err := c.req.End(); err != nil {
		return err
	}
	var u uuid.UUID
	var err error
	switch version {
	case 4:
		u, err = uuid.NewRandom()
	case 7:
		u, err = uuid.NewV7()
	default:
		return wire.Errorf(wire.CodeInvalidParams, "UUID version %d: there are 4 and 7", version)
	}
	if err != nil {
		return err
	}
	c.wire.ReplyString(c.req.ID, u.String())
	return nil
}

// idParam is an ID as a peer gave it: an integer, or a string in one of the
// spellings of snowflake.ParseID.
type idParam struct {
	number uint64
	text   string
	isText bool
}

func (c *conn) idParam() (p idParam, err error) {
	switch c.req.Next() {
	case wire.KindString, wire.KindBinary:
		var text []byte
		text, err = c.req.Bytes()
		p.text, p.isText = string(text), true
	default:
		p.number, err = c.req.Uint64()
	}
	return p, err
}

// id reads the parameter, an external ID with the codec.
func (p idParam) id(codec snowflake.Codec) (snowflake.ID, error) {
	if !p.isText {
		if p.number>>snowflake.ValueBits != 0 {
			return 0, wire.Errorf(wire.CodeInvalidParams, "%d is no ID: its reserve bit is set", p.number)
		}
		return snowflake.ID(p.number), nil
	}
	id, err := snowflake.ParseID(p.text, codec)
	switch {
	case errors.Is(err, snowflake.ErrInvalidExternal):
		return 0, invalidExternal(p.text, err)
	case err != nil:
		return 0, wire.Errorf(wire.CodeInvalidParams, "%s: not decimal, hexadecimal or external", wire.Excerpt([]byte(p.text)))
	}
	return id, nil
}

func invalidExternal(text string, err error) error {
	return wire.Errorf(wire.CodeInvalidExternalID, "%s: %v", wire.Excerpt([]byte(text)), err)
}

// wireError turns what went wrong into what the peer is told.
func (s *Server) wireError(err error) *wire.Error {
	if e := asWireError(err); e != nil {
		return e
	}
	// Nothing that a peer can cause ends here.
	s.log.Error("request failed for a reason that has no code", zap.Error(err))
	return wire.Errorf(codeInternal, "%v", err)
}

// codeInternal marks a mistake in the daemon.
const codeInternal wire.Code = "INTERNAL"
