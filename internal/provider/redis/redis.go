package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// What the scripts are bounded by.
const (
	// maxRings bounds what a grant has to update. A site has one or two, and a
	// few more while it changes a layout or splits a range.
	maxRings = 16
	// historyKept and historyMax bound the history: a grant is remembered for so
	// long after its end, and as long as so many have not followed it. The
	// records of slots stay for ever.
	historyKept = 24 * time.Hour
	historyMax  = 100_000
	// maxClockMS is the last millisecond that scripts can count from: ends of
	// grants must stay below 2^53.
	maxClockMS = 1<<53 - 1 - 4*366*24*3600*1000
)

// The steps that Provider.at is told of.
const (
	stepAsked     = "asked"     // has a connection, nothing sent
	stepGranted   = "granted"   // the script has run, replicas have not been waited for
	stepConfirmed = "confirmed" // the caller does not know yet
	stepReleasing = "releasing" // a release is checked, and sent next
)

// errInconsistent: the keys contradict each other. It stops a grant that would
// break the grant rule.
var errInconsistent = errors.New("the index of free machine IDs contradicts the records; nothing was granted, and the index will be built anew")

// Provider grants leases from a Redis server.
type Provider struct {
	provider.Lacking
	cfg    Config
	client *redisconn.Client
	joined map[string]*atomic.Bool // by pool: whether this client has been counted

	// at is called at the named steps of an acquire. Only tests set it: there a
	// process dies.
	at func(step string) error
	// random is where a new ring begins, a number from 0 to n-1. Only tests set it.
	random func(n int64) int64
}

var _ provider.Provider = (*Provider)(nil)

