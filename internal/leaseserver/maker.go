package leaseserver

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// makerSteps is how many times the history is asked for the holder behind a fallback ID:
// with terms of ten minutes, four hours back.
const makerSteps = 48

// maker finds the maker of an ID in the provider's history.
func (s *Server) maker(w http.ResponseWriter, r *http.Request, _ Credential) error {
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	service, text := q.Get(leaseapi.ParamService), strings.TrimSpace(q.Get(leaseapi.ParamID))
	terms := s.o.Services.Of(service)
	var codec snowflake.Codec // without a secret
	id, err := snowflake.ParseID(text, codec)
	if err != nil {
		return problem.New(problem.InvalidRequest, "the parameter id: %v", err)
	}
	layout := snowflake.Layout{BitTS: terms.Timeline.BitTS, BitID: terms.BitID, BitSeq: terms.BitSeq}
	in, err := snowflake.Inspect(id, layout, terms.Timeline.EpochMS, codec)
	if err != nil {
		return problem.New(problem.InvalidRequest, "the parameter id: %v", err)
	}
	out := leaseapi.Maker{
		ID: strconv.FormatInt(int64(id), 10), Timestamp: in.TimestampMS, Time: in.Time, Kind: in.Kind, MachineID: in.MachineID,
		Sequence: in.Sequence, BitID: in.BitID, BitSeq: in.BitSeq,
	}
	if err := s.called(r.Context(), "locate", func(ctx context.Context) error { return s.makers(ctx, service, in, &out) }); err != nil {
		return err
	}
	if len(text) == snowflake.ExternalLen && text != out.ID && !strings.HasPrefix(text, "0x") {
		out.Note = strings.TrimPrefix(out.Note+"; read as an external ID that was made without a secret", "; ")
	}
	out.History = s.o.Provider.Info().History
	return answer(w, out)
}

// makers fills in the holders, and a note that explains them.
func (s *Server) makers(ctx context.Context, service string, in snowflake.Inspection, out *leaseapi.Maker) error {
	if !s.o.Provider.Info().Can.Locate {
		return s.cannot("tell who held a machine ID")
	}
	low := in.MachineID<<in.BitSeq | in.Sequence
	locate := func(atMS int64) ([]provider.Record, error) { return s.o.Provider.Locate(ctx, service, low, atMS) }
	var found []provider.Record
	var err error
	if in.Kind == snowflake.KindFallback {
		found, err = provider.LookBack(in.TimestampMS, s.o.Services.Of(service).Term, makerSteps, locate)
		out.Note = "no lease stands behind a fallback ID; no holder is known who could have cached one for it, so machine ID and sequence are random, or the history is too short"
		if len(found) > 0 {
			out.Note = "no lease stands behind a fallback ID; if it is a cached one, this is the holder of its slot; if its bits are random, this holder has nothing to do with it"
		}
	} else {
		found, err = locate(in.TimestampMS)
		switch {
		case len(found) == 0 && in.TimestampMS > s.o.NowMS():
			out.Note = "nobody: its time is still to come"
		case len(found) == 0:
			out.Note = "nobody known"
			if kept := s.o.Provider.Info().History; kept != "" {
				out.Note += fmt.Sprintf(": the history keeps %s", kept)
			}
		case len(found) > 1:
			out.Note = "several grants: nobody coordinates them"
		}
	}
	out.Holders = holders(found, s.o.NowMS())
	return err
}
