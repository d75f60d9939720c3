package kubernetes

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// This file has the rules, as functions of values that were read. It does no I/O and reads
// no clock.

// format is the format of slots and heads. A slot of another format is taken, and a head of
// another one refused.
const format = 1

// keptGrants is how many earlier grants a slot remembers.
const keptGrants = provider.KeptGrants - 1

// slot is what an object records of a machine ID: the latest grant, and those before. The
// zero Nonce says that the machine ID was never granted. All times are Unix ms.
type slot struct {
	provider.Record
	Format int    `json:"format"`
	Nonce  string `json:"nonce"` // of the grant
	// Head and Generation name the head that allowed the grant.
	Head       string            `json:"head"`
	Generation int64             `json:"generation"`
	Request    string            `json:"request,omitempty"` // requestLabel of the request
	Renewed    int64             `json:"renewed,omitempty"` // when it was granted, or extended last
	Number     int64             `json:"number"`            // grants so far
	Earlier    []provider.Record `json:"earlier,omitempty"` // the latest first, without Meta

	read *coordinationv1.Lease // the object as it was read, which a write replaces; nil: there is none
}

// emptySlot has no grant. It can be granted at the end.
func emptySlot(id, end int64) slot {
	return slot{Record: provider.Record{Lease: lease.Lease{ID: id}, End: end}}
}

// head is the record in the head object of a pool. All times are Unix ms.
type head struct {
	Format int    `json:"format"`
	UID    string `json:"-"` // of the object; "" before it is written
	// Closed says why no grant may begin to be used; "" = the pool is open. A process that finds
	// it closed opens it.
	Closed string `json:"closed,omitempty"`
	// Generation goes up whenever the pool is closed.
	Generation int64  `json:"generation"`
	EpochMS    int64  `json:"epoch"`
	BitTS      int    `json:"bitTs"`
	BitSeq     int    `json:"bitSeq"`
	NextBitSeq int    `json:"nextBitSeq,omitempty"` // of a pool that is closed for another layout
	Key        string `json:"key"`                  // makes the secrets of leases
	Bound      int64  `json:"bound"`                // no grant ends later
	Longest    int64  `json:"longest"`
	// Since is the greatest end of all grants in other layouts. Nothing lifts it: their objects
	// have other names than the objects that a grant in this layout looks at.
	Since int64 `json:"since,omitempty"`
	// NotBefore is the end of a fence, and Reason its cause.
	NotBefore int64  `json:"notBefore,omitempty"`
	Reason    string `json:"reason,omitempty"`
	// Witness is a machine ID that has an object, nil while none is known to have one. Where
	// that object is gone, all may be.
	Witness *int64 `json:"witness,omitempty"`
	Nonce   string `json:"nonce"` // of this write: an update that changes nothing proves nothing

	read *coordinationv1.Lease // the object as it was read, which a write replaces; nil: there is none
}

// Why a pool is closed.
const (
	closedNew    = "new"
	closedFence  = "fence"
	closedGone   = "gone"
	closedLayout = "layout"
)

// newHead is the head of a pool that has none. It is closed: slots of an earlier head may
// be there.
func newHead(t provider.Terms) head {
	var key [32]byte
	rand.Read(key[:]) // never fails (crypto/rand ends the program instead)
	return head{
		Format: format, Closed: closedNew, Generation: 1, EpochMS: t.Timeline.EpochMS, BitTS: t.Timeline.BitTS, BitSeq: t.BitSeq,
		Key: hex.EncodeToString(key[:]), Nonce: provider.NewSecret(),
	}
}

// written is the head with a nonce of its own.
func (h head) written() head {
	h.Nonce = provider.NewSecret()
	return h
}

// closing is the head as it is closed.
func (h head) closing(why string) head {
	h.Closed = why
	h.Generation++
	return h.written()
}

// unfenced is the head without a fence; false where it has none.
func (h head) unfenced() (head, bool) {
	fenced := h.NotBefore != 0
	h.NotBefore, h.Reason = 0, ""
	return h.written(), fenced
}

