package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/wire"
)

// longBatch is from how many values on an answer is a long one.
const longBatch = 1000

// Sequences configures the sequence methods.
type Sequences struct {
	Store sequence.Store
	// Options says how a key counts, unless the request does.
	Options func(key string) sequence.Options
	Timeout time.Duration // of one call of the store
}

// sequenceOptions are the options of the sequence methods.
var sequenceOptions = []string{"request_id", "block", "step", "start", "max_value", "on_max", "ttl_ms"}

func (s *Server) sequenceNext(_ context.Context, d *responder) error {
	return s.sequence(d, func() (int64, error) { return 1, nil }, func(values sequence.Range) any { return values.First })
}

func (s *Server) sequenceNextBatch(_ context.Context, d *responder) error {
	return s.sequence(d, d.req.Int64, func(values sequence.Range) any { return values.Values() })
}

// sequence answers with values of a key. count reads how many, behind the key.
func (s *Server) sequence(d *responder, count func() (int64, error), answer func(sequence.Range) any) error {
	if s.cfg.Sequences == nil {
		return noStore()
	}
	r, err := s.sequenceRequest(d, count)
	if err != nil {
		return err
	}
	aside := d.asideWithin
	if r.Count > longBatch {
		aside = d.asideLong
	}
	return aside(s.cfg.Sequences.Timeout, func(ctx context.Context) (any, error) {
		values, err := s.cfg.Sequences.Store.Next(ctx, r)
		s.keyedStores.Sequence(sequence.Outcome(err), values.Count)
		switch {
		case err == nil:
			return answer(values), nil
		case sequence.IsAnswer(err):
			return nil, err
		}
		return nil, storeError{err}
	})
}

func (s *Server) sequenceRequest(d *responder, count func() (int64, error)) (r sequence.Request, err error) {
	if d.req.NumParams() == 0 {
		return r, wire.Errorf(wire.CodeInvalidParams, "%s needs a key", d.req.Method)
	}
	if r.Key, err = d.text(); err != nil {
		return r, err
	}
	n, err := count()
	switch {
	case err != nil:
		return r, err
	case n < 1 || n > sequence.MaxCount:
		return r, wire.Errorf(wire.CodeInvalidParams, "a count of %d is out of range: 1 to %d", n, sequence.MaxCount)
	}
	r.Tenant, r.Count, r.Options = localTenant, int(n), s.cfg.Sequences.Options(r.Key)
	return r, d.eachOption(sequenceOptions, func(name string) error { return d.sequenceOption(name, &r) })
}

func (d *responder) sequenceOption(name string, r *sequence.Request) (err error) {
	var n int64
	switch name {
	case "request_id":
		r.RequestID, err = d.text()
		return err
	case "on_max":
		var text string
		text, err = d.text()
		r.Options.OnMax = sequence.OnMax(text)
		return err
	case "ttl_ms":
		r.Options.TTL, err = d.milliseconds(name, sequence.MaxTTL)
		return err
	}
	if n, err = d.req.Int64(); err != nil {
		return err
	}
	switch name {
	case "block":
		if n < 0 || n > sequence.MaxCount {
			return wire.Errorf(wire.CodeInvalidParams, "a block of %d is out of range: 0 to %d", n, sequence.MaxCount)
		}
		r.Options.Block = int(n)
	case "step":
		r.Options.Step = n
	case "start":
		r.Options.Start, r.Options.StartSet = n, true
	case "max_value":
		r.Options.Max = n
	}
	return nil
}

// storeError is a failure of a store, as opposed to an answer: the outcome of the request is
// unknown.
type storeError struct{ error }

func (e storeError) Unwrap() error { return e.error }

// sequenceError gives the code of an error of a sequence method.
func sequenceError(err error) *wire.Error {
	var exhausted *sequence.ExhaustedError
	var fenced *sequence.FencedError
	switch {
	case errors.As(err, &exhausted):
		return wire.Errorf(wire.CodeSequenceExhausted, "the sequence has no more values").
			With("max_value", exhausted.Max).With("left", exhausted.Left)
	case errors.As(err, &fenced):
		return wire.Errorf(wire.CodeSequenceFenced, "%v", fenced).With("until_ms", fenced.UntilMS)
	case errors.Is(err, sequence.ErrRequestReused):
		return wire.Errorf(wire.CodeRequestIDReused, "%v", err)
	case errors.Is(err, sequence.ErrInvalid):
		return wire.Errorf(wire.CodeInvalidParams, "%v", err)
	}
	return nil
}
