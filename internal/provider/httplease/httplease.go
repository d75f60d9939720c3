package httplease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"unicode/utf8"

	"github.com/kazahana/kazahana/internal/httpconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/provider"
)

// Provider leases from a lease server.
type Provider struct {
	info   provider.Info
	client *httpconn.Client
	// history is Info.History as a server told it with its last answer.
	history atomic.Pointer[string]
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Verifier = (*Provider)(nil)
	_ provider.Lister   = (*Provider)(nil)
	_ provider.Extender = (*Provider)(nil)
	_ provider.Locator  = (*Provider)(nil)
	_ provider.Counter  = (*Provider)(nil)
)

// Limits of what a server may answer.
const (
	maxAnswer = 16 << 20
	maxList   = 512 << 20 // a full pool of small layouts with large meta
)

// New returns the provider. It reads the files that cfg names, and connects to
// nothing.
func New(cfg Config) (*Provider, error) {
	c, err := httpconn.New(cfg.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Info().Name, err)
	}
	return &Provider{info: cfg.Info(), client: c}, nil
}

// Info implements provider.Provider. History is known after the first Locate.
func (p *Provider) Info() provider.Info {
	info := p.info
	if history := p.history.Load(); history != nil {
		info.History = *history
	}
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
	if err := validText(req); err != nil {
		return nil, err
	}
	if req.RequestID == "" {
		req.RequestID = provider.NewSecret() // else a repetition would be another grant
	}
	var answer leaseapi.AcquireResponse
	err := p.do(ctx, httpconn.Call{
		Method: http.MethodPost, Path: leaseapi.PathLease, Limit: maxAnswer, Answer: &answer,
		Body: leaseapi.AcquireRequest{
			ServiceID: req.Service, Meta: req.Meta, ThroughputPerMS: req.ThroughputPerMS, RequestID: req.RequestID,
		},
	})
	if err != nil {
		return nil, err
	}
	if len(answer.Leases) == 0 {
		return nil, fmt.Errorf("%s: %w: the server answered without one", p.info.URL, lease.ErrMalformed)
	}
	return answer.Leases, nil
}

// validText refuses what JSON cannot carry: it would arrive as something else.
func validText(req provider.AcquireRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	ok := utf8.ValidString(req.Service) && utf8.ValidString(req.RequestID)
	for k, v := range req.Meta {
		ok = ok && utf8.ValidString(k) && utf8.ValidString(v)
	}
	if !ok {
		return fmt.Errorf("%w: the service's name, the request ID and meta must be UTF-8", provider.ErrInvalid)
	}
	return nil
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	body := leaseapi.ReleaseRequest{Signature: req.Signature, Timestamp: &req.TimestampMS, ServiceID: req.Service, AtEnd: req.AtEnd}
	if req.BitSeq != provider.AnyBitSeq {
		body.BitSeq = &req.BitSeq
	}
	return p.do(ctx, httpconn.Call{Method: http.MethodDelete, Path: leasePath(req.ID), Body: body})
}

func leasePath(id int64) string { return leaseapi.PathLease + "/" + strconv.FormatInt(id, 10) }

// Verify implements provider.Verifier.
func (p *Provider) Verify(ctx context.Context, service string, leases []lease.Lease) ([]lease.Lease, error) {
	var lost []lease.Lease
	for {
		part := leases[:min(len(leases), leaseapi.MaxVerify)]
		leases = leases[len(part):]
		var answer leaseapi.VerifyResponse
		if err := p.do(ctx, httpconn.Call{
			Method: http.MethodPost, Path: leaseapi.PathVerify, Limit: maxAnswer, Answer: &answer,
			Body: leaseapi.VerifyRequest{ServiceID: service, Leases: part},
		}); err != nil {
			return nil, err
		}
		for _, i := range answer.Lost {
			if i < 0 || i >= len(part) {
				return nil, fmt.Errorf("%s: the answer is malformed: lease %d of %d is lost", p.info.URL, i, len(part))
			}
			lost = append(lost, part[i])
		}
		if len(leases) == 0 {
			return lost, nil
		}
	}
}

// List implements provider.Lister. With a credential that has not the scope
// admin it returns the records of the credential's tenant.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	query := url.Values{leaseapi.ParamService: {service}, leaseapi.ParamLimit: {strconv.Itoa(leaseapi.MaxPage)}}
	var all []provider.Record
	for {
		page, answer, err := p.records(ctx, leaseapi.PathLeases, query)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if answer.Next == "" { // of the last page, or of a server that knows no pages
			return all, nil
		}
		if answer.Next == query.Get(leaseapi.ParamAfter) {
			return nil, fmt.Errorf("%s: the answer is malformed: the page after %q is followed by itself", p.info.URL, httpconn.Shorten(answer.Next))
		}
		query.Set(leaseapi.ParamAfter, answer.Next)
	}
}

// Locate implements provider.Locator, with the same restriction.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	records, answer, err := p.records(ctx, leaseapi.PathHistory, url.Values{
		leaseapi.ParamService: {service},
		leaseapi.ParamLow:     {strconv.FormatInt(low, 10)}, leaseapi.ParamAt: {strconv.FormatInt(atMS, 10)},
	})
	if err == nil {
		history := httpconn.Shorten(answer.History)
		p.history.Store(&history)
	}
	return records, err
}

func (p *Provider) records(ctx context.Context, path string, query url.Values) (records []provider.Record, answer leaseapi.RecordsResponse, err error) {
	if err := p.do(ctx, httpconn.Call{Method: http.MethodGet, Path: path, Query: query, Answer: &answer, Limit: maxList}); err != nil {
		return nil, answer, err
	}
	records = make([]provider.Record, len(answer.Records))
	for i, r := range answer.Records {
		records[i] = r.Record()
	}
	return records, answer, nil
}

// Extend implements provider.Extender.
func (p *Provider) Extend(ctx context.Context, service string, l lease.Lease) (lease.Lease, error) {
	var answer leaseapi.ExtendResponse
	if err := p.do(ctx, httpconn.Call{
		Method: http.MethodPost, Path: leasePath(l.ID) + leaseapi.PathExtend, Limit: maxAnswer, Answer: &answer,
		Body: leaseapi.ExtendRequest{ServiceID: service, Lease: l},
	}); err != nil {
		return lease.Lease{}, err
	}
	extended := answer.Lease
	extended.Secret = l.Secret // which the server does not repeat
	if extended.ID != l.ID || extended.Slot() != l.Slot() || extended.Expired < l.Expired {
		return lease.Lease{}, fmt.Errorf("%s: the answer is malformed: %v was extended to %v", p.info.URL, l, extended)
	}
	return extended, nil
}

// Counters implements provider.Counter. The credential needs the scope admin.
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
