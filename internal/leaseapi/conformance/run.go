package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

// Outcome of a check.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Missing Outcome = "missing (optional)" // a daemon works without it
	Failed  Outcome = "FAILED"
)

// Result is the result of one check.
type Result struct {
	Name    string
	Outcome Outcome
	Note    string // why, unless it is OK
}

// Config describes the server to check.
type Config struct {
	Client  *httpconn.Client
	Service string        // "" = the server's default
	Timeout time.Duration // of one request
}

// check is one property. An error of type missing means that the server lacks it; any
// other error is a failure.
type check struct {
	name string
	run  func(*suite) error
}

// missing is the error of a check for an optional part that the server lacks.
type missing struct{ without string }

func (m *missing) Error() string { return m.without }

// errCannotGoOn ends the run: the other checks depend on the failed one.
var errCannotGoOn = errors.New("the other checks need this, and were not made")

// Run makes all checks, calls report with each result, and reports whether none failed.
// It gives its leases back.
func Run(ctx context.Context, c Config, report func(Result)) bool {
	s := &suite{Config: c, ctx: ctx, held: map[lease.Key]lease.Lease{}}
	passed := true
	for _, check := range append(required[:len(required):len(required)], optional...) {
		err := check.run(s)
		r := Result{Name: check.name, Outcome: OK}
		if lacks, ok := errors.AsType[*missing](err); ok {
			r.Outcome, r.Note = Missing, lacks.without
		} else if err != nil {
			r.Outcome, r.Note = Failed, err.Error()
			passed = false
		}
		report(r)
		if errors.Is(err, errCannotGoOn) || ctx.Err() != nil {
			break
		}
	}
	last := Result{Name: "leases whose slots overlap are never valid at the same time", Outcome: OK}
	if err := s.finish(); err != nil {
		last.Outcome, last.Note, passed = Failed, err.Error(), false
	}
	report(last)
	return passed
}

// suite is one run.
type suite struct {
	Config
	ctx    context.Context
	grants []grant                   // all grants
	held   map[lease.Key]lease.Lease // leases that were not given back
	first  lease.Lease
}

// grant is a lease and the time until which it took its slot.
type grant struct {
	lease lease.Lease
	end   int64
}

// send makes one request. It neither repeats the request nor reuses a connection.
func (s *suite) send(method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.Timeout)
	defer cancel()
	return s.Client.Do(ctx, httpconn.Call{Method: method, Path: path, Body: body, Answer: into, Limit: maxAnswer, SentOnce: true, Alone: true})
}

// maxAnswer bounds an answer; this suite asks for a few leases at most.
const maxAnswer = 1 << 20

// acquire takes leases with the fields, and notes them.
func (s *suite) acquire(fields map[string]any) (leaseapi.Granted, error) {
	body := map[string]any{}
	if s.Service != "" {
		body["serviceId"] = s.Service
	}
	maps.Copy(body, fields)
	var answer leaseapi.Granted
	if err := s.send(http.MethodPost, leaseapi.PathLease, body, &answer); err != nil {
		return answer, err
	}
	if len(answer.Leases) == 0 {
		return answer, errors.New("the answer has no lease")
	}
	for i := range answer.Leases {
		l := &answer.Leases[i].Lease
		l.ReservedUntil = l.Expired
		if until := answer.Leases[i].ReservedUntil; until != nil {
			l.ReservedUntil = *until
		}
		if err := s.granted(*l); err != nil {
			return answer, err
		}
	}
	return answer, nil
}

// granted notes a lease, once.
func (s *suite) granted(l lease.Lease) error {
	if err := l.Validate(); err != nil {
		return err
	}
	for _, g := range s.grants {
		if g.lease.Key() == l.Key() {
			return nil // the answer to a repeated request
		}
	}
	s.grants = append(s.grants, grant{l, l.Expired})
	s.held[l.Key()] = l
	return nil
}

// one takes one lease.
func (s *suite) one() (lease.Lease, error) {
	answer, err := s.acquire(nil)
	if err != nil {
		return lease.Lease{}, fmt.Errorf("an acquire: %w", err)
	}
	return answer.Leases[0].Lease, nil
}

// release sends a release.
func (s *suite) release(l lease.Lease, timestampMS int64, secret string) error {
	body := leaseapi.ReleaseRequest{
		Signature: lease.Sign(secret, l.ID, timestampMS), Timestamp: &timestampMS, ServiceID: s.Service, BitSeq: &l.BitSeq,
	}
	return s.send(http.MethodDelete, leaseapi.PathLease+"/"+strconv.FormatInt(l.ID, 10), body, nil)
}

// giveBack releases a lease as its holder does.
func (s *suite) giveBack(l lease.Lease) error {
	at := time.Now().UnixMilli()
	if err := s.release(l, at, l.Secret); err != nil {
		return err
	}
	delete(s.held, l.Key())
	for i, g := range s.grants {
		if g.lease.Key() == l.Key() {
			s.grants[i].end = provider.ReleasedEnd(l.Created, g.end, at)
		}
	}
	return nil
}

// finish gives back what is held, and checks the rule.
func (s *suite) finish() error {
	for _, l := range s.held {
		_ = s.giveBack(l) // otherwise it runs out by itself
	}
	for i, a := range s.grants {
		for _, b := range s.grants[:i] {
			if a.lease.Slot().Overlaps(b.lease.Slot()) && a.lease.Created < b.end && b.lease.Created < a.end {
				return fmt.Errorf("%v and %v, of which one was taken until %d", a.lease, b.lease, min(a.end, b.end))
			}
		}
	}
	return nil
}

// refused fails unless the error is an answer that refuses the request.
func refused(err error) error {
	var p *problem.Problem
	switch {
	case err == nil:
		return errors.New("it was carried out")
	case !errors.As(err, &p):
		return err
	case p.Status < 400 || p.Status >= 500:
		return fmt.Errorf("the status is %d, want one from 400 to 499", p.Status)
	}
	return nil
}

// lacksPath reports whether the error means that the server has no such path.
func lacksPath(err error) bool {
	var p *problem.Problem
	return errors.As(err, &p) && (p.Status == http.StatusNotFound || p.Status == http.StatusMethodNotAllowed || p.Status == http.StatusNotImplemented)
}

// raw is an answer as text.
type raw = json.RawMessage
