package leaseserver

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

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
	return answer(w, out)
}

// makers fills in the holders, and a note that explains them.
func (s *Server) makers(ctx context.Context, service string, in snowflake.Inspection, out *leaseapi.Maker) error {
	low := in.MachineID<<in.BitSeq | in.Sequence
	locate := func() ([]provider.Record, error) { return s.o.Provider.Locate(ctx, service, low, in.TimestampMS) }
	found, note, err := provider.Makers(in, s.o.NowMS(), locate)
	out.Holders, out.Note = holders(found, s.o.NowMS()), note
	return err
}
