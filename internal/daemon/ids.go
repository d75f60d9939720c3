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
	c.ranges = keepSmall(c.ranges)
	c.ranges, err = r.service.gen.Next(ctx, r.want, c.ranges)
	return err
}

// keepSmall reuses the slice unless a huge batch has made it large: idle
// connections must cost little.
func keepSmall(ranges []generator.Range) []generator.Range {
	const most = 64
	if cap(ranges) > most {
		return nil
	}
	return ranges[:0]
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

// asWireError gives the code of an error that has one.
func asWireError(err error) *wire.Error {
	var wired *wire.Error
	var backward *generator.ClockBackwardError
	var acquisition *generator.LeaseAcquisitionError
	var timeout *generator.TimeoutError
	switch {
	case errors.As(err, &wired):
		return wired
	case errors.As(err, &backward):
		return wire.Errorf(wire.CodeClockBackward, "the clock is behind the last ID: let NTP slew the clock instead of stepping it").
			With("backward_ms", backward.BackwardMS).With("limit_ms", backward.LimitMS)
	case errors.As(err, &acquisition):
		cause := "no lease is valid now"
		if acquisition.Cause != nil {
			cause = acquisition.Cause.Error()
		}
		return wire.Errorf(wire.CodeLeaseAcquisition, "no valid lease, and a fallback ID was not allowed").With("cause", cause)
	case errors.As(err, &timeout):
		return wire.Errorf(wire.CodeTimeout, "no ID in time").
			With("waited_ms", timeout.Waited.Milliseconds()).With("cause", timeout.For)
	case errors.Is(err, generator.ErrNoProvider):
		return wire.Errorf(wire.CodeNoProvider, "%v", generator.ErrNoProvider)
	case errors.Is(err, generator.ErrOverflow):
		return wire.Errorf(wire.CodeTimestampOverflow, "%v", generator.ErrOverflow)
	case errors.Is(err, generator.ErrStopped), errors.Is(err, errShuttingDown):
		return shuttingDown()
	}
	return nil
}
