package daemon

import (
	"context"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// MaxBatch is the largest count of one NextIDs.
	MaxBatch = 65_536
	// DefaultTimeout is how long a request that names no time waits for IDs, and MaxTimeout the
	// longest time that it can name.
	DefaultTimeout = 10 * time.Second
	MaxTimeout     = time.Hour
)

type idFormat uint8

const (
	formatInt idFormat = iota
	formatString
	formatExternal
)

// idRequest is what NextID or NextIDs is asked for.
type idRequest struct {
	id        uint32 // of the message
	single    bool   // NextID: one ID, not an array of one
	service   *issuer.Service
	generator *generator.Generator // of the service
	format    idFormat
	want      generator.Request
}

func (s *Server) nextID(_ context.Context, d *responder) error {
	r, err := s.idOptions(d, 1)
	if err != nil {
		return err
	}
	r.single = true
	return s.issue(d, &r)
}

func (s *Server) nextIDs(_ context.Context, d *responder) error {
	if d.req.NumParams() == 0 {
		return wire.Errorf(wire.CodeInvalidParams, "NextIDs needs a count")
	}
	count, err := d.req.Int64()
	if err != nil {
		return err
	}
	if count < 1 || count > MaxBatch {
		return wire.Errorf(wire.CodeInvalidParams, "a count of %d is out of range: 1 to %d", count, MaxBatch)
	}
	r, err := s.idOptions(d, count)
	if err != nil {
		return err
	}
	return s.issue(d, &r)
}

// issue answers with the IDs, unless the answer takes too long for the fast path.
func (s *Server) issue(d *responder, r *idRequest) error {
	if d.conn == nil && r.heavy() {
		return errHeavy
	}
	return d.issue(r)
}

const (
	// maxFastPathBatch is how many IDs of one request may be made on the fast path, where all
	// other requests wait meanwhile.
	maxFastPathBatch = 4096
	// maxFastPathTexts is the same for IDs as text.
	maxFastPathTexts = 256
)

// heavy reports whether the answer takes longer than others may be kept
// waiting, or more memory than a peer that does not read it may take.
func (r *idRequest) heavy() bool {
	if r.format == formatInt {
		return r.want.Count > maxFastPathBatch
	}
	return r.want.Count > maxFastPathTexts
}

var idOptionNames = []string{"service", "timeout_ms", "format", "regular_only"}

func (s *Server) idOptions(d *responder, count int64) (idRequest, error) {
	r := idRequest{id: d.req.ID, want: generator.Request{Count: count, Timeout: DefaultTimeout}}
	service, err := s.options(d, idOptionNames, func(name string) (err error) {
		switch name {
		case "timeout_ms":
			r.want.Timeout, err = d.milliseconds(name, MaxTimeout)
		case "format":
			r.format, err = d.formatOption()
		case "regular_only":
			r.want.RegularOnly, err = d.req.Bool()
		}
		return err
	})
	if err == nil {
		r.service, r.generator = service, service.Generator()
	}
	return r, err
}

func (d *responder) formatOption() (idFormat, error) {
	text, err := d.req.Bytes()
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
