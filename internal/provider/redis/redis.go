package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

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

// The steps of an acquire that Provider.at is told of.
const (
	stepAsked     = "asked"     // has a connection, nothing sent
	stepGranted   = "granted"   // the script has run, replicas have not been waited for
	stepConfirmed = "confirmed" // the caller does not know yet
)

// Provider grants leases from a Redis server.
type Provider struct {
	cfg      Config
	client   *redis.Client
	clientID string                  // one per opened provider, for people who read the records
	joined   map[string]*atomic.Bool // by pool: whether this client has been counted

	// at is called at the named steps of an acquire. Only tests set it: there a
	// process dies.
	at func(step string) error

	closeOnce sync.Once
	closing   chan struct{}  // closed by Close
	calls     sync.WaitGroup // operations under way
	mu        sync.Mutex     // held to add to calls, or to close closing
	closeErr  error
}

var (
	_ provider.Provider    = (*Provider)(nil)
	_ provider.Verifier    = (*Provider)(nil)
	_ provider.Lister      = (*Provider)(nil)
	_ provider.Extender    = (*Provider)(nil)
	_ provider.Locator     = (*Provider)(nil)
	_ provider.Initializer = (*Provider)(nil)
	_ provider.Counter     = (*Provider)(nil)
)

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
	client, err := cfg.connect()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.place(), err)
	}
	p := &Provider{
		cfg: cfg, client: client, clientID: newClientID(), joined: map[string]*atomic.Bool{},
		at: func(string) error { return nil }, closing: make(chan struct{}),
	}
	for _, t := range cfg.allTerms() {
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

// newClientID names this client in the records that it makes: host, time, and
// what tells two of one host and millisecond apart.
func newClientID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var b [4]byte
	rand.Read(b[:]) // never fails (crypto/rand ends the program instead)
	return fmt.Sprintf("%s-%d-%s", host, time.Now().UnixMilli(), hex.EncodeToString(b[:]))
}

func (p *Provider) hello(ctx context.Context, terms provider.Terms) error {
	_, err := run(ctx, p, repeatable, func(ctx context.Context, conn *redis.Conn) (struct{}, error) {
		args := timelineArgs(terms)
		args.set("commands", commands)
		return struct{}{}, p.expectOK(p.eval(ctx, conn, helloScript, terms.Pool, args))(terms)
	})
	return err
}

// expectOK is for answers that carry nothing.
func (p *Provider) expectOK(r *reply, err error) func(provider.Terms) error {
	return func(terms provider.Terms) error {
		if err != nil {
			return err
		}
		if word := r.text(); word != "ok" {
			return p.refusal(word, r, terms)
		}
		return nil
	}
}

// timelineArgs has a script compare the pool's timeline.
func timelineArgs(t provider.Terms) arguments {
	var a arguments
	a.set("epoch_ms", t.Timeline.EpochMS)
	a.set("bit_ts", t.Timeline.BitTS)
	return a
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info { return p.cfg.Info() }

// Close implements provider.Provider. Operations under way fail.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() {
		p.mu.Lock()
		close(p.closing)
		p.mu.Unlock()
		p.closeErr = p.client.Close()
		p.calls.Wait()
	})
	return p.closeErr
}

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
	if joined.CompareAndSwap(false, true) {
		args.set("join", 1)
		defer func() {
			if err != nil && !isAnswer(err) {
				joined.Store(false)
			}
		}()
	}
	again := repeatable
	if req.RequestID == "" {
		again = once
	}
	var leases []lease.Lease
	leases, err = run(ctx, p, again, func(ctx context.Context, conn *redis.Conn) ([]lease.Lease, error) {
		if err := p.at(stepAsked); err != nil {
			return nil, err
		}
		r, err := p.eval(ctx, conn, acquireScript, terms.Pool, args)
		if err != nil {
			return nil, err
		}
		if word := r.text(); word != "ok" {
			return nil, p.refusal(word, r, terms)
		}
		fresh := r.text() == "1"
		leases := r.leases(terms)
		if r.broken != nil {
			return nil, r.broken
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
	a.set("service", req.Service)
	a.set("request", req.RequestID)
	a.set("meta", meta)
	a.set("client", p.clientID)
	a.set("secrets", strings.Join(secrets, " "))
	a.set("bit_seq", terms.BitSeq)
	a.set("low", ids.Low)
	a.set("high", ids.End-1)
	a.set("cursor", ids.Low+mathrand.Int64N(ids.Count()))
	a.set("term_ms", terms.Term.Milliseconds())
	a.set("quarantine_ms", terms.Quarantine.Milliseconds())
	a.set("clock_from_ms", max(terms.Timeline.EpochMS, 0))
	a.set("clock_to_ms", min(terms.Timeline.EndMS(), maxClockMS))
	a.set("max_rings", maxRings)
	a.set("history_ms", historyKept.Milliseconds())
	a.set("history_max", historyMax)
	p.setFenceArgs(&a, terms)
	return a, nil
}

func (p *Provider) setFenceArgs(a *arguments, terms provider.Terms) {
	a.set("longest_ms", p.cfg.longestMS(terms.Pool))
	a.set("min_replicas", p.cfg.MinReplicas)
	if p.cfg.FailoverFenceSet {
		a.set("failover_fence_ms", p.cfg.FailoverFence.Milliseconds())
	}
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	terms := p.cfg.Services.Of(req.Service)
	_, err := run(ctx, p, repeatable, func(ctx context.Context, conn *redis.Conn) (struct{}, error) {
		return struct{}{}, p.release(ctx, conn, terms, req)
	})
	return err
}

// release checks the signature with the record's secret, which a script cannot,
// and then has the grant ended if the record still has that secret.
func (p *Provider) release(ctx context.Context, conn *redis.Conn, terms provider.Terms, req provider.ReleaseRequest) error {
	var args arguments
	args.set("id", req.ID)
	args.set("bit_seq", req.BitSeq)
	r, err := p.eval(ctx, conn, secretsScript, terms.Pool, args)
	if err != nil {
		return err
	}
	if word := r.text(); word != "ok" {
		return p.refusal(word, r, terms)
	}
	notOurs := provider.ErrNotFound
	for r.more() {
		bitSeq, secret := r.number(), r.text()
		if !lease.Verify(secret, req.ID, req.TimestampMS, req.Signature) {
			notOurs = provider.ErrBadSignature
			continue
		}
		var args arguments
		args.set("id", req.ID)
		args.set("bit_seq", bitSeq)
		args.set("secret", secret)
		args.set("timestamp_ms", req.TimestampMS)
		args.set("window_ms", provider.ReleaseWindow.Milliseconds())
		return p.expectOK(p.eval(ctx, conn, releaseScript, terms.Pool, args))(terms)
	}
	return errors.Join(r.broken, notOurs)
}
