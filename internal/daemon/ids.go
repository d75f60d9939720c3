package daemon

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// MaxBatch is the largest count of one NextIDs.
	MaxBatch = 65_536
	// defaultTimeout and maxTimeout bound how long a request waits for IDs.
	defaultTimeout = 10 * time.Second
	maxTimeout     = time.Hour
)

type idFormat uint8

const (
	formatInt idFormat = iota
	formatString
	formatExternal
)

// idRequest is what NextID and NextIDs are asked for.
type idRequest struct {
	service *Service
	format  idFormat
	want    generator.Request
}

func (s *Server) nextID(ctx context.Context, c *conn) error {
	r, err := s.idOptions(c, 1)
	if err != nil {
		return err
	}
	if err := s.generate(ctx, c, r); err != nil {
		return err
	}
	id := c.ranges[0].Start
	switch r.format {
	case formatString:
		c.wire.ReplyString(c.req.ID, strconv.FormatInt(int64(id), 10))
	case formatExternal:
		c.wire.ReplyString(c.req.ID, r.service.codec.Encode(id))
	default:
		c.wire.ReplyUint64(c.req.ID, uint64(id))
	}
	return nil
}

func (s *Server) nextIDs(ctx context.Context, c *conn) error {
	if c.req.NumParams() == 0 {
		return wire.Errorf(wire.CodeInvalidParams, "NextIDs needs a count")
	}
	count, err := c.req.Int64()
	if err != nil {
		return err
	}
	if count < 1 || count > MaxBatch {
		return wire.Errorf(wire.CodeInvalidParams, "a count of %d is out of range: 1 to %d", count, MaxBatch)
	}
	r, err := s.idOptions(c, count)
	if err != nil {
		return err
	}
	if err := s.generate(ctx, c, r); err != nil {
		return err
	}
	c.wire.BeginArray(c.req.ID, int(count))
	for _, g := range c.ranges {
		if r.format == formatInt {
			c.wire.AppendRange(uint64(g.Start), int(g.Count))
			continue
		}
		for i := range g.Count {
			id := g.Start + snowflake.ID(i)
			if r.format == formatExternal {
				c.wire.AppendString(r.service.codec.Encode(id))
			} else {
				c.wire.AppendString(strconv.FormatInt(int64(id), 10))
			}
		}
	}
	return nil
}

// generate puts the IDs into c.ranges.
func (s *Server) generate(ctx context.Context, c *conn, r idRequest) (err error) {
	if s.inFlight.Add(1) > int64(s.cfg.MaxInFlight) {
		s.inFlight.Add(-1)
		return wire.Errorf(wire.CodeOverloaded, "%d requests are waiting already, and more may not: see max_in_flight", s.cfg.MaxInFlight)
	}
	defer s.inFlight.Add(-1)
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	if len(c.wire.Unsent()) > 0 {
		if done, err := c.goAhead(ctx, r); done || err != nil {
			return err
		}
	}
	c.ranges, err = r.service.gen.Next(ctx, r.want, c.ranges[:0])
	return err
}

// goAhead keeps answers that are ready from waiting together with a request
// that has to: they are written first, except where a millisecond or so is all
// there is to wait for. It reports whether the request got its ID meanwhile.
func (c *conn) goAhead(ctx context.Context, r idRequest) (done bool, err error) {
	if r.want.Count == 1 { // a batch would lose what it got; it is also worth a write of its own
		try := r.want
		try.Timeout = 0
		c.ranges, err = r.service.gen.Next(ctx, try, c.ranges[:0])
		if err == nil || r.want.Timeout == 0 {
			return true, err
		}
		var timeout *generator.TimeoutError
		if !errors.As(err, &timeout) {
			return true, err
		}
		if timeout.For == generator.WaitSequence {
			return false, nil
		}
	}
	if c.wire.Flush() != nil {
		return false, errHungUp
	}
	return false, nil
}

// keepSmall reuses the slice unless a huge batch has made it large: idle
// connections must cost little.
func keepSmall(ranges []generator.Range) []generator.Range {
	const most = 64
	if cap(ranges) > most {
		return nil
	}
	return ranges
}

const idOptionNames = "service, timeout_ms, format, regular_only"

func (s *Server) idOptions(c *conn, count int64) (idRequest, error) {
	r := idRequest{want: generator.Request{Count: count, Timeout: defaultTimeout}}
	if err := c.req.Options(); err != nil {
		return r, err
	}
	var service []byte
	for {
		name, ok, err := c.req.NextOption()
		if err != nil {
			return r, err
		}
		if !ok {
			r.service, err = s.service(service)
			return r, err
		}
		switch string(name) {
		case "service":
			service, err = c.req.Bytes()
		case "timeout_ms":
			r.want.Timeout, err = c.timeoutOption()
		case "format":
			r.format, err = c.formatOption()
		case "regular_only":
			r.want.RegularOnly, err = c.req.Bool()
		default:
			err = unknownOption(name, idOptionNames)
		}
		if err != nil {
			return r, err
		}
	}
}

func (c *conn) timeoutOption() (time.Duration, error) {
	ms, err := c.req.Int64()
	if err != nil {
		return 0, err
	}
	if ms < 0 || ms > maxTimeout.Milliseconds() {
		return 0, wire.Errorf(wire.CodeInvalidParams, "timeout_ms of %d is out of range: 0 to %d", ms, maxTimeout.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (c *conn) formatOption() (idFormat, error) {
	text, err := c.req.Bytes()
	if err != nil {
		return 0, err
	}
	switch string(text) {
	case "int":
		return formatInt, nil
	case "string":
		return formatString, nil
	case "external":
		return formatExternal, nil
	}
	return 0, wire.Errorf(wire.CodeInvalidParams, "there is no format %s; there are int, string, external", wire.Excerpt(text))
}
