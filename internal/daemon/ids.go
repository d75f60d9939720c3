package daemon

import (
	"context"
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

// idRequest is what NextID or NextIDs is asked for.
type idRequest struct {
	id      uint32 // of the message
	single  bool   // NextID: one ID, not an array of one
	service *Service
	format  idFormat
	want    generator.Request
}

func (s *Server) nextID(ctx context.Context, c *conn) error {
	r, err := s.idOptions(c, 1)
	if err != nil {
		return err
	}
	r.single = true
	return s.issue(ctx, c, r)
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
	return s.issue(ctx, c, r)
}

// issue answers with the IDs. Where they have to be waited for it waits; for a
// connection in the lane it leaves that to its caller, by errWaits.
func (s *Server) issue(ctx context.Context, c *conn, r idRequest) error {
	if c.hurried && r.heavy() {
		return errHeavy
	}
	ranges, pending, err := r.service.gen.Start(c.reading, r.want, c.ranges[:0])
	if pending != nil {
		c.ranges = nil // they are the pending request's now
		if err := s.enter(pending); err != nil {
			return err
		}
		if c.hurried {
			c.waits = &waiting{request: r, pending: pending}
			return errWaits
		}
		ranges, err = c.await(ctx, pending)
	}
	c.ranges = ranges
	if err != nil {
		return err
	}
	c.reply(r)
	return nil
}

// reply answers with the IDs in c.ranges.
func (c *conn) reply(r idRequest) {
	defer func() { c.ranges = keepSmall(c.ranges) }()
	if r.single {
		id := c.ranges[0].Start
		switch r.format {
		case formatString:
			c.wire.ReplyString(r.id, strconv.FormatInt(int64(id), 10))
		case formatExternal:
			c.wire.ReplyString(r.id, r.service.external.Load().Encode(id))
		default:
			c.wire.ReplyUint64(r.id, uint64(id))
		}
		return
	}
	c.wire.BeginArray(r.id, int(r.want.Count))
	codec := r.service.external.Load() // one for the whole answer
	for _, g := range c.ranges {
		if r.format == formatInt {
			c.wire.AppendRange(uint64(g.Start), int(g.Count))
			continue
		}
		for i := range g.Count {
			id := g.Start + snowflake.ID(i)
			if r.format == formatExternal {
				c.wire.AppendString(codec.Encode(id))
			} else {
				c.wire.AppendString(strconv.FormatInt(int64(id), 10))
			}
		}
	}
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
	r := idRequest{id: c.req.ID, want: generator.Request{Count: count, Timeout: defaultTimeout}}
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
			r.want.Timeout, err = c.milliseconds("timeout_ms", maxTimeout)
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
