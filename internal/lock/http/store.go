package http

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/recordhttp"
)

// maxAnswer bounds an answer: the largest page, with keys and notes of which every byte
// is escaped as six.
const maxAnswer = lock.MaxList * (6*(lock.MaxKey+lock.MaxNote) + 1024)

// giveBackTimeout is how long the release of another key's lease may take.
const giveBackTimeout = 5 * time.Second

// Store is locks on a lease server.
type Store struct{ client *httpconn.Client }

var _ lock.Store = (*Store)(nil)

// New uses a client, which its maker closes.
func New(client *httpconn.Client) *Store { return &Store{client} }

// Waits implements lock.Store.
func (s *Store) Waits() bool { return true }

// Do implements lock.Store. RemainingMS includes the server's wait, because it is counted from
// before the request was sent.
func (s *Store) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if err := r.Validate(); err != nil {
		return lock.Lease{}, err
	}
	area, wait := areaOf(r.Tenant), min(r.Wait, MaxWait)
	body := Request{LockKey: r.Key, Area: area.Get(ParamArea), WaitMS: wait.Milliseconds(), RequestID: r.RequestID, LeaseID: r.LeaseID, OwnerSuffix: &r.Owner, Note: r.Note}
	if r.TTLMS != 0 {
		body.TTLMS = &r.TTLMS
	}
	var answer Answer
	err := s.call(ctx, r.Key, httpconn.Call{
		Method: "POST", Path: Path + "/" + httpconn.Escape(r.Key) + "/" + r.Op.String(), Query: area, Body: body, Answer: &answer, Limit: maxAnswer,
		Patience: wait, Once: r.RequestID == "" && (r.Op != lock.Renew || r.LeaseID == ""),
	})
	if err != nil {
		return lock.Lease{}, err
	}
	l, err := answer.lease()
	if err == nil && l.Key != r.Key {
		return lock.Lease{}, s.giveBack(ctx, r, l)
	}
	l.RemainingMS += answer.WaitedMS
	return l, err
}

// giveBack releases a lease of another key than was asked for, and returns the error that says so.
// The path that led to that key leads to it again.
func (s *Store) giveBack(ctx context.Context, r lock.Request, l lock.Lease) error {
	if r.Op != lock.Acquire {
		return recordhttp.ForOther(r.Key, l.Key, "")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	body := Request{LeaseID: l.LeaseID, OwnerSuffix: &r.Owner}
	err := s.client.Do(ctx, httpconn.Call{
		Method: "POST", Path: Path + "/" + httpconn.Escape(r.Key) + "/" + lock.Release.String(), Query: areaOf(r.Tenant), Body: body, Answer: &Answer{}, Limit: maxAnswer,
	})
	if err != nil { // the lock may also be another client's, if answers are mixed up
		return recordhttp.ForOther(r.Key, l.Key, ", and a lock that it granted stays taken until its term ends")
	}
	return recordhttp.ForOther(r.Key, l.Key, ", and that lock was released again")
}

// Notify implements lock.Store: a server waits instead.
func (s *Store) Notify(context.Context, string, string) (<-chan struct{}, error) {
	return nil, errors.ErrUnsupported
}

// Changes implements lock.Store.
func (s *Store) Changes(context.Context, string, string) (<-chan struct{}, error) {
	return nil, errors.ErrUnsupported
}

// Get implements lock.Store.
func (s *Store) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	if err := lock.CheckKey(tenant, key); err != nil {
		return lock.Lease{}, err
	}
	var answer Answer
	query := areaOf(tenant)
	query.Set(ParamKey, key)
	err := s.call(ctx, key, httpconn.Call{Method: "GET", Path: Path + "/" + httpconn.Escape(key), Query: query, Answer: &answer, Limit: maxAnswer})
	if err != nil {
		return lock.Lease{}, err
	}
	l, err := answer.lease()
	if err == nil && l.Key != key {
		return lock.Lease{}, recordhttp.ForOther(key, l.Key, "")
	}
	return l, err
}

// List implements lock.Store.
func (s *Store) List(ctx context.Context, tenant, after string, limit int) ([]lock.Lease, error) {
	if err := lock.CheckPage(tenant, after, limit); err != nil {
		return nil, err
	}
	query := areaOf(tenant)
	query.Set(ParamLimit, strconv.Itoa(limit))
	if after != "" {
		query.Set(ParamAfter, after)
	}
	var page Page
	if err := s.call(ctx, "", httpconn.Call{Method: "GET", Path: Path, Query: query, Answer: &page, Limit: maxAnswer}); err != nil {
		return nil, err
	}
	locks := make([]lock.Lease, len(page.Locks))
	previous := after
	for i, a := range page.Locks {
		var err error
		if locks[i], err = a.lease(); err != nil {
			return nil, err
		}
		if i >= limit || locks[i].Key <= previous {
			return nil, &record.StrayError{Err: fmt.Errorf("the server answered with %d locks and %q after %q, when asked for %d: a proxy drops or changes the query",
				len(page.Locks), locks[i].Key, previous, limit)}
		}
		previous = locks[i].Key
	}
	return locks, nil
}

// areaOf is the query of a request for a tenant. The server takes only the area from it:
// the tenant is the credential's.
func areaOf(tenant string) url.Values {
	if strings.HasSuffix(tenant, PlacementTenants) {
		return url.Values{ParamArea: {AreaPlacement}}
	}
	return url.Values{}
}

// call asks the servers. A settled refusal becomes the error of package lock.
func (s *Store) call(ctx context.Context, key string, k httpconn.Call) error {
	return recordhttp.Refused(s.client.Do(ctx, k), func(p *problem.Problem) error { return toError(key, p) })
}

func (a Answer) lease() (lock.Lease, error) {
	l, err := a.Answer.Lease()
	if err != nil || l.Key == "" || l.LeaseID == "" || l.Token < 1 || l.State == "" {
		return lock.Lease{}, errors.New("the server's answer is no lease: is it a lease server?")
	}
	l.Owner, l.Repeated = owner(a.OwnerID, a.OwnerSuffix), a.Repeated
	return l, nil
}
