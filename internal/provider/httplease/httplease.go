package httplease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

// Provider leases from a lease server.
type Provider struct {
	provider.Lacking
	info   provider.Info
	client *httpconn.Client
	// forgetful is Info.Forgetful as a server told it with its last grant.
	forgetful atomic.Bool
	foreign   foreign
	joined    sync.Map // services that a server has answered an acquire for
}

var _ provider.Provider = (*Provider)(nil)

// Limits of a server's answers.
const (
	maxAnswer  = 64 << 10
	grantBytes = 2 << 10   // more, for each lease that an acquire can need
	maxGrants  = 16 << 20  // of those together
	maxList    = 512 << 20 // a full pool of small layouts with large meta
)

// New returns the provider. It reads the files that cfg names, and connects to
// nothing.
//
// Terms are not among cfg: the servers decide on them.
func New(cfg httpconn.Config) (*Provider, error) {
	info := provider.Info{Name: cfg.Servers[0].Scheme, URL: cfg.Names(), Scope: provider.ScopeShared, Coordinated: true}
	c, err := httpconn.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", info.Name, err)
	}
	return &Provider{Lacking: provider.Lacking(info.Name), info: info, client: c, foreign: foreign{echoes: map[string]bool{}}}, nil
}

// Info implements provider.Provider. Forgetful is known after the first Acquire.
func (p *Provider) Info() provider.Info {
	info := p.info
	info.Forgetful = p.forgetful.Load()
	return info
}

// Close implements provider.Provider.
func (p *Provider) Close() error { return p.client.Close() }

// do makes the call. A settled refusal becomes an error of package provider.
func (p *Provider) do(ctx context.Context, k httpconn.Call) error {
	err := p.client.Do(ctx, k)
	refusal := httpconn.Settled(err)
	if refusal == nil {
		return err
	}
	if answer := leaseapi.ToError(refusal); !errors.Is(answer, error(refusal)) {
		return answer
	}
	return err // which names the server
}

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if req.RequestID == "" {
		req.RequestID = provider.NewSecret() // else a repetition would be another grant
	}
	newClient := req.Client == provider.NewClient
	if _, joined := p.joined.Load(req.Service); req.Client == provider.OwnClient {
		newClient = !joined
	}
	body := leaseapi.AcquireRequest{
		ServiceID: req.Service, Meta: req.Meta, RequestID: req.RequestID, NewClient: &newClient,
	}
	if req.ThroughputPerMS > 0 {
		body.ThroughputPerMS = &req.ThroughputPerMS
	}
	var answer leaseapi.Granted
	var server string
	err := p.do(ctx, httpconn.Call{
		Method: http.MethodPost, Path: leaseapi.PathLease, Limit: grantLimit(req), Answer: &answer, Server: &server, Body: body,
	})
	if err != nil {
		return nil, err
	}
	leases, err := p.granted(server, req, answer)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", server, err)
	}
	if req.Client == provider.OwnClient {
		p.joined.Store(req.Service, true)
	}
	p.forgetful.Store(answer.Forgetful)
	return leases, nil
}

// grantLimit is how many bytes the answer may have. Each lease adds to the
// throughput, so that this is how many can be needed, in any layout.
func grantLimit(req provider.AcquireRequest) int64 {
	return min(max(req.ThroughputPerMS, 1), maxGrants/grantBytes)*grantBytes + maxAnswer
}

// granted is the leases of an answer that is one to this request. Those of another
// answer are another client's, perhaps: they must not be used, nor given back.
func (p *Provider) granted(server string, req provider.AcquireRequest, answer leaseapi.Granted) ([]lease.Lease, error) {
	if err := p.foreign.repeats(server, req.RequestID, answer.RequestID); err != nil {
		return nil, err
	}
	if len(answer.Leases) == 0 {
		return nil, fmt.Errorf("%w: the server answered without one", lease.ErrMalformed)
	}
	leases := make([]lease.Lease, len(answer.Leases))
	for i, granted := range answer.Leases {
		l := granted.Lease
		if l.ReservedUntil = l.Expired; granted.ReservedUntil != nil {
			l.ReservedUntil = *granted.ReservedUntil
		}
		// A well-formed lease of a century has times that are no milliseconds.
		if l.Validate() == nil && max(l.Term(), l.ReservedUntil-l.Expired) > provider.MaxTerm.Milliseconds() {
			return nil, fmt.Errorf("%w: machine ID %d: it lasts from %d to %d and is reserved until %d, and neither may take more than %v: are these milliseconds?",
				lease.ErrMalformed, l.ID, l.Created, l.Expired, l.ReservedUntil, provider.MaxTerm)
		}
		leases[i] = l
	}
	return leases, nil
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	body := leaseapi.ReleaseRequest{ID: &req.ID, Signature: req.Signature, Timestamp: &req.TimestampMS, ServiceID: req.Service, AtEnd: req.AtEnd}
	if req.BitSeq != provider.AnyBitSeq {
		body.BitSeq = &req.BitSeq
	}
	return p.do(ctx, httpconn.Call{Method: http.MethodDelete, Path: leasePath(req.ID), Body: body, SentOnce: true})
}

