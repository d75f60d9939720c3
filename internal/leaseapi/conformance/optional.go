package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

// optional are the checks of optional parts. A server may lack them, but must not get
// them wrong.
var optional = []check{
	{"the answer to POST /lease repeats requestId", repeatsRequestID},
	{"a repeated request gets the same leases", sameLeases},
	{"a repeated request whose leases were given back is refused", overRequest},
	{"leases have reservedUntil", reservedUntil},
	{"POST /leases/verify", verify},
	{"POST /leases/extend", extend},
	{"a second release changes nothing, and is answered like the first", secondRelease},
	{"throughputPerMs of 0 and less is refused", noThroughput},
	{"a request of 1 MiB is refused", longBody},
	{"refusals are application/problem+json with a code", problems},
}

func repeatsRequestID(s *suite) error {
	for range 2 {
		id := provider.NewSecret()
		answer, err := s.acquire(map[string]any{"requestId": id})
		switch {
		case err != nil:
			return err
		case answer.RequestID == "":
			return &missing{"a daemon cannot tell an answer that a proxy has mixed up"}
		case answer.RequestID != id:
			return fmt.Errorf("the answer has requestId %q, and the request has %q", answer.RequestID, id)
		}
	}
	return nil
}

func sameLeases(s *suite) error {
	id := map[string]any{"requestId": provider.NewSecret()}
	first, err := s.acquire(id)
	if err != nil {
		return err
	}
	again, err := s.acquire(id)
	if err != nil {
		return err
	}
	if len(again.Leases) != len(first.Leases) || again.Leases[0].Key() != first.Leases[0].Key() {
		return &missing{"an answer that is lost costs a machine ID until its lease ends"}
	}
	return nil
}

func overRequest(s *suite) error {
	id := map[string]any{"requestId": provider.NewSecret()}
	first, err := s.acquire(id)
	if err != nil {
		return err
	}
	l := first.Leases[0].Lease
	if err := s.giveBack(l); err != nil {
		return err
	}
	again, err := s.acquire(id)
	if err == nil {
		if slices.ContainsFunc(again.Leases, func(g leaseapi.GrantedLease) bool { return g.Key() == l.Key() }) {
			return errors.New("the lease that was given back was granted again")
		}
		return &missing{"the request is granted anew"}
	}
	return refused(err)
}

func reservedUntil(s *suite) error {
	answer, err := s.acquire(nil)
	if err != nil {
		return err
	}
	if answer.Leases[0].ReservedUntil == nil {
		return &missing{"cached fallback IDs are certain until expired only"}
	}
	return nil
}

// claimed names a lease for verify and extend.
func claimed(l lease.Lease, signature string) leaseapi.Claim {
	return leaseapi.Claim{ID: &l.ID, BitSeq: &l.BitSeq, Created: &l.Created, Signature: signature}
}

func verify(s *suite) error {
	given, err := s.one()
	if err != nil {
		return err
	}
	if err := s.giveBack(given); err != nil {
		return err
	}
	sign := func(l lease.Lease, secret string) leaseapi.Claim {
		return claimed(l, lease.SignVerify(secret, l.ID, l.Created))
	}
	var answer raw
	err = s.send(http.MethodPost, leaseapi.PathVerify, leaseapi.VerifyRequest{ServiceID: s.Service, Leases: []leaseapi.Claim{
		sign(s.first, s.first.Secret), sign(s.first, "forged"), sign(given, given.Secret), sign(s.first, s.first.Secret),
	}}, &answer)
	if lacksPath(err) {
		return &missing{"a daemon does not notice when its lease was taken over"}
	}
	if err != nil {
		return err
	}
	var lost leaseapi.VerifyResponse
	if err := json.Unmarshal(answer, &lost); err != nil {
		return fmt.Errorf("the answer is malformed: %w", err)
	}
	if slices.Sort(lost.Lost); !slices.Equal(lost.Lost, []int{1, 2}) {
		return fmt.Errorf("of a held lease, one with a forged signature, one that was given back and the held one again, %v are lost, want [1 2]", lost.Lost)
	}
	return s.noSecret(answer)
}

