package runner

import (
	"context"
	"errors"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Release hands the lease back as of the first of the times, in Unix ms, that the
// provider accepts, and returns that time. Providers accept the last millisecond of the
// lease even if it is far ahead. No call takes longer than the timeout, and none is cut
// off when ctx is done.
func Release(ctx context.Context, p provider.Provider, service string, timeout time.Duration, l lease.Lease, times ...int64) (atMS int64, err error) {
	for _, atMS = range times {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		err = p.Release(ctx, provider.ReleaseRequest{
			Service: service, ID: l.ID, BitSeq: l.BitSeq, TimestampMS: atMS, AtEnd: atMS == l.Expired-1,
			Signature: lease.Sign(l.Secret, l.ID, atMS),
		})
		cancel()
		if !errors.Is(err, provider.ErrTimestampSkew) {
			break
		}
	}
	return atMS, err
}
