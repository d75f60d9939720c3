package kubernetes

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/provider"
)

// Provider grants leases from Lease objects.
type Provider struct {
	provider.Lacking
	cfg   Config
	api   *kubeconn.Client
	pools map[string]*pool
	nowMS func() int64
	date  atomic.Pointer[dated] // of the last answer

	// releasing is called before a release is sent. Tests set it.
	releasing func()
}

var _ provider.Provider = (*Provider)(nil)

// Open opens the provider. It does no I/O.
func Open(cfg Config) (*Provider, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Provider{Lacking: "kubernetes", cfg: cfg, pools: map[string]*pool{}, nowMS: cfg.NowMS, releasing: func() {}}
	if p.nowMS == nil {
		p.nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	for _, t := range cfg.Services.All() {
		if q := p.pools[t.Pool]; q == nil || t.LongestMS() > q.terms.LongestMS() {
			p.pools[t.Pool] = newPool(t)
		}
	}
	conn := cfg.Config
	p.date.Store(&dated{})
	conn.NowMS, conn.Answered = p.nowMS, func(sentMS, receivedMS, dateMS int64) { p.date.Store(datedBy(sentMS, receivedMS, dateMS)) }
	p.api = kubeconn.New(conn)
	return p, nil
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info { return p.cfg.Info() }

// Close implements provider.Provider.
func (p *Provider) Close() error { return p.api.Close() }

// failure is an error of the API as the provider's callers know it.
func (p *Provider) failure(err error) error {
	var status *kubeconn.StatusError
	if errors.As(err, &status) && status.RetryAfter > 0 && status.Status == http.StatusTooManyRequests {
		return &provider.BusyError{RetryAfter: status.RetryAfter.Round(time.Millisecond), Reason: status.Error()}
	}
	return err
}

// now is the time that grants are made by: the server's, where it has said it lately. offset
// is how far the server's clock is ahead of ours, 0 where that is not known.
func (p *Provider) now() (nowMS, offset int64) {
	nowMS = p.nowMS()
	if d := p.date.Load(); d.isRecent(nowMS) {
		offset = d.offset
	}
	return nowMS + offset, offset
}

// Fence implements provider.Provider: for all pools of its services.
func (p *Provider) Fence(ctx context.Context) (*provider.FencedError, error) {
	for _, q := range p.pools {
		h, err := p.changeHead(ctx, q, func(h head) (head, bool) { return h.closing(closedFence), true })
		if err != nil {
			return nil, p.failure(err)
		}
		if h.NotBefore == 0 {
			return nil, errContended
		}
	}
	return p.Fenced(), nil
}

// Fenced implements provider.Provider.
func (p *Provider) Fenced() *provider.FencedError {
	now, _ := p.now()
	var latest *provider.FencedError
	for _, q := range p.pools {
		if h := q.head.Load(); h != nil {
			if f := h.fence(now); f != nil && (latest == nil || f.UntilMS > latest.UntilMS) {
				latest = f
			}
		}
	}
	return latest
}

// Ready implements provider.Provider.
func (p *Provider) Ready(ctx context.Context) error {
	for _, q := range p.pools {
		if _, err := p.readHead(ctx, q); err != nil {
			return p.failure(err)
		}
	}
	return nil
}

// Init implements provider.Provider: it ends a fence, and gives a pool the service's layout once
// all of its leases have ended.
func (p *Provider) Init(ctx context.Context, service string) error {
	t := p.cfg.Services.Of(service)
	q := p.pools[t.Pool]
	h, err := p.changeHead(ctx, q, asItIs)
	if err == nil && h.timeline() == t.Timeline {
		h, err = p.change(ctx, q, h, head.unfenced)
		if err == nil && h.BitSeq != t.BitSeq {
			h, err = p.change(ctx, q, h, func(h head) (head, bool) {
				closing := h.closing(closedLayout)
				closing.NextBitSeq = t.BitSeq
				return closing, h.BitSeq != t.BitSeq
			})
		}
	}
	if err != nil {
		return p.failure(err)
	}
	return h.known(t)
}
