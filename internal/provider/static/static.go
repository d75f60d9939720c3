// Package static has the providers without coordination: static:ID grants the machine ID in
// its URL, ip: the machine ID that follows from the host's IPv4 address, none: grants nothing.
//
// # What keeps two holders apart
//
// Only the operator's promise that no other generator has the machine ID at the same time:
// there is no record anywhere, so nothing notices a second host or process with the same ID.
// Hence the scope "unverified", and one service per provider: two would be two generators on
// one slot.
//
// A renewal grants the same slot anew, while the former lease still runs. That is safe for
// the one generator that holds both: the values that it emits strictly increase, also across
// leases.
//
// # Created never goes back
//
// Within a process a grant's created is never below an earlier grant's, nor below the
// timestamp of a release plus one, even if the clock is. So a clock that stepped back does not
// open again a stretch of time that was granted before, and the next holder begins behind
// everything that its predecessor embedded. After a step back a lease may begin in the future;
// nothing could be emitted before that anyway. Across processes the durable mark of the host
// does the same work.
package static

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// remembered is how many grants can still be released or asked for again: a
// keeper holds two at most, the present one and the one it replaced.
const remembered = 16

// Provider grants one machine ID again and again.
type Provider struct {
	provider.Lacking
	terms  provider.Terms
	nowMS  func() int64
	locate func() (place, error) // asked at each acquire

	mu     sync.Mutex
	info   provider.Info
	floor  int64   // Unix ms; no grant begins earlier
	recent []grant // the latest last, at most `remembered`
	closed bool
}

// place is a machine ID and where it comes from, for operators.
type place struct {
	machineID int64
	url       string
}

type grant struct {
	lease     lease.Lease
	service   string
	requestID string
	released  bool
}

var _ provider.Provider = (*Provider)(nil)

// staticParams returns the parameters that a static: URL takes. There is no pool that pool or
// ids could select from.
func staticParams() []string {
	return []string{"term", "quarantine", "epoch", "bit_id", "bit_seq", "bit_ts", "layout"}
}

// FromStaticURL opens static:ID. nowMS is the clock in Unix milliseconds; nil
// means the wall clock.
func FromStaticURL(u *url.URL, nowMS func() int64) (*Provider, error) {
	q, err := connurl.ParseQuery(u.RawQuery, staticParams())
	if err != nil {
		return nil, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return nil, err
	}
	id, err := strconv.ParseInt(u.Opaque, 10, 64)
	if err != nil || u.Host != "" || u.Path != "" {
		return nil, errors.New("static: needs the machine ID as a whole number, for example static:17")
	}
	return New(id, terms, nowMS)
}

// New returns a provider that grants machineID, and no other.
func New(machineID int64, terms provider.Terms, nowMS func() int64) (*Provider, error) {
	if err := terms.Validate(); err != nil {
		return nil, err
	}
	if ids := terms.Range(); !ids.Contains(machineID) {
		return nil, fmt.Errorf("static:%d: the layout %v has machine IDs %v", machineID, terms.Layout(), ids)
	}
	here := place{machineID: machineID, url: "static:" + strconv.FormatInt(machineID, 10)}
	return newProvider("static", here, terms, nowMS, func() (place, error) { return here, nil }), nil
}

func newProvider(name string, here place, terms provider.Terms, nowMS func() int64, locate func() (place, error)) *Provider {
	if nowMS == nil {
		nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	info := provider.Info{Name: name, URL: here.url, Scope: provider.ScopeUnverified}
	return &Provider{Lacking: provider.Lacking(name), info: info, terms: terms, nowMS: nowMS, locate: locate}
}

// Info implements provider.Provider. The URL says which machine ID was granted
// last, and why.
func (p *Provider) Info() provider.Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.info
}

// Close implements provider.Provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

// begin reports why an operation cannot start. p.mu is held.
func (p *Provider) begin(ctx context.Context) error {
	if p.closed {
		return provider.NotSent(fmt.Errorf("the provider %s is closed", p.info.Name))
	}
	return provider.NotSent(ctx.Err())
}

// Acquire implements provider.Provider. It grants one lease for any throughput: there is one
// slot.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	now := p.nowMS()
	if err := p.terms.CheckClock(now); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(p.recent, func(g grant) bool {
		return req.RequestID != "" && g.requestID == req.RequestID && g.service == req.Service
	}); i >= 0 {
		before := p.recent[i]
		if i < len(p.recent)-1 || before.released || now >= before.lease.Expired {
			return nil, provider.ErrConflict
		}
		return []lease.Lease{before.lease}, nil
	}
	here, err := p.locate()
	if err != nil {
		return nil, err
	}
	p.info.URL = here.url
	l := p.terms.Grant(here.machineID, max(now, p.floor), provider.NewSecret())
	p.floor = l.Created
	if len(p.recent) == remembered {
		p.recent = append(p.recent[:0], p.recent[1:]...)
	}
	p.recent = append(p.recent, grant{lease: l, service: req.Service, requestID: req.RequestID})
	return []lease.Lease{l}, nil
}

// Release implements provider.Provider. Giving back a lease that a renewal has
// replaced changes nothing, as the slot is in use under the later one.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.begin(ctx); err != nil {
		return err
	}
	err := provider.ErrNotFound
	for i := range p.recent {
		g := &p.recent[i]
		if g.lease.ID != req.ID || req.BitSeq != provider.AnyBitSeq && req.BitSeq != g.lease.BitSeq {
			continue
		}
		if !req.Signed(g.lease.Secret) {
			err = provider.ErrBadSignature
			continue
		}
		if g.released { // at any time
			return nil
		}
		if err := req.CheckTime(p.nowMS(), g.lease.Expired); err != nil {
			return err
		}
		if i == len(p.recent)-1 {
			g.released = true
			p.floor = max(p.floor, req.TimestampMS+1)
		}
		return nil
	}
	return err
}
