package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Provider traces the calls of the provider that ask for leases. What only operators
// ask is not traced.
func (t *Tracing) Provider(p provider.Provider) provider.Provider {
	if t == nil {
		return p
	}
	return &traced{Provider: p, tracing: t, where: target(p.Info().URL)}
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

// end ends the span of a call about the machine IDs, or that brought them.
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

// Verify implements provider.Provider. The span has the leases that were lost.
func (p *traced) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	ctx = p.begin(ctx, "verify", service)
	lost, err = p.Provider.Verify(ctx, service, claims)
	var ids []int64
	for _, i := range lost {
		ids = append(ids, claims[i].ID)
	}
	end(ctx, err, ids...)
	return lost, err
}

// Extend implements provider.Provider.
func (p *traced) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	ctx = p.begin(ctx, "extend", req.Service)
	longer, err := p.Provider.Extend(ctx, req)
	end(ctx, err, req.ID)
	return longer, err
}