// noSecret: a secret travels once, with its grant.
func (s *suite) noSecret(answer raw) error {
	for _, g := range s.grants {
		if bytes.Contains(answer, []byte(g.lease.Secret)) {
			return errors.New("the answer has the secret of a lease in it")
		}
	}
	return nil
}

func extend(s *suite) error {
	l, err := s.one()
	if err != nil {
		return err
	}
	ask := func(l lease.Lease, secret string, into any) error {
		return s.send(http.MethodPost, leaseapi.PathExtend, leaseapi.ExtendRequest{
			Claim: claimed(l, lease.SignExtend(secret, l.ID, l.Created, l.Expired)), Expired: &l.Expired, ServiceID: s.Service,
		}, into)
	}
	var answer raw
	err = ask(l, l.Secret, &answer)
	if lacksPath(err) {
		return &missing{"kazahanad run cannot be used"}
	}
	if p, ok := errors.AsType[*problem.Problem](err); ok && p.Code == problem.Forbidden {
		if !strings.Contains(p.Detail, `"run"`) {
			return fmt.Errorf("it is refused, and the detail does not name the scope \"run\": %q", p.Detail)
		}
		return &missing{"this token does not have the scope run: kazahanad run cannot be used with it"}
	}
	if err != nil {
		return err
	}
	var longer leaseapi.ExtendResponse
	if err := json.Unmarshal(answer, &longer); err != nil {
		return fmt.Errorf("the answer is malformed: %w", err)
	}
	if e := longer.Lease; e.ID != l.ID || e.BitSeq != l.BitSeq || e.Created != l.Created || e.Expired < l.Expired || e.ReservedUntil < e.Expired {
		return fmt.Errorf("%v was extended to %v, reserved until %d", l, e, e.ReservedUntil)
	}
	if err := s.noSecret(answer); err != nil {
		return err
	}
	for i, g := range s.grants {
		if g.lease.Key() == l.Key() {
			s.grants[i].end = longer.Lease.Expired
		}
	}
	if err := refused(ask(l, "forged", nil)); err != nil {
		return fmt.Errorf("a forged signature: %w", err)
	}
	if err := s.giveBack(l); err != nil {
		return err
	}
	if err := refused(ask(longer.Lease, l.Secret, nil)); err != nil {
		return fmt.Errorf("a lease that was given back: %w", err)
	}
	return nil
}

func secondRelease(s *suite) error {
	l, err := s.one()
	if err != nil {
		return err
	}
	if err := s.giveBack(l); err != nil {
		return err
	}
	err = s.release(l, time.Now().UnixMilli(), l.Secret)
	if err == nil {
		return nil
	}
	if failed := refused(err); failed != nil {
		return failed
	}
	return &missing{"a release whose answer was lost looks like one that failed"}
}

func noThroughput(s *suite) error {
	for _, n := range []int{0, -1} {
		_, err := s.acquire(map[string]any{"throughputPerMs": n})
		if err == nil {
			return &missing{fmt.Sprintf("throughputPerMs of %d is granted", n)}
		}
		if err := refused(err); err != nil {
			return err
		}
	}
	return nil
}

func longBody(s *suite) error {
	_, err := s.acquire(map[string]any{"meta": map[string]string{"long": strings.Repeat("x", 1<<20)}})
	if err == nil {
		return &missing{"clients can fill the server's memory"}
	}
	if _, ok := errors.AsType[*problem.Problem](err); ok {
		return refused(err)
	}
	return nil // the server closed the connection before the end of the body
}

func problems(s *suite) error {
	err := s.release(s.first, time.Now().UnixMilli(), "forged")
	if failed := refused(err); failed != nil {
		return failed
	}
	if p, ok := errors.AsType[*problem.Problem](err); ok && p.Code == "" {
		return &missing{"logs show the status only"}
	}
	return nil
}
