package tracing

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Provider traces the calls of the provider. The result has the same optional
// capabilities as p.
func (t *Tracing) Provider(p provider.Provider) provider.Provider {
	if t == nil {
		return p
	}
	return withCapabilities(p, &traced{Provider: p, tracing: t, where: target(p.Info().URL)})
}

// ready is a provider that opens at its first use: see backend.Ready.
type ready interface{ Ready(context.Context) error }

// withCapabilities returns a wrapper with exactly the optional methods of p. Each set
// of methods needs a type of its own; the sets are those of the existing providers,
// which a test opens.
func withCapabilities(p provider.Provider, t *traced) provider.Provider {
	verifier, verifies := p.(provider.Verifier)
	lister, lists := p.(provider.Lister)
	extender, extends := p.(provider.Extender)
	locator, locates := p.(provider.Locator)
	counter, counts := p.(provider.Counter)
	initializer, initializes := p.(provider.Initializer)
	opener, opens := p.(ready)
	type five struct {
		*traced
		tracedVerifier
		tracedExtender
		provider.Lister
		provider.Locator
		provider.Counter
	}
	all := five{t, tracedVerifier{t, verifier}, tracedExtender{t, extender}, lister, locator, counter}
	switch [7]bool{verifies, lists, extends, locates, counts, initializes, opens} {
	case [7]bool{}:
		return t
	case [7]bool{2: true}:
		return struct {
			*traced
			tracedExtender
		}{t, all.tracedExtender}
	case [7]bool{true, true, true, true, true}:
		return all
	case [7]bool{true, true, true, true, true, true, true}:
		return struct {
			five
			provider.Initializer
			ready
		}{all, initializer, opener}
	}
	panic(fmt.Sprintf("tracing: no wrapper for the capabilities of %T", p))
}

type traced struct {
	provider.Provider
	tracing *Tracing
	where   []attribute.KeyValue
}

func (p *traced) begin(ctx context.Context, op, service string, more ...attribute.KeyValue) context.Context {
	attributes := append(p.where[:len(p.where):len(p.where)], semconv.DBOperationName(op))
	if service != "" {
		attributes = append(attributes, keyService.String(service))
	}
	return p.tracing.call(ctx, "provider "+op, append(attributes, more...)...)
}

// end ends the span of a call about these machine IDs.
func end(ctx context.Context, err error, machineIDs ...int64) {
	word, failed := providerOutcome(err)
	var attributes []attribute.KeyValue
	if n := len(machineIDs); n > 0 {
		attributes = []attribute.KeyValue{keyLeases.Int(n), keyIDs.Int64Slice(machineIDs[:min(n, maxIDs)])}
	}
	text := ""
	if failed {
		text = err.Error()
	}
	finish(ctx, word, failed, text, attributes...)
}

// Acquire implements provider.Provider.
func (p *traced) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	ctx = p.begin(ctx, "acquire", req.Service)
	leases, err := p.Provider.Acquire(ctx, req)
	ids := make([]int64, len(leases))
	for i, l := range leases {
		ids[i] = l.ID
	}
	end(ctx, err, ids...)
	return leases, err
}

// Release implements provider.Provider.
func (p *traced) Release(ctx context.Context, req provider.ReleaseRequest) error {
	ctx = p.begin(ctx, "release", req.Service, keyIDs.Int64Slice([]int64{req.ID}))
	err := p.Provider.Release(ctx, req)
	end(ctx, err)
	return err
}

type tracedVerifier struct {
	p        *traced
	verifier provider.Verifier
}

// Verify implements provider.Verifier. The span names the leases that were lost.
func (v tracedVerifier) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	ctx = v.p.begin(ctx, "verify", service)
	lost, err = v.verifier.Verify(ctx, service, claims)
	var ids []int64
	for _, i := range lost {
		ids = append(ids, claims[i].ID)
	}
	end(ctx, err, ids...)
	return lost, err
}

type tracedExtender struct {
	p        *traced
	extender provider.Extender
}

// Extend implements provider.Extender.
func (e tracedExtender) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	ctx = e.p.begin(ctx, "extend", req.Service)
	longer, err := e.extender.Extend(ctx, req)
	end(ctx, err, req.ID)
	return longer, err
}
