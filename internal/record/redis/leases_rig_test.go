package redis_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

const (
	testTime = snowflake.DefaultEpochMS + 100*24*3600*1000

	stop   = syscall.SIGSTOP
	resume = syscall.SIGCONT

	whyMissing = "had no record of the leases"
	whyChanged = "was restarted, or another one has taken its place"
)

// longest is term and quarantine of a pool's default terms, in ms.
var longest = provider.DefaultTerms().LongestMS()

// leasing is one pool of machine IDs, with a clock that the test sets, on servers that come and
// go.
type leasing struct {
	*testing.T
	clock    atomic.Int64
	options  options
	provider *pool.Provider
}

// newPool opens a declared pool of four machine IDs.
func newPool(t *testing.T, s *redistest.Server, edit ...func(*options)) *leasing {
	t.Helper()
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 0, End: 4}
	p := &leasing{T: t, options: options{Config: s.Config(), services: provider.Services{Default: terms}}}
	p.clock.Store(testTime)
	p.options.NowMS = p.clock.Load
	p.options.ConfirmWait = await.Patience // a slow machine's replica is not a silent one
	for _, e := range edit {
		e(&p.options)
	}
	p.provider = p.open(p.options)
	p.init()
	return p
}

func (p *leasing) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	p.Cleanup(cancel)
	return ctx
}

func (p *leasing) open(o options) *pool.Provider {
	p.Helper()
	opened, err := openLeases(o)
	must.Succeed(p, err)
	p.Cleanup(func() { opened.Close() })
	return opened
}

// on opens the same pool on another server, or with other settings.
func (p *leasing) on(s *redistest.Server, edit ...func(*options)) *pool.Provider {
	p.Helper()
	o := p.options
	o.Addrs = []string{s.Sock}
	for _, e := range edit {
		e(&o)
	}
	return p.open(o)
}

// longTerm is an edit: the leases last longer.
func longTerm(o *options) { o.services.Default.Term = 3 * time.Hour }

// init declares the pool new.
func (p *leasing) init() {
	p.Helper()
	must.Succeed(p, p.provider.Init(p.context(), ""))
}

func (p *leasing) acquire(from provider.Provider) lease.Lease {
	p.Helper()
	leases, err := from.Acquire(p.context(), provider.AcquireRequest{RequestID: provider.NewSecret()})
	must.Succeed(p, err)
	return leases[0]
}

// fenced acquires where the fence must refuse until a time.
func (p *leasing) fenced(from provider.Provider, untilMS int64, why string) {
	p.Helper()
	leases, err := from.Acquire(p.context(), provider.AcquireRequest{RequestID: provider.NewSecret()})
	fenced, ok := errors.AsType[*provider.FencedError](err)
	if !ok {
		p.Fatalf("Acquire gave %v and the error %v, want a FencedError", leases, err)
	}
	if fenced.UntilMS != untilMS || !strings.Contains(fenced.Reason, why) {
		p.Fatalf("the error is %v (%d ms from now), want one until %d ms from now because of %q",
			err, fenced.UntilMS-p.clock.Load(), untilMS-p.clock.Load(), why)
	}
}

// lost is how many of the leases are, by the word of a provider.
func (p *leasing) lost(by provider.Provider, leases ...lease.Lease) int {
	p.Helper()
	lost, err := provider.Verify(p.context(), by, "", leases)
	must.Succeed(p, err)
	return len(lost)
}

// persistent has every write on disk before it is answered.
func persistent(t testing.TB) *redistest.Server {
	return redistest.New(t, "--appendonly", "yes", "--appendfsync", "always")
}
