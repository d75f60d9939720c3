package leaseserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"go.uber.org/zap"
)

// otherServices is the label of services that are not configured: clients choose their
// names, so their number is not limited.
const otherServices = "other"

// service is the provider's name of a service of the caller's tenant.
func (s *Server) service(who Credential, name string) (string, error) {
	if who.Tenant == DefaultTenant {
		if strings.Contains(name, "/") {
			return "", problem.New(problem.Forbidden, "service names with a slash are those of other tenants")
		}
		return name, nil
	}
	if name == "" {
		name = provider.DefaultPool
	}
	full := who.Tenant + "/" + name
	if _, ok := s.o.Services.Named[full]; !ok || strings.Contains(name, "/") {
		return "", problem.New(problem.Forbidden, "tenant %q has no service of this name here", who.Tenant)
	}
	return full, nil
}

// label is the service in metrics.
func (s *Server) label(service string) string {
	if service == "" || service == provider.DefaultPool {
		return provider.DefaultPool
	}
	if _, ok := s.o.Services.Named[service]; ok {
		return service
	}
	return otherServices
}

// scopedRequestID makes it impossible to hit another credential's request ID. The parts
// cannot be confused, since neither tenant nor owner contains a NUL byte.
func scopedRequestID(who Credential, id string) string {
	if id == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(who.Tenant + "\x00" + who.Owner + "\x00" + id))
	return hex.EncodeToString(sum[:16])
}

// result is the label of an error in metrics.
func (s *Server) result(err error) string {
	if err == nil {
		return "ok"
	}
	p := s.problemOf(err)
	if p.Code == problem.Unavailable && errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	if word, ok := results[p.Code]; ok {
		return word
	}
	return "refused"
}

// results are the labels of the codes that have one of their own.
var results = map[problem.Code]string{
	problem.NoMachineID: "full", problem.Busy: "busy", problem.Conflict: "conflict", problem.Unavailable: "unavailable",
	problem.Fenced: "fenced", problem.LockFenced: "fenced", problem.SequenceFenced: "fenced",
	problem.LockHeld: "held", problem.LockNotOwned: "not_owned", problem.LockExpired: "expired", problem.RequestIDReused: "reused",
	problem.SequenceUsedUp: "exhausted", problem.PlacementStale: "stale",
}

// maxThroughput is also the largest max_throughput_per_ms of a daemon.
const maxThroughput = 1 << 20

func (s *Server) acquire(w http.ResponseWriter, r *http.Request, who Credential) error {
	var in leaseapi.AcquireRequest
	if err := readBody(r, &in); err != nil {
		return err
	}
	service, err := s.service(who, in.ServiceID)
	if err != nil {
		return err
	}
	req := provider.AcquireRequest{Service: service, Meta: in.Meta, RequestID: in.RequestID}
	if n := in.ThroughputPerMS; n != nil {
		if req.ThroughputPerMS = *n; *n < 1 || *n > maxThroughput {
			return problem.New(problem.InvalidRequest, "throughputPerMs is %d, and must be 1 to %d; without it, one lease is granted", *n, maxThroughput)
		}
	}
	if err := req.Validate(); err != nil {
		return err
	}
	if err := s.charge(r, who, s.o.Services.Of(service).LeaseCount(req.ThroughputPerMS)); err != nil {
		return err
	}
	req.RequestID = scopedRequestID(who, in.RequestID)
	pool := s.o.Services.Of(service).Pool
	client := s.digest(pool, who, r.RemoteAddr, in)
	s.note(func(b *stats) { req.Client = b.arrived(client, in.NewClient == nil || *in.NewClient) })
	var leases []lease.Lease
	err = s.called(r.Context(), "acquire", func(ctx context.Context) (err error) {
		leases, err = s.o.Provider.Acquire(ctx, req)
		return err
	})
	s.o.Metrics.Acquired(s.label(service), s.result(err))
	s.note(func(b *stats) { b.acquired(pool, client, req.Client, len(leases), err) })
	if full, ok := errors.AsType[*provider.FullError](err); ok {
		s.tellFullness(pool, provider.Full, zap.Int64("slots", full.Slots))
	}
	if err != nil {
		return err
	}
	return answer(w, leaseapi.AcquireResponse{RequestID: in.RequestID, Leases: leases, Forgetful: s.o.Provider.Info().Forgetful})
}