// Open reaches out to the server, and checks that leases can be granted from
// it: its version, its settings, the user's rights, and the timelines of the
// pools that it knows.
//
// Errors wrap provider.ErrInvalid when a pool has another timeline than the
// services have.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.ClientID == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		cfg.ClientID = provider.NewClientID(host, time.Now().UnixMilli())
	}
	client, err := redisconn.Open(cfg.Config)
	if err != nil {
		return nil, err
	}
	p := &Provider{
		Lacking: provider.Lacking(cfg.Scheme), cfg: cfg, client: client, joined: map[string]*atomic.Bool{},
		at: func(string) error { return nil }, random: mathrand.Int64N,
	}
	for _, t := range cfg.Services.All() {
		if p.joined[t.Pool] != nil {
			continue
		}
		p.joined[t.Pool] = new(atomic.Bool)
		if err := p.hello(ctx, t); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

func (p *Provider) hello(ctx context.Context, terms provider.Terms) error {
	args := timelineArgs(terms)
	args.Set("commands", commands)
	return p.run(ctx, helloScript, terms, args)
}

// timelineArgs has a script compare the pool's timeline.
func timelineArgs(t provider.Terms) arguments {
	var a arguments
	a.Set("epoch_ms", t.Timeline.EpochMS)
	a.Set("bit_ts", t.Timeline.BitTS)
	return a
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info { return p.cfg.Info() }

// Close implements provider.Provider. Operations under way fail.
func (p *Provider) Close() error { return p.client.Close() }

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	terms := p.cfg.Services.Of(req.Service)
	args, err := p.acquireArgs(terms, req)
	if err != nil {
		return nil, err
	}
	// Of those that ask at once, one is the client's first.
	joined := p.joined[terms.Pool]
	if req.Client == provider.NewClient {
		args.Set("join", 1)
	} else if req.Client == provider.OwnClient && joined.CompareAndSwap(false, true) {
		args.Set("join", 1)
		defer func() {
			if err != nil && !isAnswer(err) {
				joined.Store(false)
			}
		}()
	}
	again := redisconn.Repeatable
	if req.RequestID == "" {
		again = redisconn.Once
	}
	var leases []lease.Lease
	leases, err = redisconn.Run(ctx, p.client, again, func(ctx context.Context, conn *redis.Conn) ([]lease.Lease, error) {
		if err := p.at(stepAsked); err != nil {
			return nil, err
		}
		r, err := p.eval(ctx, conn, acquireScript, terms, args)
		if err != nil {
			return nil, err
		}
		fresh := r.Text() == "1"
		leases := leasesOf(r, terms)
		if r.Err() != nil {
			return nil, r.Err()
		}
		if err := p.at(stepGranted); err != nil {
			return nil, err
		}
		if err := p.confirmGrant(ctx, conn, terms, req, leases, fresh); err != nil {
			return nil, err
		}
		return leases, p.at(stepConfirmed)
	})
	if err != nil {
		return nil, err
	}
	return leases, nil
}

func (p *Provider) acquireArgs(terms provider.Terms, req provider.AcquireRequest) (arguments, error) {
	meta, err := json.Marshal(req.Meta)
	if err != nil {
		return nil, err
	}
	secrets := make([]string, terms.LeaseCount(req.ThroughputPerMS))
	for i := range secrets {
		secrets[i] = provider.NewSecret()
	}
	ids := terms.Range()
	a := timelineArgs(terms)
	a.Set("service", req.Service)
	a.Set("request", req.RequestID)
	a.Set("meta", meta)
	a.Set("client", p.cfg.ClientID)
	a.Set("secrets", strings.Join(secrets, " "))
	a.Set("bit_seq", terms.BitSeq)
	a.Set("low", ids.Low)
	a.Set("high", ids.End-1)
	a.Set("cursor", ids.Low+p.random(ids.Count()))
	a.Set("term_ms", terms.Term.Milliseconds())
	a.Set("quarantine_ms", terms.Quarantine.Milliseconds())
	a.Set("clock_from_ms", max(terms.Timeline.EpochMS, 0))
	a.Set("clock_to_ms", min(terms.Timeline.EndMS(), maxClockMS))
	a.Set("max_rings", maxRings)
	a.Set("history_ms", historyKept.Milliseconds())
	a.Set("history_max", historyMax)
	p.setFenceArgs(&a, terms)
	return a, nil
}

func (p *Provider) setFenceArgs(a *arguments, terms provider.Terms) {
	a.Set("longest_ms", p.cfg.longestMS(terms.Pool))
	a.Set("min_replicas", p.cfg.MinReplicas)
	if p.cfg.FailoverFenceSet {
		a.Set("failover_fence_ms", p.cfg.FailoverFence.Milliseconds())
	}
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	terms := p.cfg.Services.Of(req.Service)
	_, err := redisconn.Run(ctx, p.client, redisconn.SentOnce, func(ctx context.Context, conn *redis.Conn) (struct{}, error) {
		return struct{}{}, p.release(ctx, conn, terms, req)
	})
	return err
}

// release checks the signature with the record's secret, which a script cannot,
// and then has the grant ended if the record still has that secret.
func (p *Provider) release(ctx context.Context, conn *redis.Conn, terms provider.Terms, req provider.ReleaseRequest) error {
	_, found, err := p.slots(ctx, conn, terms, []slotName{{req.ID, req.BitSeq}})
	if err != nil {
		return err
	}
	notOurs := provider.ErrNotFound
	for _, f := range found {
		if f.secret == "" {
			continue
		}
		if !req.Signed(f.secret) {
			notOurs = provider.ErrBadSignature
			continue
		}
		var args arguments
		args.Set("id", req.ID)
		args.Set("bit_seq", f.bitSeq)
		args.Set("secret", f.secret)
		args.Set("timestamp_ms", req.TimestampMS)
		args.Set("window_ms", provider.ReleaseWindow.Milliseconds())
		if req.AtEnd {
			args.Set("at_end", 1)
		}
		if err := cmp.Or(redisconn.Sending(ctx), p.at(stepReleasing)); err != nil {
			return err
		}
		_, err := p.eval(ctx, conn, releaseScript, terms, args)
		return err
	}
	return redisconn.Answer(notOurs)
}
