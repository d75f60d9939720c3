package daemon

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

// serviceOption is the option of methods that have no other.
var serviceOption = []string{"service"}

func (s *Server) inspect(_ context.Context, d *responder) error {
	svc, id, err := s.oneID(d)
	if err != nil {
		return err
	}
	in, err := snowflake.Inspect(id, svc.Layout(), svc.Timeline().EpochMS, *svc.Codec())
	if err != nil {
		return wire.Errorf(wire.CodeInvalidParams, "%v", err)
	}
	return d.out.ReplyAny(d.req.ID, map[string]any{
		"id": uint64(in.ID), "external": in.External, "timestamp_ms": in.TimestampMS, "time": in.Time,
		"machine_id": in.MachineID, "sequence": in.Sequence, "kind": in.Kind,
		"bit_id": in.BitID, "bit_seq": in.BitSeq, "epoch_ms": in.EpochMS,
	})
}

func (s *Server) boundsCall(_ context.Context, d *responder) error {
	if d.req.NumParams() < 2 {
		return wire.Errorf(wire.CodeInvalidParams, "Bounds needs from_ms and to_ms, in Unix milliseconds")
	}
	from, err := d.req.Int64()
	if err != nil {
		return err
	}
	to, err := d.req.Int64()
	if err != nil {
		return err
	}
	svc, err := s.options(d, serviceOption, nil)
	if err != nil {
		return err
	}
	smallest, largest, err := svc.Timeline().Bounds(time.UnixMilli(from), time.UnixMilli(to))
	if err != nil {
		return wire.Errorf(wire.CodeInvalidParams, "%v", err)
	}
	d.out.BeginArray(d.req.ID, 2)
	d.out.AppendRange(uint64(smallest), 1)
	d.out.AppendRange(uint64(largest), 1)
	return nil
}

func (s *Server) toExternal(_ context.Context, d *responder) error {
	svc, id, err := s.oneID(d)
	if err != nil {
		return err
	}
	d.out.ReplyString(d.req.ID, svc.Codec().Encode(id))
	return nil
}

func (s *Server) toInternal(_ context.Context, d *responder) error {
	if d.req.NumParams() == 0 {
		return wire.Errorf(wire.CodeInvalidParams, "ToInternal needs an external ID")
	}
	raw, err := d.req.Bytes()
	if err != nil {
		return err
	}
	text := string(raw)
	latest, limited := int64(0), false
	svc, err := s.options(d, []string{"service", "latest_ms"}, func(string) (err error) {
		latest, err = d.req.Int64()
		limited = true
		return err
	})
	if err != nil {
		return err
	}
	var id snowflake.ID
	if limited {
		id, err = svc.Codec().DecodeBefore(text, svc.Timeline(), latest)
	} else {
		id, err = svc.Codec().Decode(text)
	}
	if errors.Is(err, snowflake.ErrInvalidExternal) {
		return invalidExternal(text, err)
	}
	if err != nil {
		return err
	}
	d.out.ReplyUint64(d.req.ID, uint64(id))
	return nil
}

func (s *Server) ping(_ context.Context, d *responder) error {
	if err := d.req.End(); err != nil {
		return err
	}
	d.out.ReplyString(d.req.ID, "pong")
	return nil
}

func (s *Server) uuid(_ context.Context, d *responder) error {
	version := int64(cmp.Or(s.cfg.UUIDVersion, 7))
	if d.req.NumParams() > 0 && !d.req.Nil() {
		var err error
		if version, err = d.req.Int64(); err != nil {
			return err
		}
	}
	if err := d.req.End(); err != nil {
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
	d.out.ReplyString(d.req.ID, u.String())
	return nil
}

// oneID reads the parameters of a method that takes an ID, and a service; the service's codec
// reads an external ID.
func (s *Server) oneID(d *responder) (*issuer.Service, snowflake.ID, error) {
	if d.req.NumParams() == 0 {
		return nil, 0, wire.Errorf(wire.CodeInvalidParams, "%s needs an ID", d.req.Method)
	}
	param, err := d.idParam()
	if err != nil {
		return nil, 0, err
	}
	svc, err := s.options(d, serviceOption, nil)
	if err != nil {
		return nil, 0, err
	}
	id, err := param.id(*svc.Codec())
	return svc, id, err
}

// idParam is an ID as a peer gave it: an integer, or a string in one of the
// spellings of snowflake.ParseID.
type idParam struct {
	number uint64
	text   string
	isText bool
}

func (d *responder) idParam() (p idParam, err error) {
	switch d.req.Next() {
	case wire.KindString, wire.KindBinary:
		var text []byte
		text, err = d.req.Bytes()
		p.text, p.isText = string(text), true
	default:
		p.number, err = d.req.Uint64()
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
		return 0, wire.Errorf(wire.CodeInvalidParams, "%s is no ID: not decimal or hexadecimal with at most 63 bits, nor external", wire.Excerpt([]byte(p.text)))
	}
	return id, nil
}
