package leaseserver

import (
	"cmp"
	"context"
	"net/http"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	placementhttp "github.com/kazahana/kazahana/internal/placement/storage/http"
	"github.com/kazahana/kazahana/internal/problem"
)

// Placements configures the placement service.
type Placements struct{ Records storage.Storage }

var errNoPlacements = problem.New(problem.NotSupported, "this server has no store for activation records")

// placementKey is the key of the path, which the store checks.
func placementKey(r *http.Request) placement.Key {
	return placement.Key{Kind: pathSegment(r, "kind", placementSegment), Identity: pathSegment(r, "identity", placementSegment+1)}
}

// samePlacement refuses a request if its path names another actor than its body or its query.
func samePlacement(r *http.Request, key placement.Key, inBody placementhttp.Removal) error {
	return cmp.Or(sameKey(r, placementhttp.ParamKind, key.Kind, inBody.Kind), sameKey(r, placementhttp.ParamIdentity, key.Identity, inBody.Identity))
}

// placementCall runs one call to the store of activation records, and counts it.
func (s *Server) placementCall(r *http.Request, op string, call func(context.Context, storage.Storage) error) error {
	err := s.storeCall(r.Context(), "placement_"+op, func(ctx context.Context) error { return call(ctx, s.o.Placements.Records) })
	s.o.Metrics.Placement(op, s.result(err))
	return err
}

func (s *Server) placementLoad(w http.ResponseWriter, r *http.Request, who Credential) error {
	if s.o.Placements == nil {
		return errNoPlacements
	}
	key := placementKey(r)
	if err := samePlacement(r, key, placementhttp.Removal{}); err != nil {
		return err
	}
	var record placement.Record
	if err := s.placementCall(r, "load", func(ctx context.Context, records storage.Storage) (err error) {
		record, err = records.Load(ctx, who.placementTenant(), key)
		return err
	}); err != nil {
		return err
	}
	return answer(w, placementhttp.Loaded{Kind: key.Kind, Identity: key.Identity, Record: placementhttp.FromRecord(record)})
}

func (s *Server) placementStore(w http.ResponseWriter, r *http.Request, who Credential) error {
	return s.placementChange(w, r, who, "store", func(ctx context.Context, records storage.Storage, key placement.Key, in placementhttp.Removal) error {
		return records.Store(ctx, who.placementTenant(), key, in.Placement())
	})
}

func (s *Server) placementRemove(w http.ResponseWriter, r *http.Request, who Credential) error {
	return s.placementChange(w, r, who, "remove", func(ctx context.Context, records storage.Storage, key placement.Key, in placementhttp.Removal) error {
		return records.Remove(ctx, who.placementTenant(), key, in.Placement(), in.Keep)
	})
}

// placementChange reads a body, calls do, and answers with the record of the request.
func (s *Server) placementChange(w http.ResponseWriter, r *http.Request, who Credential, op string, do func(context.Context, storage.Storage, placement.Key, placementhttp.Removal) error) error {
	if s.o.Placements == nil {
		return errNoPlacements
	}
	var in placementhttp.Removal
	if err := readBody(r, &in); err != nil {
		return err
	}
	key := placementKey(r)
	if err := samePlacement(r, key, in); err != nil {
		return err
	}
	if err := s.placementCall(r, op, func(ctx context.Context, records storage.Storage) error { return do(ctx, records, key, in) }); err != nil {
		return err
	}
	return answer(w, placementhttp.Done{Kind: key.Kind, Identity: key.Identity, Version: in.Version, Token: in.Token})
}
