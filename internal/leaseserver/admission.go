package leaseserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/problem"
)

// enter takes a place among the requests under way, until leave.
func (s *Server) enter(context.Context) (leave func(), err error) {
	select {
	case s.slots <- struct{}{}:
		return s.left(s.slots), nil
	default:
		return nil, s.overloaded("max_in_flight", "this server has %d requests under way, which is its limit (max_in_flight)", cap(s.slots))
	}
}

func (s *Server) left(place chan struct{}) (leave func()) {
	s.o.Metrics.InFlight.Inc()
	return sync.OnceFunc(func() {
		s.o.Metrics.InFlight.Dec()
		<-place
	})
}

// enterUpkeep is enter for requests that have places of their own, and wait for one: a client
// that is refused may lose its lock.
func (s *Server) enterUpkeep(ctx context.Context) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.ProviderTimeout)
	defer cancel()
	select {
	case s.upkeep <- struct{}{}:
		return s.left(s.upkeep), nil
	case <-ctx.Done():
		return nil, s.overloaded("max_in_flight", "this server has %d requests for the upkeep of locks under way, and none ends", cap(s.upkeep))
	}
}

// overloaded is the problem of a refusal because the limit is reached.
func (s *Server) overloaded(limit, format string, args ...any) error {
	p := problem.New(problem.Overloaded, format, args...).After(overloadedRetry)
	s.o.Refusals.Refuse(limit, p.Detail)
	return p
}

// admit finds the credential of the request, which must have the scope.
func (s *Server) admit(r *http.Request, scope Scope) (Credential, error) {
	who, err := s.authenticate(r)
	if err != nil {
		return Credential{}, err
	}
	var wait time.Duration
	if s.note(func(b *stats) { wait = b.limits.wait(clientKey(who, r.RemoteAddr), time.Now()) }); wait > 0 {
		return Credential{}, s.tooFast(r, who, wait)
	}
	if !slices.Contains(who.Scopes, scope) {
		return Credential{}, problem.New(problem.Forbidden, "this credential does not have the scope %q", scope)
	}
	// A page in a browser must not take machine IDs from a server that trusts every
	// client that reaches it.
	if err := s.origins.Check(r); err != nil || admin.FromOtherSite(r) || s.o.Tokens == nil && !s.o.ClientCertificates && ofRenamedPage(r) {
		return Credential{}, problem.New(problem.Forbidden, "requests from pages of other sites are refused")
	}
	return who, nil
}

// charge counts the leases that an acquire is going to take against the client's rate.
func (s *Server) charge(r *http.Request, who Credential, leases int) error {
	var wait time.Duration
	if s.note(func(b *stats) { wait = b.limits.waitFor(leases, clientKey(who, r.RemoteAddr), time.Now()) }); wait > 0 {
		return s.tooFast(r, who, wait)
	}
	return nil
}

// tooFast is the problem of a client that is beyond its rate, after a pause.
func (s *Server) tooFast(r *http.Request, who Credential, wait time.Duration) error {
	s.o.Refusals.Refuse("rate_limit", fmt.Sprintf("more than %v requests per second of %s", s.o.RateLimit, tenantAt(who, r.RemoteAddr)))
	s.pause(r.Context())
	return problem.New(problem.RateLimited, "more than %v requests per second; an acquire counts once for each lease", s.o.RateLimit).After(wait)
}

// pause delays the answer to a request that is refused: a client that asks again at once would
// keep the server busy.
func (s *Server) pause(ctx context.Context) {
	select {
	case <-s.after(refusalPause):
	case <-ctx.Done():
	case <-s.leaving.Done():
	}
}

// ofRenamedPage reports whether the request comes from a browser page that may be another site's,
// with a name that DNS rebinding has pointed at this server.
func ofRenamedPage(r *http.Request) bool {
	if r.Header.Get("Origin") == "" && r.Header.Get("Sec-Fetch-Site") == "" {
		return false // not a browser
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	_, err = netip.ParseAddr(strings.Trim(host, "[]"))
	return err != nil && host != "localhost"
}
