package leaseserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/lock"
	lockhttp "github.com/kazahana/kazahana/internal/lock/http"
	placementhttp "github.com/kazahana/kazahana/internal/placement/storage/http"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/record/recordhttp"
	sequencehttp "github.com/kazahana/kazahana/internal/sequence/http"
)

// Locks configures the lock service.
type Locks struct {
	Store lock.Store
	Host  *lock.Host // of the Store
}

// maxWaiters limits the requests that wait for locks at the same time; see
// Listening.waiters.
const maxWaiters = 4096

var errNoLocks = problem.New(problem.NotSupported, "this server has no store for locks")

// errStopping answers waiting requests when the server stops.
var errStopping = problem.New(problem.Overloaded, "this server is stopping").After(overloadedRetry)

// lockTenant is the tenant of the locks that the request is about.
func lockTenant(r *http.Request, who Credential) (string, error) {
	q, err := readQuery(r)
	if err != nil {
		return "", err
	}
	switch area := q.Get(lockhttp.ParamArea); {
	case area == "":
		return who.Tenant, nil
	case area != lockhttp.AreaPlacement:
		return "", problem.New(problem.InvalidRequest, "there is no area %q: the only one with a name is %q", area, lockhttp.AreaPlacement)
	case !slices.Contains(who.Scopes, ScopePlacements):
		return "", problem.New(problem.Forbidden, "this credential does not have the scope %q", ScopePlacements)
	}
	return who.placementTenant(), nil
}

// sameArea refuses a request for an area that its query has lost on the way.
func sameArea(r *http.Request, inBody string) error {
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	if area := q.Get(lockhttp.ParamArea); inBody != "" && inBody != area {
		return problem.New(problem.KeyMismatch, "the query names the area %q, and the body %q", area, inBody)
	}
	return nil
}

// calls returns the request with its tenant as the payer of new keys.
func (c Credential) calls(r *http.Request) *http.Request {
	return r.WithContext(bounds.Pay(r.Context(), fmt.Sprintf("tenant %q", c.Tenant)))
}

// placementTenant is the tenant's name in stores for placement.
func (c Credential) placementTenant() string { return c.Tenant + lockhttp.PlacementTenants }

// readLockCall reads a request about one lock and the owner that it acts for. A client with a
// request ID may ask again, here or at another instance.
func (s *Server) readLockCall(r *http.Request, who Credential, op lock.Op) (call lock.Request, err error) {
	if s.o.Locks == nil {
		return call, errNoLocks
	}
	var in lockhttp.Request
	if err := readStrict(r, &in); err != nil {
		return call, err
	}
	call = lock.Request{Op: op, Key: pathKey(r), LeaseID: in.LeaseID, Note: in.Note}
	if err := sameKey(r, lockhttp.ParamKey, call.Key, in.LockKey); err != nil {
		return call, err
	}
	if err := sameArea(r, in.Area); err != nil {
		return call, err
	}
	if call.Tenant, err = lockTenant(r, who); err != nil {
		return call, err
	}
	if call.Note != "" && call.Tenant == who.Tenant {
		return call, problem.New(problem.InvalidRequest, "only the locks of the area %q have a note", lockhttp.AreaPlacement)
	}
	if op == lock.Acquire && in.RequestID == in.LeaseID {
		call.RequestID = in.RequestID // a record has both in the room of one
	} else if call.RequestID, err = who.markRequestID(in.RequestID); err != nil {
		return call, err
	}
	if call.Owner, err = who.ownerOf(in.OwnerID, in.OwnerSuffix); err != nil {
		return call, err
	}
	if op != lock.Release {
		ttl, err := in.TTL()
		if err != nil {
			return call, err
		}
		call.TTLMS = ttl.Milliseconds()
	}
	if op == lock.Acquire {
		call.TTLMS = cmp.Or(call.TTLMS, lockhttp.DefaultTTL.Milliseconds())
		if in.WaitMS < 0 {
			return call, problem.New(problem.InvalidRequest, "wait_ms of %d is negative", in.WaitMS)
		}
		call.Wait = time.Duration(min(in.WaitMS, lockhttp.MaxWait.Milliseconds())) * time.Millisecond
		call.Elsewhere = call.RequestID != ""
		if call.LeaseID == "" {
			call.LeaseID = lock.NewLeaseID()
		}
	}
	return call, call.Validate()
}

