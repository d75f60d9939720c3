package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

func (s *Server) inspect(_ context.Context, c *conn) error {
	if c.req.NumParams() == 0 {
		return wire.Errorf(wire.CodeInvalidParams, "Inspect needs an ID")
	}
	param, err := c.idParam()
	if err != nil {
		return err
	}
	svc, err := s.options(c, "service", nil)
	if err != nil {
		return err
	}
	id, err := param.id(svc.codec)
	if err != nil {
		return err
	}
	in, err := snowflake.Inspect(id, svc.layout(), svc.present().EpochMS, svc.codec)
	if err != nil {
		return wire.Errorf(wire.CodeInvalidParams, "%v", err)
	}
	return c.wire.ReplyAny(c.req.ID, map[string]any{
		"id": uint64(in.ID), "external": in.External, "timestamp_ms": in.TimestampMS, "time": in.Time,
		"machine_id": in.MachineID, "sequence": in.Sequence, "kind": in.Kind,
		"bit_id": in.BitID, "bit_seq": in.BitSeq, "epoch_ms": in.EpochMS,
	})
}

func (s *Server) bounds(_ context.Context, c *conn) error {
	if c.req.NumParams() < 2 {
		return wire.Errorf(wire.CodeInvalidParams, "Bounds needs from_ms and to_ms, in Unix milliseconds")
	}
	from, err := c.req.Int64()
	if err != nil {
		return err
	}
	to, err := c.req.Int64()
	if err != nil {
		return err
	}
	svc, err := s.options(c, "service", nil)
	if err != nil {
		return err
	}
	smallest, largest, err := svc.present().Bounds(time.UnixMilli(from), time.UnixMilli(to))
	if err != nil {
		return wire.Errorf(wire.CodeInvalidParams, "%v", err)
	}
	c.wire.BeginArray(c.req.ID, 2)
	c.wire.AppendRange(uint64(smallest), 1)
	c.wire.AppendRange(uint64(largest), 1)
	return nil
}

func (s *Server) toExternal(_ context.Context, c *conn) error {
	if c.req.NumParams() == 0 {
		return wire.Errorf(wire.CodeInvalidParams, "ToExternal needs an ID")
	}
	param, err := c.idParam()
	if err != nil {
		return err
	}
	svc, err := s.options(c, "service", nil)
	if err != nil {
		return err
	}
	id, err := param.id(svc.codec)
	if err != nil {
		return err
	}
	c.wire.ReplyString(c.req.ID, svc.codec.Encode(id))
	return nil
}

func (s *Server) toInternal(_ context.Context, c *conn) error {
	if c.req.NumParams() == 0 {
		return wire.Errorf(wire.CodeInvalidParams, "ToInternal needs an external ID")
	}
	raw, err := c.req.Bytes()
	if err != nil {
		return err
	}
	text := string(raw)
	latest := int64(-1)
	svc, err := s.options(c, "service, latest_ms", func(name string) (bool, error) {
		if name != "latest_ms" {
			return false, nil
		}
		var err error
		latest, err = c.req.Int64()
		return true, err
	})
	if err != nil {
		return err
	}
	var id snowflake.ID
	if latest >= 0 {
		id, err = svc.codec.DecodeBefore(text, svc.present(), latest)
	} else {
		id, err = svc.codec.Decode(text)
	}
	if errors.Is(err, snowflake.ErrInvalidExternal) {
		return invalidExternal(text, err)
	}
	if err != nil {
		return err
	}
	c.wire.ReplyUint64(c.req.ID, uint64(id))
	return nil
}
