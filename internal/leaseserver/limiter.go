package leaseserver

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/kazahana/kazahana/internal/operator/limitlistener"
)

// maxClients is how many clients have a bucket of their own at the same time.
const maxClients = 1 << 16

// limiter limits the rate of each client's requests. An acquire costs as many as it takes leases.
type limiter struct {
	limit rate.Limit
	burst int

	clients map[string]*rate.Limiter
	// others is shared by the clients that do not fit into the table.
	others *rate.Limiter
}

// newLimiter allows perSecond requests, and burst at once. With 0 there is no limit.
func newLimiter(perSecond float64, burst int) *limiter {
	l := &limiter{limit: rate.Limit(perSecond), burst: burst, clients: map[string]*rate.Limiter{}}
	if perSecond <= 0 {
		l.limit = rate.Inf
	}
	l.others = rate.NewLimiter(l.limit, burst)
	return l
}

// wait counts a request. It returns 0 if the request may be served, else the time after
// which one may.
func (l *limiter) wait(client string, now time.Time) time.Duration { return l.take(client, 1, now) }

// waitFor counts the leases of an acquire, except for the first one, which was counted as the
// request. It returns 0 if they may be granted, else the time after which the client may ask
// again. No client is asked for more than a full bucket.
func (l *limiter) waitFor(leases int, client string, now time.Time) time.Duration {
	more := min(leases, l.burst) - 1
	wait := l.take(client, more, now)
	if wait > 0 { // the next request counts itself again
		wait += time.Duration(float64(time.Second) / float64(l.limit))
	}
	return wait
}

// take takes n from the client's bucket, or nothing: then it returns when n will be there.
func (l *limiter) take(client string, n int, now time.Time) time.Duration {
	if l.limit == rate.Inf || n < 1 {
		return 0
	}
	reservation := l.of(client, now).ReserveN(now, n)
	wait := reservation.DelayFrom(now)
	if wait > 0 {
		reservation.CancelAt(now)
	}
	return wait
}

func (l *limiter) of(client string, now time.Time) *rate.Limiter {
	if known, ok := l.clients[client]; ok {
		return known
	}
	if len(l.clients) >= maxClients {
		l.sweep(now)
	}
	if len(l.clients) >= maxClients {
		return l.others
	}
	fresh := rate.NewLimiter(l.limit, l.burst)
	l.clients[client] = fresh
	return fresh
}

// sweep forgets clients with a full bucket: a new bucket would be equal.
func (l *limiter) sweep(now time.Time) {
	for name, c := range l.clients {
		if c.TokensAt(now) >= float64(l.burst) {
			delete(l.clients, name)
		}
	}
}

// tenantAt names a client to the operator.
func tenantAt(who Credential, remote string) string {
	return "tenant " + who.Tenant + " at " + peerOf(remote)
}

// clientKey identifies a client by its credential and its address, since all hosts may
// share one token.
func clientKey(who Credential, remote string) string {
	return who.Tenant + "\x00" + who.Owner + "\x00" + peerOf(remote)
}

// peerOf is the part of a peer's address that counts. On a Unix socket it is "@" or "".
func peerOf(remote string) string {
	if network := limitlistener.Network(remote); network.IsValid() {
		return network.Addr().String()
	}
	return remote
}