func (s *Server) release(w http.ResponseWriter, r *http.Request, who Credential) error {
	id, err := machineID(r)
	if err != nil {
		return err
	}
	var in leaseapi.ReleaseRequest
	if err := readBody(r, &in); err != nil {
		return err
	}
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	if err := fill(&in, q); err != nil {
		return err
	}
	if in.ID != nil && *in.ID != id {
		return problem.New(problem.KeyMismatch, "the path names the machine ID %d, and id is %d", id, *in.ID)
	}
	service, err := s.service(who, in.ServiceID)
	if err != nil {
		return err
	}
	req := provider.ReleaseRequest{
		Service: service, ID: id, BitSeq: provider.AnyBitSeq, TimestampMS: *in.Timestamp, Signature: in.Signature, AtEnd: in.AtEnd,
	}
	if in.BitSeq != nil {
		// A negative number must not come to mean "any layout".
		if req.BitSeq = *in.BitSeq; req.BitSeq < 0 {
			return provider.ErrNotFound
		}
	}
	err = s.called(r.Context(), "release", func(ctx context.Context) error { return s.o.Provider.Release(ctx, req) })
	s.o.Metrics.Released(s.label(service), s.result(err))
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// claimOf converts a claim.
func claimOf(in leaseapi.Claim) (provider.Claim, error) {
	if in.ID == nil || in.BitSeq == nil || in.Created == nil || in.Signature == "" {
		return provider.Claim{}, problem.New(problem.InvalidRequest, "a lease is named by id, bitSeq, created and signature, and all of them are needed")
	}
	return provider.Claim{ID: *in.ID, BitSeq: *in.BitSeq, CreatedMS: *in.Created, Signature: in.Signature}, nil
}

func (s *Server) extend(w http.ResponseWriter, r *http.Request, who Credential) error {
	var in leaseapi.ExtendRequest
	if err := readBody(r, &in); err != nil {
		return err
	}
	service, err := s.service(who, in.ServiceID)
	if err != nil {
		return err
	}
	claim, err := claimOf(in.Claim)
	if err != nil {
		return err
	}
	if in.Expired == nil {
		return problem.New(problem.InvalidRequest, "expired is missing: the end of the lease, as far as it is known")
	}
	var extended lease.Lease
	err = s.called(r.Context(), "extend", func(ctx context.Context) (err error) {
		extended, err = s.o.Provider.Extend(ctx, provider.ExtendRequest{
			Service: service, ID: claim.ID, BitSeq: claim.BitSeq, CreatedMS: claim.CreatedMS, ExpiredMS: *in.Expired, Signature: claim.Signature,
		})
		return err
	})
	if err != nil {
		return err
	}
	return answer(w, leaseapi.ExtendResponse{Lease: extended})
}

func (s *Server) verify(w http.ResponseWriter, r *http.Request, who Credential) error {
	var in leaseapi.VerifyRequest
	if err := readBody(r, &in); err != nil {
		return err
	}
	service, err := s.service(who, in.ServiceID)
	if err != nil {
		return err
	}
	if len(in.Leases) > leaseapi.MaxVerify {
		return problem.New(problem.InvalidRequest, "%d leases are more than the %d of one request", len(in.Leases), leaseapi.MaxVerify)
	}
	claims := make([]provider.Claim, len(in.Leases))
	for i, named := range in.Leases {
		if claims[i], err = claimOf(named); err != nil {
			return problem.New(problem.InvalidRequest, "lease %d: %v", i, err)
		}
	}
	out := leaseapi.VerifyResponse{}
	if err := s.called(r.Context(), "verify", func(ctx context.Context) (err error) {
		out.Lost, err = s.o.Provider.Verify(ctx, service, claims)
		return err
	}); err != nil {
		return err
	}
	if out.Lost == nil {
		out.Lost = []int{} // not null
	}
	return answer(w, out)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, who Credential) error {
	return s.records(w, r, who, "list", s.o.Provider.List)
}

func (s *Server) locate(w http.ResponseWriter, r *http.Request, who Credential) error {
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	low, err := number(q, leaseapi.ParamLow)
	if err != nil {
		return err
	}
	at, err := number(q, leaseapi.ParamAt)
	if err != nil {
		return err
	}
	if low == nil || at == nil {
		return problem.New(problem.InvalidRequest, "the parameters low (the low bits of an ID) and at (Unix milliseconds) are needed")
	}
	return s.records(w, r, who, "locate", func(ctx context.Context, service string) ([]provider.Record, error) {
		return s.o.Provider.Locate(ctx, service, *low, *at)
	})
}

// records answers with the records of a service's pool that the caller may see.
func (s *Server) records(w http.ResponseWriter, r *http.Request, who Credential, op string,
	ask func(context.Context, string) ([]provider.Record, error),
) error {
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	service, err := s.service(who, q.Get(leaseapi.ParamService))
	if err != nil {
		return err
	}
	var records []provider.Record
	if err := s.called(r.Context(), op, func(ctx context.Context) (err error) {
		records, err = ask(ctx, service)
		return err
	}); err != nil {
		return err
	}
	out := leaseapi.RecordsResponse{Records: []leaseapi.Record{}}
	for _, record := range records {
		if name, ok := visible(who, record.Service); ok {
			record.Service = name
			out.Records = append(out.Records, leaseapi.FromRecord(record))
		}
	}
	return answer(w, out)
}

// visible reports whether the caller may see the service's records, and the name that it
// knows the service by.
func visible(who Credential, service string) (string, bool) {
	if slices.Contains(who.Scopes, ScopeAdmin) {
		return service, true
	}
	if who.Tenant == DefaultTenant {
		return service, !strings.Contains(service, "/")
	}
	return strings.CutPrefix(service, who.Tenant+"/")
}