// opened returns the head opened again, by the slots listed after it was closed. The terms are those
// with the longest leases that the caller knows.
func (h head) opened(slots []slot, nowMS int64, t provider.Terms) head {
	var greatest int64
	unreadable := false
	for _, s := range slots {
		if s.End == never {
			unreadable = true
			continue
		}
		greatest = max(greatest, s.End)
		if s.Lease.BitSeq != h.BitSeq {
			h.Since = max(h.Since, s.End)
		}
	}
	h.Longest = max(h.Longest, t.LongestMS())
	if h.Witness != nil && len(slots) == 0 {
		// The bound is all that is known of them.
		h.NotBefore = max(h.NotBefore, h.Bound)
		h.Reason = "all lease objects of the pool are gone, and leases may live that they recorded"
	}
	switch h.Closed {
	case closedNew:
		if greatest > h.NotBefore {
			h.NotBefore, h.Reason = greatest, "the pool's head object was deleted, and the leases that it had granted must end"
		}
		h.Bound = max(h.Bound, greatest, max(nowMS, h.NotBefore)+t.LongestMS()+t.Term.Milliseconds())
	case closedFence:
		h.NotBefore, h.Reason = max(h.NotBefore, greatest, nowMS+h.Longest), "the pool was fenced by hand: leases may have been forgotten"
	case closedLayout:
		if greatest <= nowMS && h.NotBefore <= nowMS && !unreadable {
			h.BitSeq, h.Since = h.NextBitSeq, max(h.Since, greatest)
		}
	}
	h.Closed, h.NextBitSeq, h.Witness = "", 0, nil
	if len(slots) > 0 {
		h.Witness = pointer(slots[0].Lease.ID)
	}
	h.Bound = max(h.Bound, greatest)
	return h.written()
}

// raised is the head with a bound of at least end, and a term more so that the next ones
// need not raise it; false where it is high enough.
func (h head) raised(end int64, t provider.Terms) (head, bool) {
	if end <= h.Bound && t.LongestMS() <= h.Longest {
		return h, false
	}
	if end > h.Bound {
		h.Bound = end + t.Term.Milliseconds()
	}
	h.Longest = max(h.Longest, t.LongestMS())
	return h.written(), true
}

// same reports whether nothing has closed the pool between two readings of its head.
func (h head) same(other head) bool { return h.UID == other.UID && h.Generation == other.Generation }

// fence is the refusal at that time, nil where there is none.
func (h head) fence(nowMS int64) *provider.FencedError {
	switch {
	case nowMS >= max(h.NotBefore, h.Since):
		return nil
	case h.Since > h.NotBefore:
		return &provider.FencedError{UntilMS: h.Since, Reason: "the pool had another layout, and a clock shows a time before the end of its leases"}
	}
	return &provider.FencedError{UntilMS: h.NotBefore, Reason: h.Reason}
}

// timeline is the pool's.
func (h head) timeline() snowflake.Timeline {
	return snowflake.Timeline{EpochMS: h.EpochMS, BitTS: h.BitTS}
}

// known reports, wrapping ErrInvalid, that the terms are not the pool's.
func (h head) known(t provider.Terms) error {
	if h.timeline() != t.Timeline {
		return provider.TimelineError(t.Pool, h.timeline(), t.Timeline)
	}
	if h.BitSeq != t.BitSeq {
		return fmt.Errorf("%w: pool %q has bit_seq %d, and %d was asked for: a pool in Kubernetes has one layout; "+
			"another one needs all leases to have ended, and then `kazahanad leases init`", provider.ErrInvalid, t.Pool, h.BitSeq, t.BitSeq)
	}
	return nil
}