// lockAcquire does not count among the requests under way while it waits in the queue.
func (s *Server) lockAcquire(w http.ResponseWriter, r *http.Request, who Credential, leave func()) error {
	call, err := s.readLockCall(r, who, lock.Acquire)
	if err != nil {
		return lockRefusal(who, call.Owner, err)
	}
	var l lock.Lease
	var waited time.Duration
	if call.Wait == 0 {
		l, err = s.acquireNow(r.Context(), call)
	} else {
		leave()
		l, waited, err = s.acquireWithin(r.Context(), clientKey(who, r.RemoteAddr), call)
	}
	s.o.Metrics.Lock(lock.Acquire.String(), s.result(err))
	if err != nil {
		return lockRefusal(who, call.Owner, err)
	}
	out := lockAnswer(who, l)
	out.WaitedMS = waited.Milliseconds()
	return answer(w, out)
}

// acquireNow asks the store, unless other requests wait for the lock already.
func (s *Server) acquireNow(ctx context.Context, call lock.Request) (l lock.Lease, err error) {
	err = s.storeCall(ctx, "lock_acquire", func(ctx context.Context) error {
		if s.o.Locks.Host.HasQueue(call.Tenant, call.Key) {
			l, err = s.o.Locks.Host.Acquire(ctx, call)
		} else {
			l, err = s.o.Locks.Store.Do(ctx, call)
		}
		return err
	})
	return l, err
}

// acquireWithin waits in the queue until the client's time is up or the server stops.
func (s *Server) acquireWithin(ctx context.Context, client string, call lock.Request) (lock.Lease, time.Duration, error) {
	leave, err := s.joinWaiters(client)
	if err != nil {
		s.pause(ctx)
		return lock.Lease{}, 0, err
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.leaving, func() { cancel(errStopping) })()
	return s.o.Locks.Host.AcquireTimed(ctx, call)
}

// joinWaiters takes a place among the requests that wait for locks, until leave. A client has three
// quarters of them.
func (s *Server) joinWaiters(client string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, ofClient := s.maxWaiters.Load(), max(s.maxWaiters.Load()/4*3, 1)
	if n := s.waiting[client]; n >= ofClient {
		return nil, s.overloaded("max_connections", "%d requests of this client wait for locks here, three quarters of all that may: see max_connections and memory_limit", n)
	}
	if n := s.waiters.Load(); n >= all {
		return nil, s.overloaded("max_connections", "%d requests wait for locks here, which is the limit: see max_connections and memory_limit", n)
	}
	s.waiting[client]++
	s.waiters.Add(1)
	s.o.Metrics.LockWaiters.Inc()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting[client]--; s.waiting[client] == 0 {
			delete(s.waiting, client)
		}
		s.waiters.Add(-1)
		s.o.Metrics.LockWaiters.Dec()
	}, nil
}

func (s *Server) lockRenew(w http.ResponseWriter, r *http.Request, who Credential) error {
	return s.lockChange(w, r, who, lock.Renew)
}

func (s *Server) lockRelease(w http.ResponseWriter, r *http.Request, who Credential) error {
	return s.lockChange(w, r, who, lock.Release)
}

