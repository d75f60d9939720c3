package leaseserver

import (
	"context"
	"errors"
	"net/http"

	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/sequence"
	sequencehttp "github.com/kazahana/kazahana/internal/sequence/http"
)

// Sequences configures the sequence service.
type Sequences struct {
	Store sequence.Store
	// Options says how a key of a tenant counts, and whether that is configured: if
	// so, no request may say otherwise. Optional.
	Options func(tenant, key string) (o sequence.Options, configured bool)
}

var errNoSequences = problem.New(problem.NotSupported, "this server has no store for sequences")

func (q *Sequences) options(tenant, key string, in sequencehttp.Counting) (sequence.Options, error) {
	base, configured := sequence.DefaultOptions(), false
	if q.Options != nil {
		if o, ok := q.Options(tenant, key); ok {
			base, configured = o, true
		}
	}
	base.Block = 0 // blocks belong to hosts
	asked, err := in.Options(base)
	if err == nil && configured && asked.Text() != base.Text() {
		err = &sequence.MismatchError{Key: key, Recorded: base.Text(), Asked: asked.Text()}
	}
	return asked, err
}

func (s *Server) sequenceNext(w http.ResponseWriter, r *http.Request, who Credential) error {
	if s.o.Sequences == nil {
		return errNoSequences
	}
	var in sequencehttp.Request
	if err := readStrict(r, &in); err != nil {
		return err
	}
	req := sequence.Request{Tenant: who.Tenant, Key: pathKey(r), Count: 1, AtLeast: in.AtLeast}
	err := sameKey(r, sequencehttp.ParamKey, req.Key, in.Key)
	if err != nil {
		return err
	}
	if req.RequestID, err = who.markRequestID(in.RequestID); err != nil {
		return err
	}
	if in.Count != nil {
		req.Count = *in.Count
	}
	if req.Options, err = s.o.Sequences.options(req.Tenant, req.Key, in.Counting); err != nil {
		return err
	}
	if err := req.Validate(); err != nil {
		return err
	}
	var got sequence.Range
	err = s.storeCall(r.Context(), "sequence_next", func(ctx context.Context) (err error) {
		got, err = s.o.Sequences.Store.Next(ctx, req)
		return err
	})
	s.o.Metrics.Sequence(s.result(err), got.Count)
	if err != nil {
		return err
	}
	return answer(w, sequencehttp.FromRange(req.Key, got))
}

// sequenceDeclare lets an operator declare how a sequence goes on.
func (s *Server) sequenceDeclare(w http.ResponseWriter, r *http.Request, who Credential) error {
	if s.o.Sequences == nil {
		return errNoSequences
	}
	var in sequencehttp.Declaration
	if err := readStrict(r, &in); err != nil {
		return err
	}
	if in.Last == nil {
		return problem.New(problem.InvalidRequest, "last is missing: the last value that was handed out")
	}
	d := sequence.Declaration{Tenant: who.Tenant, Key: pathKey(r), Last: *in.Last}
	err := sameKey(r, sequencehttp.ParamKey, d.Key, in.Key)
	if err != nil {
		return err
	}
	if d.Options, err = s.o.Sequences.options(d.Tenant, d.Key, in.Counting); err != nil {
		return err
	}
	err = s.storeCall(r.Context(), "sequence_declare", func(ctx context.Context) error { return s.o.Sequences.Store.Declare(ctx, d) })
	if errors.Is(err, errors.ErrUnsupported) {
		return problem.New(problem.NotSupported, "the store behind this server takes no declarations")
	}
	if err != nil {
		return err
	}
	return answer(w, sequencehttp.Declared{Key: d.Key, Last: d.Last})
}