// secret returns the secret of the grant with the nonce. No object holds it.
func (h head) secret(nonce string) string {
	mac := hmac.New(sha256.New, []byte(h.Key))
	mac.Write([]byte(nonce))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// granted is the slot with a new grant. The caller has seen that the slot's end has passed.
func (s slot) granted(h head, t provider.Terms, nowMS int64, req provider.AcquireRequest) slot {
	l := t.Grant(s.Lease.ID, nowMS, "")
	out := slot{
		Record: provider.Record{Lease: l, Service: req.Service, Meta: maps.Clone(req.Meta), End: l.ReservedUntil},
		Format: format, Nonce: provider.NewSecret(), Head: h.UID, Generation: h.Generation,
		Renewed: nowMS, Number: s.Number + 1, Earlier: s.Earlier, read: s.read,
	}
	if req.RequestID != "" {
		out.Request = requestLabel(req.Service, req.RequestID)
	}
	if s.Nonce != "" {
		earlier := s.Record
		earlier.Meta = nil
		out.Earlier = append([]provider.Record{earlier}, s.Earlier...)
		out.Earlier = out.Earlier[:min(len(out.Earlier), keptGrants)]
	}
	return out
}

// unused is the slot with its grant given back before anything was made under it. The request
// is not answered by it.
func (s slot) unused() slot {
	s.End, s.Released, s.Request = s.Lease.Created, true, ""
	return s
}

// requestLabel names a request in a label's value.
func requestLabel(service, request string) string {
	sum := sha256.Sum256([]byte(service + "\x00" + request))
	return hex.EncodeToString(sum[:16])
}

// grant is the latest grant of that machine ID with its secret, nil where the slot has none.
func (h head) grant(s *slot, id int64, bitSeq int) *provider.Record {
	if s == nil || s.Nonce == "" || s.Lease.ID != id || s.Lease.BitSeq != bitSeq {
		return nil
	}
	r := s.Record
	r.Lease.Secret = h.secret(s.Nonce)
	return &r
}

// with is the slot with its grant changed. No object holds a secret.
func (s slot) with(grant provider.Record) slot {
	s.Record = grant
	s.Lease.Secret = ""
	return s
}

// released is the slot as the release leaves it; false where it is released already.
func (h head) released(s *slot, req provider.ReleaseRequest, nowMS int64) (slot, bool, error) {
	bitSeq := req.BitSeq
	if bitSeq == provider.AnyBitSeq && s != nil {
		bitSeq = s.Lease.BitSeq
	}
	before := h.grant(s, req.ID, bitSeq)
	if before == nil {
		return slot{}, false, provider.ErrNotFound
	}
	after, changed, err := req.Apply(*before, nowMS)
	return s.with(after), changed, err
}

// extended is the slot as the extension leaves it; false where that is as it was. The head was read
// after the slot: an earlier extension may be in the slot that was not confirmed, and who changed the
// layout meanwhile may not have seen it.
func (h head) extended(s *slot, t provider.Terms, req provider.ExtendRequest, nowMS int64) (slot, bool, error) {
	before := h.grant(s, req.ID, req.BitSeq)
	if before == nil {
		return slot{}, false, provider.ErrNotFound
	}
	if err := h.known(t.WithBitSeq(req.BitSeq)); err != nil {
		return slot{}, false, err
	}
	if before.Lease.Created < h.Since {
		return slot{}, false, provider.ErrConflict // of a time before the layout's
	}
	after, err := req.Apply(*before, t, nowMS)
	out := s.with(after)
	out.Renewed = nowMS
	return out, after.Lease.Expired != before.Lease.Expired || after.End != before.End, err
}

// lost returns the positions of the claims on leases that are no longer the claimant's.
func (h head) lost(claims []provider.Claim, slots []*slot, fenced bool) (positions []int) {
	for i, c := range claims {
		if c.Lost(h.grant(slots[i], c.ID, c.BitSeq), fenced) {
			positions = append(positions, i)
		}
	}
	return positions
}

// locate returns the grants of the slot that covered the low bits at that time, the latest first.
func (s slot) locate(low, atMS int64) (found []provider.Record) {
	for _, r := range append([]provider.Record{s.Record}, s.Earlier...) {
		if at := r.Lease.Slot(); r.HeldAt(atMS) && at.Start <= low && low < at.End {
			found = append(found, r)
		}
	}
	return found
}

// dated is what an answer of the server, at atMS by our clock, says of its own: how far it is
// ahead of ours at least, 0 where they may be equal. The zero value is from long ago.
type dated struct{ offset, atMS int64 }

// recently is how long a Date counts.
const recently int64 = 10_000

// datedBy is what an answer says. Its Date is in whole seconds.
func datedBy(sentMS, receivedMS, dateMS int64) *dated {
	d := &dated{atMS: receivedMS}
	if least := dateMS - receivedMS; least > 0 {
		d.offset = least
	} else if most := dateMS + 999 - sentMS; most < 0 {
		d.offset = most
	}
	return d
}

// isRecent reports whether the answer came lately, by our clock.
func (d *dated) isRecent(nowMS int64) bool { return d.atMS <= nowMS && nowMS < d.atMS+recently }

// checkClocks reports that the server's clock and ours are so far apart that a lease would
// be of little use. No promise rests on it.
func checkClocks(offset int64, t provider.Terms) error {
	if most := max(t.Quarantine, provider.ReleaseWindow).Milliseconds(); max(offset, -offset) > most {
		return fmt.Errorf("the clock of the Kubernetes API server is %d s ahead of this host's: nothing is granted until they are at most %d s apart",
			offset/1000, most/1000)
	}
	return nil
}

// living reports, as ErrConflict, that a lease of a repeated request has ended or was given
// back. In a pool that was closed since, the closer may not have seen the grant.
func (h head) living(found []slot, nowMS int64) error {
	for _, s := range found {
		if s.Released || nowMS >= s.Lease.Expired || s.Head != h.UID || s.Generation != h.Generation {
			return provider.ErrConflict
		}
	}
	return nil
}