func leasePath(id int64) string { return leaseapi.PathLease + "/" + strconv.FormatInt(id, 10) }

// Verify implements provider.Provider.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	for first := 0; first == 0 || first < len(claims); first += leaseapi.MaxVerify {
		part := claims[first:min(first+leaseapi.MaxVerify, len(claims))]
		body := leaseapi.VerifyRequest{ServiceID: service, Leases: make([]leaseapi.Claim, len(part))}
		for i := range part {
			body.Leases[i] = claimOf(&part[i].ID, &part[i].BitSeq, &part[i].CreatedMS, part[i].Signature)
		}
		var answer leaseapi.VerifyResponse
		if err := supported(p.do(ctx, httpconn.Call{
			Method: http.MethodPost, Path: leaseapi.PathVerify, Limit: maxAnswer, Answer: &answer, Body: body,
		})); err != nil {
			return nil, err
		}
		if answer.Lost == nil {
			return nil, fmt.Errorf("%s: the answer is malformed: it does not say which leases are lost", p.info.URL)
		}
		for _, i := range answer.Lost {
			if i < 0 || i >= len(part) {
				return nil, fmt.Errorf("%s: the answer is malformed: lease %d of %d is lost", p.info.URL, i, len(part))
			}
			lost = append(lost, first+i)
		}
	}
	return lost, nil
}

func claimOf(id *int64, bitSeq *int, created *int64, signature string) leaseapi.Claim {
	return leaseapi.Claim{ID: id, BitSeq: bitSeq, Created: created, Signature: signature}
}

// supported makes errors.ErrUnsupported of the answer of a server that knows
// nothing of a path, and says so in its own way.
func supported(err error) error {
	var p *problem.Problem
	if errors.As(err, &p) && p.Code == "" && (p.Status == http.StatusNotFound || p.Status == http.StatusMethodNotAllowed) {
		return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	return err
}

// List implements provider.Provider. With a credential that has not the scope
// admin it returns the records of the credential's tenant.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	return p.records(ctx, leaseapi.PathLeases, url.Values{leaseapi.ParamService: {service}})
}

// Locate implements provider.Provider, with the same restriction.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	return p.records(ctx, leaseapi.PathHistory, url.Values{
		leaseapi.ParamService: {service},
		leaseapi.ParamLow:     {strconv.FormatInt(low, 10)}, leaseapi.ParamAt: {strconv.FormatInt(atMS, 10)},
	})
}

func (p *Provider) records(ctx context.Context, path string, query url.Values) ([]provider.Record, error) {
	var answer leaseapi.RecordsResponse
	if err := p.do(ctx, httpconn.Call{Method: http.MethodGet, Path: path, Query: query, Answer: &answer, Limit: maxList}); err != nil {
		return nil, err
	}
	records := make([]provider.Record, len(answer.Records))
	for i, r := range answer.Records {
		records[i] = r.Record()
	}
	return records, nil
}

// Extend implements provider.Provider.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	var answer leaseapi.ExtendResponse
	if err := supported(p.do(ctx, httpconn.Call{
		Method: http.MethodPost, Path: leaseapi.PathExtend, Limit: maxAnswer, Answer: &answer,
		Body: leaseapi.ExtendRequest{
			Claim: claimOf(&req.ID, &req.BitSeq, &req.CreatedMS, req.Signature), Expired: &req.ExpiredMS, ServiceID: req.Service,
		},
	})); err != nil {
		return lease.Lease{}, err
	}
	l := answer.Lease
	l.Secret = "" // which a server has no reason to repeat
	if l.ID != req.ID || l.BitSeq != req.BitSeq || l.Created != req.CreatedMS || l.Expired < req.ExpiredMS || l.ReservedUntil < l.Expired {
		return lease.Lease{}, fmt.Errorf("%s: the answer is malformed: machine ID %d until %d was extended to %v, reserved until %d",
			p.info.URL, req.ID, req.ExpiredMS, l, l.ReservedUntil)
	}
	return l, nil
}

// Counters implements provider.Provider. The credential needs the scope admin.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	var answer leaseapi.Stats
	if err := p.do(ctx, httpconn.Call{
		Method: http.MethodGet, Path: leaseapi.PathStats, Query: url.Values{leaseapi.ParamService: {service}},
		Answer: &answer, Limit: maxAnswer,
	}); err != nil {
		return nil, err
	}
	for _, gauge := range leaseapi.StatsGauges {
		delete(answer, gauge)
	}
	return answer, nil
}
