package provider

import (
	"context"

	"github.com/kazahana/kazahana/internal/lease"
)

// Signed reports, in constant time, whether the release was signed with the
// lease's secret.
func (r ReleaseRequest) Signed(secret string) bool {
	return lease.SameSignature(lease.Sign(secret, r.ID, r.TimestampMS), r.Signature)
}

// Signed reports the same of the claim.
func (c Claim) Signed(secret string) bool {
	return lease.SameSignature(lease.SignVerify(secret, c.ID, c.CreatedMS), c.Signature)
}

// Signed reports the same of the extension.
func (r ExtendRequest) Signed(secret string) bool {
	return lease.SameSignature(lease.SignExtend(secret, r.ID, r.CreatedMS, r.ExpiredMS), r.Signature)
}

// ClaimOf is the holder's claim to the lease.
func ClaimOf(l lease.Lease) Claim {
	return Claim{ID: l.ID, BitSeq: l.BitSeq, CreatedMS: l.Created, Signature: lease.SignVerify(l.Secret, l.ID, l.Created)}
}

// Verify asks the provider about leases, and returns the ones that are no longer the caller's.
func Verify(ctx context.Context, p Provider, service string, leases []lease.Lease) ([]lease.Lease, error) {
	claims := make([]Claim, len(leases))
	for i, l := range leases {
		claims[i] = ClaimOf(l)
	}
	positions, err := p.Verify(ctx, service, claims)
	if err != nil {
		return nil, err
	}
	lost := make([]lease.Lease, len(positions))
	for i, at := range positions {
		lost[i] = leases[at]
	}
	return lost, nil
}

// Extend extends the lease, and returns it as it is then, with its secret.
func Extend(ctx context.Context, p Provider, service string, l lease.Lease) (lease.Lease, error) {
	longer, err := p.Extend(ctx, ExtendRequest{
		Service: service, ID: l.ID, BitSeq: l.BitSeq, CreatedMS: l.Created, ExpiredMS: l.Expired,
		Signature: lease.SignExtend(l.Secret, l.ID, l.Created, l.Expired),
	})
	if err != nil {
		return lease.Lease{}, err
	}
	longer.Secret = l.Secret
	return longer, nil
}
