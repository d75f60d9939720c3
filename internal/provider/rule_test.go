package provider_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// No signature of anything else is one of a request's.
func TestForgedRequests(t *testing.T) {
	l := provider.DefaultTerms().Grant(5, 1_800_000_000_000, provider.NewSecret())
	held, at := provider.Record{Lease: l, End: l.ReservedUntil}, l.Created
	release, verify, extend := lease.Sign(l.Secret, l.ID, at), provider.ClaimOf(l).Signature, lease.SignExtend(l.Secret, l.ID, at, l.Expired)
	for _, signature := range []string{
		"", "00", l.Secret, release, verify, extend, release[:len(release)-2], strings.ToUpper(release) + "Z",
		lease.Sign("x", l.ID, at), lease.Sign(l.Secret, l.ID+1, at), lease.Sign(l.Secret, l.ID, at+1),
		lease.SignVerify("x", l.ID, at), lease.SignVerify(l.Secret, l.ID+1, at), lease.SignVerify(l.Secret, l.ID, at+1),
		lease.SignExtend("x", l.ID, at, l.Expired), lease.SignExtend(l.Secret, l.ID+1, at, l.Expired), lease.SignExtend(l.Secret, l.ID, at, l.Expired+1),
	} {
		_, _, err := provider.ReleaseRequest{ID: l.ID, BitSeq: l.BitSeq, TimestampMS: at, Signature: signature}.Apply(held, at)
		if signature != release && !errors.Is(err, provider.ErrBadSignature) || signature == release && err != nil {
			t.Errorf("a release that is signed with %q: %v", signature, err)
		}
		ask := provider.ExtendRequest{ID: l.ID, BitSeq: l.BitSeq, CreatedMS: at, ExpiredMS: l.Expired, Signature: signature}
		_, err = ask.Apply(held, provider.DefaultTerms(), at)
		if signature != extend && !errors.Is(err, provider.ErrBadSignature) || signature == extend && err != nil {
			t.Errorf("an extension that is signed with %q: %v", signature, err)
		}
		claim := provider.Claim{ID: l.ID, BitSeq: l.BitSeq, CreatedMS: at, Signature: signature}
		if lost := claim.Lost(&held, false); lost != (signature != verify) {
			t.Errorf("of a claim that is signed with %q the lease is lost: %v", signature, lost)
		}
	}
}

// A request that a store may not be able to hold is refused, and the error names the field.
func TestInvalidRequests(t *testing.T) {
	invalid := func(r provider.AcquireRequest, field string) {
		t.Helper()
		if err := r.Validate(); !errors.Is(err, provider.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: the error is %v, want ErrInvalid about the %s", r, err, field)
		}
	}
	invalid(provider.AcquireRequest{Meta: map[string]string{"k": strings.Repeat("v", provider.MaxMetaBytes)}}, "meta")
	for _, text := range []string{strings.Repeat("r", provider.MaxNameBytes+1), "a\x00b", "a\xffb"} {
		invalid(provider.AcquireRequest{RequestID: text}, "request ID")
		invalid(provider.AcquireRequest{Service: text}, "service")
	}
	for _, text := range []string{"a\x00b", "a\xffb"} {
		invalid(provider.AcquireRequest{Meta: map[string]string{"k": text}}, `meta "k"`)
		invalid(provider.AcquireRequest{Meta: map[string]string{text: "v"}}, fmt.Sprintf("meta %q", text))
	}
}

// No extension takes a slot for longer than a fence lasts that knows its terms, under any earlier
// terms of the lease.
func TestExtensionIsFenced(t *testing.T) {
	const now = 1_000_000
	terms := provider.DefaultTerms()
	terms.Term, terms.Quarantine = time.Minute, 10*time.Minute
	for _, before := range []struct{ expired, end int64 }{
		{now + 1, now + 1}, {now + 60_000, now + 60_000}, {now + 60_001, now + 60_001}, {now + 1_200_000, now + 1_200_000}, {now + 1, now + 9_000_000},
	} {
		expired, end := provider.ExtendRequest{ExpiredMS: before.expired}.Extended(terms, now, before.expired, before.end)
		if expired < before.expired || end < before.end || end < expired || end > max(before.end, now+terms.LongestMS()) ||
			expired < now+terms.Term.Milliseconds() || expired > before.expired && end < expired+terms.Quarantine.Milliseconds() {
			t.Errorf("a lease until %d (%d) is extended to %d (%d)", before.expired-now, before.end-now, expired-now, end-now)
		}
	}
}