func (s *Server) lockChange(w http.ResponseWriter, r *http.Request, who Credential, op lock.Op) error {
	call, err := s.readLockCall(r, who, op)
	if err != nil {
		return lockRefusal(who, call.Owner, err)
	}
	var l lock.Lease
	err = s.storeCall(r.Context(), "lock_"+op.String(), func(ctx context.Context) (err error) {
		l, err = s.o.Locks.Host.Change(ctx, call)
		return err
	})
	s.o.Metrics.Lock(op.String(), s.result(err))
	if err != nil {
		return lockRefusal(who, call.Owner, err)
	}
	return answer(w, lockAnswer(who, l))
}

func (s *Server) lockGet(w http.ResponseWriter, r *http.Request, who Credential) error {
	if s.o.Locks == nil {
		return errNoLocks
	}
	key := pathKey(r)
	if err := sameKey(r, lockhttp.ParamKey, key, ""); err != nil {
		return err
	}
	tenant, err := lockTenant(r, who)
	if err != nil {
		return err
	}
	var l lock.Lease
	if err := s.storeCall(r.Context(), "lock_get", func(ctx context.Context) (err error) {
		l, err = s.o.Locks.Store.Get(ctx, tenant, key)
		return err
	}); err != nil {
		return err
	}
	return answer(w, lockAnswer(who, l))
}

func (s *Server) lockList(w http.ResponseWriter, r *http.Request, who Credential) error {
	if s.o.Locks == nil {
		return errNoLocks
	}
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	tenant, err := lockTenant(r, who)
	if err != nil {
		return err
	}
	limit := int64(lockhttp.DefaultLimit)
	if given, err := number(q, lockhttp.ParamLimit); err != nil {
		return err
	} else if given != nil {
		limit = min(max(*given, 0), lock.MaxList+1) // a value out of range stays out of range
	}
	var page []lock.Lease
	if err := s.storeCall(r.Context(), "lock_list", func(ctx context.Context) (err error) {
		page, err = s.o.Locks.Store.List(ctx, tenant, q.Get(lockhttp.ParamAfter), int(limit))
		return err
	}); err != nil {
		return err
	}
	out := lockhttp.Page{Locks: make([]lockhttp.Answer, len(page))}
	for i, l := range page {
		out.Locks[i] = lockAnswer(who, l)
	}
	return answer(w, out)
}

func lockAnswer(who Credential, l lock.Lease) lockhttp.Answer {
	return lockhttp.Answer{Answer: l.Answer(), OwnerSuffix: who.suffixOf(l.Owner), Repeated: l.Repeated}
}

// lockRefusal adds details to a refusal that only this credential may see. The owner is the
// caller.
func lockRefusal(who Credential, owner string, err error) error {
	held, ok := errors.AsType[*lock.HeldError](err)
	if !ok {
		return err
	}
	p := lockhttp.FromError(held)
	if p.OwnerSuffix = who.suffixOf(held.Owner); p.OwnerSuffix != nil && held.RequestID != "" {
		p.RequestDigest, p.RequestMark = []byte(held.RequestID), who.mark()
	}
	if held.Owner == owner {
		p.Detail = fmt.Sprintf("this owner holds the lock already, by another request: %v", held)
	}
	return p
}

// storeCall runs one call to the store of locks, sequences or activation records, with
// the time limit of provider calls.
func (s *Server) storeCall(ctx context.Context, op string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.ProviderTimeout)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	s.o.Metrics.Called(op, time.Since(began))
	return err
}

// problemOf converts an error to a problem.
func (s *Server) problemOf(err error) *problem.Problem {
	if p := lockhttp.FromError(err); p != nil {
		return p
	}
	if p := sequencehttp.FromError(err, s.o.NowMS()); p != nil {
		return p
	}
	if p := placementhttp.FromError(err); p != nil {
		return p
	}
	if errors.Is(err, lock.ErrClosed) {
		return errStopping
	}
	if p := recordhttp.FromError(err); p != nil {
		return p
	}
	if errors.Is(err, record.ErrCrowded) {
		return problem.New(problem.Overloaded, "%v", record.ErrCrowded).After(overloadedRetry)
	}
	return leaseapi.FromError(err, s.o.NowMS())
}
